"""A launch of one small kernel around single instructions, and the operands that it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from gemmjit import templating
from gemmjit.arch import Arch
from gemmjit.build import CompiledKernel, build
from gemmjit.plan import Argument, Launch, Plan, Pointer

TEMPLATES = Path(__file__).parent / "micro"
GUARD = 0xCD

_NUMPY = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}


@dataclass(frozen=True)
class MicroSpec:
    """What is compiled: a template and its variables (see `gemmjit.compiled.Spec`)."""

    template: str
    target: Arch
    values: tuple[tuple[str, object], ...] = ()
    threads: int = 32
    smem_bytes: int = 0
    options: tuple[str, ...] = ()
    config: None = None
    variant: None = None

    @property
    def name(self) -> str:
        return self.template.split(".")[0]

    @property
    def entry(self) -> str:
        return "_".join(["micro", self.name, *(str(v) for _, v in self.values)])

    @property
    def variables(self) -> dict[str, object]:
        return {"entry": self.entry, **dict(self.values)}

    @property
    def prewarm_command(self) -> str:
        return "no command compiles kernels of the tests"

    def build(self) -> CompiledKernel:
        with templating.override(TEMPLATES):
            return build(self)


@dataclass(frozen=True)
class Micro:
    """A launch of one block.

    Attributes
    ----------
    name : str
    spec : MicroSpec
    arrays : dict
        Every array that the kernel sees, as it is before the launch.
    arguments : tuple of Argument
    """

    name: str
    spec: MicroSpec
    arrays: dict[str, np.ndarray] = field(repr=False)
    arguments: tuple[Argument, ...] = field(repr=False)

    def __str__(self) -> str:
        return self.name

    def plan(self) -> Plan:
        kernel = self.spec.build()
        launch = Launch(
            kernel=kernel, grid=(1, 1, 1), block=(self.spec.threads, 1, 1),
            arguments=self.arguments, smem_bytes=self.spec.smem_bytes,
        )  # fmt: skip
        return Plan(launches=(launch,))


def random_of(name: str) -> np.random.Generator:
    """Return the generator of a case, the same in every run."""
    return np.random.default_rng(list(name.encode()))


def guarded(count: int, dtype: Any = np.uint32) -> np.ndarray:
    """Return an array for results, filled with what nothing writes."""
    return np.full(count * np.dtype(dtype).itemsize, GUARD, np.uint8).view(dtype)


def pointers(*names: str) -> tuple[Argument, ...]:
    return tuple(Pointer(name) for name in names)


def elements(rng: np.random.Generator, kind: str, count: int, whole: bool) -> np.ndarray:
    if whole:
        return rng.integers(-3, 4, count).astype(_NUMPY[kind])
    return (rng.standard_normal(count) * 2.0 ** rng.integers(-4, 5, count)).astype(_NUMPY[kind])


def floats(rng: np.random.Generator, count: int, whole: bool) -> np.ndarray:
    values = rng.integers(-50, 51, count) if whole else rng.standard_normal(count) * 8
    return values.astype(np.float32)

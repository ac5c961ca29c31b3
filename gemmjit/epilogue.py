"""What happens to a product on its way to the result: steps, their operands, their order.

A call names its steps as frozen dataclasses (`Bias`, `SwiGLU`, `RowScale`) that hold arrays. What
is compiled knows them without arrays, as a `Chain`, which has a name, such as
``bias+swiglu_split+row_scale``. The name is part of the problem, of the variant and of the key in
the cache.

For row r of group g, with x the FP32 accumulator of the product, the steps apply in this order,
each of them in FP32::

    1. bias        x[r, n] += bias[g, n]                  n over the columns of mat_b
    2. SwiGLU      x[r, h] = silu(gate[r, h]) * up[r, h]  gate and up: columns of x
    3. row scale   x[r, h] *= scale[r]
    4. accumulate  x[r, h] += out[r, h]
    5. out[r, h] = x[r, h], rounded once, to the nearest even

Rows past the last group have no steps: they are zero in a fresh result, whatever the operands
hold there, and are not read in them.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

from gemmjit.errors import InvalidConfigError, InvalidProblemError

__all__ = [
    "KINDS",
    "Accumulate",
    "Bias",
    "Chain",
    "Epilogue",
    "Operand",
    "Output",
    "RowScale",
    "Step",
    "SwiGLU",
    "chain_of",
]

#: Along what an operand or an output extends; a column is one of the product, before any gate.
Dim = Literal["row", "group", "column"]
Gate = Literal["", "interleaved", "split"]


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that a step reads.

    Attributes
    ----------
    argument : str
        What the call's argument is named, for messages.
    dims : tuple of {"row", "group", "column"}
        Its dimensions. A kernel reads it once per row, or once per group and column.
    """

    argument: str
    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """An array that the last step writes; an epilogue that quantises adds one for its scales."""

    argument: str
    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Epilogue(ABC):
    """One step. A new one is a subclass in `KINDS`, and a fragment in ``templates/core/epilogue``.

    Attributes
    ----------
    keyword : str
        Its part of a chain's name, and its member in the kernel's arguments.
    struct : str
        Its name in the fragment; empty if it has none.
    stage : int
        Place in the order of steps.
    operand : Operand or None
        What it reads beside the product.
    options : tuple of str
        What may follow the keyword in a name. For a step with an operand: nothing for an operand of
        the type of `mat_a`, ``f32`` for float32 beside 16-bit operands; ``strided`` where a kernel
        profits from neighbours that lie side by side, and they do not.
    folds : int
        Columns of the product that make one of the result.
    """

    keyword: ClassVar[str]
    struct: ClassVar[str] = ""
    stage: ClassVar[int]
    operand: ClassVar[Operand | None] = None
    options: ClassVar[tuple[str, ...]] = ("",)
    folds: ClassVar[int] = 1
    outputs: ClassVar[tuple[Output, ...]] = (Output("out", ("row", "column")),)

    @property
    def array(self) -> Any:
        """The operand's array, or None."""
        return None

    @property
    def option(self) -> str:
        """What the step itself decides of its name; the operand's type comes from the array."""
        return ""


@dataclass(frozen=True, slots=True)
class Bias(Epilogue):
    """Add a vector per group: ``x[r, n] += values[g, n]``.

    Attributes
    ----------
    values : array, shape (G, N)
        Of the type of `mat_a` or float32, any strides, on the device of `mat_a`. N is that of
        `mat_b`, with SwiGLU too.
    """

    keyword: ClassVar[str] = "bias"
    struct: ClassVar[str] = "Bias"
    stage: ClassVar[int] = 1
    operand: ClassVar[Operand | None] = Operand("bias", ("group", "column"))
    options: ClassVar[tuple[str, ...]] = ("", "f32", "strided", "f32_strided")

    values: Any = field(compare=False, repr=False)

    @property
    def array(self) -> Any:
        """The vector of each group."""
        return self.values


@dataclass(frozen=True, slots=True)
class SwiGLU(Epilogue):
    """Multiply one half of the columns by the other, through a SiLU: ``silu(gate) * up``.

    ``silu(x) = x / (1 + exp(-x))``. `mat_b` has N = 2H columns and the result H.

    Attributes
    ----------
    layout : {"interleaved", "split"}
        interleaved: column 2h is the gate of result h, column 2h + 1 its factor. split: the gates
        are columns 0 to H - 1, the factors columns H to 2H - 1.

    Notes
    -----
    In FP32, with ``ex2.approx`` and ``rcp.approx`` in every kernel. The relative error of silu(g)
    is at most 6e-7 + 7.4e-8 abs(g): 2^-22 and 2^-23 for the two instructions, by the PTX ISA; 2^-24
    for a sum and each of two products; and that of the exponent, which matters for g < 0 only.
    A gate below -88, -Inf too, gives 0 times the factor, never a NaN of its own; +Inf gives Inf;
    NaN stays NaN.
    """

    keyword: ClassVar[str] = "swiglu"
    struct: ClassVar[str] = "SwiGLU"
    stage: ClassVar[int] = 2
    options: ClassVar[tuple[str, ...]] = ("interleaved", "split")
    folds: ClassVar[int] = 2

    layout: Literal["interleaved", "split"] = "interleaved"

    def __post_init__(self) -> None:
        if self.layout not in self.options:
            raise InvalidProblemError(
                f"layout: expected interleaved or split; got {self.layout!r}. Say how gate and up "
                "lie in the columns of mat_b"
            )

    @property
    def option(self) -> str:
        """The layout."""
        return self.layout


@dataclass(frozen=True, slots=True)
class RowScale(Epilogue):
    """Multiply each row by a number, such as a routing weight: ``x[r, n] *= scale[r]``.

    Attributes
    ----------
    scale : array, shape (M,)
        Of the type of `mat_a` or float32, any stride, on the device of `mat_a`.
    """

    keyword: ClassVar[str] = "row_scale"
    struct: ClassVar[str] = "RowScale"
    stage: ClassVar[int] = 3
    operand: ClassVar[Operand | None] = Operand("scale", ("row",))
    options: ClassVar[tuple[str, ...]] = ("", "f32")

    scale: Any = field(compare=False, repr=False)

    @property
    def array(self) -> Any:
        """The number of each row."""
        return self.scale


@dataclass(frozen=True, slots=True)
class Accumulate(Epilogue):
    """Add what `out` holds; the call's `accumulate`."""

    keyword: ClassVar[str] = "accumulate"
    stage: ClassVar[int] = 4


#: Every step that there is, in order.
KINDS: tuple[type[Epilogue], ...] = (Bias, SwiGLU, RowScale, Accumulate)

_ALL_NAMES = tuple(
    kind.keyword + (f"_{option}" if option else "") for kind in KINDS for option in kind.options
)


@dataclass(frozen=True, slots=True)
class Step:
    """A step as a kernel knows it: without its array.

    Attributes
    ----------
    kind : type
        Of `KINDS`.
    option : str
        One of the kind's options.
    """

    kind: type[Epilogue]
    option: str = ""

    @property
    def name(self) -> str:
        """Keyword and option."""
        return self.kind.keyword + (f"_{self.option}" if self.option else "")

    @property
    def dense(self) -> Step:
        """The same, for an operand whose neighbours lie side by side."""
        option = self.option.removesuffix("strided").removesuffix("_")
        return Step(self.kind, option)


@dataclass(frozen=True, slots=True)
class Chain:
    """The steps of a kernel, in order; none is the plain store.

    Attributes
    ----------
    steps : tuple of Step
    """

    steps: tuple[Step, ...] = ()

    @property
    def name(self) -> str:
        """What identifies the chain: ``store``, or the names of its steps joined by ``+``."""
        return "+".join(step.name for step in self.steps) or "store"

    @property
    def keywords(self) -> tuple[str, ...]:
        """Keywords of the steps."""
        return tuple(step.kind.keyword for step in self.steps)

    @property
    def accumulates(self) -> bool:
        """Whether the result is added to what is there."""
        return Accumulate.keyword in self.keywords

    @property
    def gate(self) -> Gate:
        """How gate and up lie, or nothing where there is no gate."""
        found = [step.option for step in self.steps if step.kind is SwiGLU]
        return found[0] if found else ""  # type: ignore[return-value]

    @property
    def folds(self) -> int:
        """Columns of the product that make one of the result."""
        return max((step.kind.folds for step in self.steps), default=1)

    @property
    def column_operands(self) -> int:
        """Number of arrays of which a kernel reads an element for each column of a tile."""
        read = [step.kind.operand for step in self.steps]
        return sum(operand is not None and "column" in operand.dims for operand in read)

    @property
    def operands(self) -> tuple[Step, ...]:
        """Steps that read an array, in the order of the kernel's arguments."""
        return tuple(step for step in self.steps if step.kind.operand is not None)

    @property
    def dense(self) -> Chain:
        """The same, for operands whose neighbours lie side by side."""
        return Chain(tuple(step.dense for step in self.steps))

    def serves(self, other: Chain) -> bool:
        """Return whether code for this chain does what another asks: any strides are more."""
        return len(self.steps) == len(other.steps) and all(
            need in (have, have.dense) for have, need in zip(self.steps, other.steps, strict=True)
        )


@lru_cache(maxsize=256)
def chain_of(name: str) -> Chain:
    """Return the chain of a name.

    Raises
    ------
    InvalidConfigError
        If a step is unknown, twice there, or out of order.
    """
    steps: list[Step] = []
    for part in name.split("+") if isinstance(name, str) and name != "store" else ():
        keyword, option = next(
            (
                (kind, option)
                for kind in KINDS
                for option in kind.options
                if part == Step(kind, option).name
            ),
            (None, ""),
        )
        if keyword is None:
            raise InvalidConfigError(
                f"epilogue must be store, or steps out of {', '.join(_ALL_NAMES)}, joined by +; "
                f"got {name!r}"
            )
        steps.append(Step(keyword, option))
    if not isinstance(name, str):
        raise InvalidConfigError(f"epilogue must be a name, as in bias+row_scale; got {name!r}")
    stages = [step.kind.stage for step in steps]
    if stages != sorted(set(stages)):
        order = ", ".join(kind.keyword for kind in KINDS)
        raise InvalidConfigError(
            f"epilogue must have its steps once, in the order {order}; got {name!r}"
        )
    return Chain(tuple(steps))

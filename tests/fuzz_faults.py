"""What is refused, and how: calls with one argument that cannot be, and kernels that cannot load.

Written from the contract, not from the package's own rules, so that a rule that is lost or one too
many shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fuzz_problems
import numpy as np
from makers import EXPANDED_OUTER, NUMPY_DTYPES, Maker

import gemmjit
from gemmjit.errors import (
    GemmjitError,
    InvalidConfigError,
    InvalidDtypeError,
    InvalidProblemError,
)

if TYPE_CHECKING:
    from fuzz_problems import Problem

Call = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """One argument that cannot be.

    Attributes
    ----------
    error : type
        Error that must be raised.
    names : tuple of str
        Of which the message begins with one.
    possible : callable
        Says whether a problem can have it.
    spoil : callable
        Puts it into the arguments of the call, ``mat_a`` and ``mat_b`` among them.
    """

    error: type[GemmjitError]
    names: tuple[str, ...]
    possible: Callable[[Problem], bool]
    spoil: Callable[[Problem, Maker, Call], None]


def possible(problem: Problem, on_gpu: bool) -> tuple[str, ...]:
    """Return the faults that a problem can have."""
    return tuple(
        name
        for name, fault in FAULTS.items()
        if (on_gpu or name not in _ON_GPU) and fault.possible(problem)
    )


def refusal(problem: Problem) -> tuple[type[GemmjitError], tuple[str, ...]] | None:
    """Return the error that a call must raise and what it may begin with; None if it must run."""
    if problem.fault:
        return FAULTS[problem.fault].error, FAULTS[problem.fault].names
    if problem.cell.kernel in ("k2", "k3") and not _loads(problem):
        told = f"config: {problem.cell.kernel} cannot"
        return InvalidConfigError, (f"{told} be built", f"{told} load the operands")
    if problem.cell.kernel == "k2" and _too_tight(problem):
        return InvalidConfigError, ("config: k2 cannot be built: min_blocks_per_sm",)
    return None


# -- kernels that load by TMA ---------------------------------------------------------------


def _loads(problem: Problem) -> bool:
    """Return whether TMA can load the operands as they lie.

    One dimension is contiguous, not the ragged one; every other stride is positive and, like the
    address, a multiple of 16 bytes. Operands of which nothing is read may lie anyhow.
    """
    cell = problem.cell
    if _result_is_empty(problem) or not (problem.sizes and problem.rows and problem.k):
        return True
    if cell.form == "ragged_m":
        a = _on_grid(problem, cell.a, (problem.rows, problem.k), inner=(1,))
        shape = (len(problem.sizes), problem.k, problem.n)
        inner = (1, 2)
    else:
        a = _on_grid(problem, cell.a, (problem.k, problem.rows), inner=(0,))
        shape = (problem.rows, problem.n)  # type: ignore[assignment]
        inner = (1,)  # type: ignore[assignment]
    b = _on_grid(problem, cell.b, shape, inner)
    return a and b and _halves(problem)


def _on_grid(problem: Problem, name: str, shape: tuple[int, ...], inner: tuple[int, ...]) -> bool:
    itemsize = NUMPY_DTYPES[problem.cell.dtype].itemsize
    layout = fuzz_problems.layout_of(name, shape[-1], itemsize)
    strides = list(layout.strides(shape))
    start = layout.offset
    if layout.reversed_axis is not None:
        axis = layout.reversed_axis % len(shape)
        start += (shape[axis] - 1) * strides[axis]
        strides[axis] *= -1
    if start * itemsize % 16:
        return False
    rest = {axis: s for axis, s in enumerate(strides) if shape[axis] > 1}
    contiguous = [axis for axis in inner if rest.get(axis) == 1]
    if not contiguous:
        return False
    rest.pop(contiguous[0])
    return all(s > 0 and s * itemsize % 16 == 0 for s in rest.values())


def _halves(problem: Problem) -> bool:
    """Return whether split gates and factors come in whole boxes of 128 bytes, from the grid on."""
    cell, n = problem.cell, problem.n
    lies_k_major = fuzz_problems.layout_of(cell.b, n, 2).swapped
    if cell.gate != "split" or lies_k_major:
        return True
    config = cell.config
    assert config is not None
    return n // 2 % 8 == 0 and config.block_n % 128 == 0


def _too_tight(problem: Problem) -> bool:
    """Return whether k2 would spill the pointers of a bias."""
    config = problem.cell.config
    assert config is not None
    large = config.block_m * config.block_n >= 128 * 128
    runs = not _result_is_empty(problem)
    return runs and "bias" in problem.cell.chain and large and config.min_blocks_per_sm > 1


def _result_is_empty(problem: Problem) -> bool:
    if problem.cell.form == "ragged_m":
        return problem.rows == 0 or problem.n == 0
    return not problem.sizes or problem.n == 0 or problem.k == 0


# -- one argument that cannot be ------------------------------------------------------------


def _always(problem: Problem) -> bool:
    return True


def _ragged_m(problem: Problem) -> bool:
    return problem.cell.form == "ragged_m"


def _other_k(problem: Problem, maker: Maker, call: Call) -> None:
    shape = list(call["mat_b"].shape)
    shape[-2] += 1
    call["mat_b"] = maker.full(tuple(shape), 1.0, problem.cell.dtype)


def _one_offset_more(problem: Problem, maker: Maker, call: Call) -> None:
    call["offs"] = [*problem.ends, problem.rows]


def _falling(problem: Problem, maker: Maker, call: Call) -> None:
    call["offs"] = [*problem.ends[:-1], -1]


def _beyond(problem: Problem, maker: Maker, call: Call) -> None:
    call["offs"] = [*problem.ends[:-1], problem.rows + 1]


def _fractions(problem: Problem, maker: Maker, call: Call) -> None:
    call["offs"] = [float(end) for end in problem.ends]


def _float_array(problem: Problem, maker: Maker, call: Call) -> None:
    call["offs"] = maker.array(np.asarray(problem.ends, float), "float32")


def _two_dimensions(problem: Problem, maker: Maker, call: Call) -> None:
    call["offs"] = maker.array(np.asarray([problem.ends]), "int32")


def _another_type(problem: Problem, maker: Maker, call: Call) -> None:
    other = "float16" if problem.cell.dtype != "float16" else "bfloat16"
    call["mat_b"] = maker.full(tuple(call["mat_b"].shape), 1.0, other)


def _whole_numbers(problem: Problem, maker: Maker, call: Call) -> None:
    call["mat_a"] = maker.full(tuple(call["mat_a"].shape), 1.0, "int32")


def _out_of_another_shape(problem: Problem, maker: Maker, call: Call) -> None:
    shape = (*_result_shape(problem)[:-1], _result_shape(problem)[-1] + 1)
    call["out"] = maker.full(shape, 0.0, problem.cell.out_dtype)
    call.pop("out_dtype", None)


def _out_that_coincides(problem: Problem, maker: Maker, call: Call) -> None:
    values = np.zeros(_result_shape(problem))
    call["out"] = maker.place(values, problem.cell.out_dtype, EXPANDED_OUTER).array
    call.pop("out_dtype", None)


def _nothing_to_add_to(problem: Problem, maker: Maker, call: Call) -> None:
    call.update(out=None, out_dtype="float32", accumulate=True)


def _adds_in_16_bits(problem: Problem, maker: Maker, call: Call) -> None:
    out = maker.full(_result_shape(problem), 0.0, "bfloat16")
    call.update(out=out, accumulate=True)
    call.pop("out_dtype", None)


def _bias_of_another_shape(problem: Problem, maker: Maker, call: Call) -> None:
    call["bias"] = maker.full((len(problem.sizes), problem.n + 1), 0.0, problem.cell.dtype)


def _bias_for_wgrad(problem: Problem, maker: Maker, call: Call) -> None:
    call["bias"] = maker.full((len(problem.sizes), problem.n), 0.0, problem.cell.dtype)


def _scale_of_another_type(problem: Problem, maker: Maker, call: Call) -> None:
    other = "float16" if problem.cell.dtype != "float16" else "bfloat16"
    call["epilogue"] = gemmjit.RowScale(maker.full((problem.rows,), 1.0, other))


def _gate_without_a_factor(problem: Problem, maker: Maker, call: Call) -> None:
    shape = (*call["mat_b"].shape[:-1], problem.n | 1)
    call.update(mat_b=maker.full(shape, 1.0, problem.cell.dtype), epilogue=gemmjit.SwiGLU())


def _steps_in_another_order(problem: Problem, maker: Maker, call: Call) -> None:
    scale = maker.full((problem.rows,), 1.0, problem.cell.dtype)
    call["epilogue"] = (gemmjit.RowScale(scale), gemmjit.SwiGLU())


def _batch(problem: Problem, maker: Maker, call: Call) -> None:
    call["mat_a"] = maker.full((1, *call["mat_a"].shape), 1.0, problem.cell.dtype)


def _host_array(problem: Problem, maker: Maker, call: Call) -> None:
    call["mat_b"] = np.zeros(tuple(call["mat_b"].shape), NUMPY_DTYPES[problem.cell.dtype])


def _set(**values: Any) -> Callable[[Problem, Maker, Call], None]:
    def spoil(problem: Problem, maker: Maker, call: Call) -> None:
        call.update(values)

    return spoil


def _result_shape(problem: Problem) -> tuple[int, ...]:
    columns = problem.n // (2 if problem.cell.gate else 1)
    if problem.cell.form == "ragged_m":
        return problem.rows, columns
    return len(problem.sizes), problem.k, columns


def _plain_rm(problem: Problem) -> bool:
    return _ragged_m(problem) and problem.cell.chain == "store"


_P, _D, _C = InvalidProblemError, InvalidDtypeError, InvalidConfigError

#: Faults that only arrays on a device can have.
_ON_GPU = ("host array", "float array", "two dimensions")

FAULTS: dict[str, Fault] = {
    "other k": Fault(_P, ("mat_b:",), _always, _other_k),
    "one offset more": Fault(_P, ("offs:",), _ragged_m, _one_offset_more),
    "falling": Fault(_P, ("offs:",), lambda p: len(p.sizes) > 0, _falling),
    "beyond": Fault(_P, ("offs:",), lambda p: len(p.sizes) > 0, _beyond),
    "fractions": Fault(_P, ("offs:",), lambda p: len(p.sizes) > 0, _fractions),
    "float array": Fault(_D, ("offs:",), lambda p: len(p.sizes) > 0, _float_array),
    "two dimensions": Fault(_D, ("offs:",), lambda p: len(p.sizes) > 0, _two_dimensions),
    "no offsets": Fault(_P, ("offs:",), _always, _set(offs=None)),
    "another type": Fault(_D, ("mat_b:",), _always, _another_type),
    "whole numbers": Fault(_D, ("mat_a:",), _always, _whole_numbers),
    "batch": Fault(_P, ("mat_a:",), _always, _batch),
    "host array": Fault(_D, ("mat_b:",), _always, _host_array),
    "out of another shape": Fault(_P, ("out:",), _always, _out_of_another_shape),
    "out that coincides": Fault(
        _P, ("out:",), lambda p: _result_shape(p)[0] > 1 and all(_result_shape(p)),
        _out_that_coincides,
    ),
    "nothing to add to": Fault(_P, ("accumulate:",), _always, _nothing_to_add_to),
    "adds in 16 bits": Fault(_D, ("accumulate:",), _always, _adds_in_16_bits),
    "accumulate is a text": Fault(_P, ("accumulate:",), _always, _set(accumulate="no")),
    "bias of another shape": Fault(_P, ("bias:",), _plain_rm, _bias_of_another_shape),
    "bias for wgrad": Fault(_P, ("epilogue:",), lambda p: not _ragged_m(p), _bias_for_wgrad),
    "scale of another type": Fault(_D, ("scale:",), _plain_rm, _scale_of_another_type),
    "gate without a factor": Fault(_P, ("epilogue:",), _plain_rm, _gate_without_a_factor),
    "steps in another order": Fault(_P, ("epilogue:",), _plain_rm, _steps_in_another_order),
    "epilogue is a text": Fault(_P, ("epilogue:",), _plain_rm, _set(epilogue="bias")),
    "unknown kernel": Fault(_C, ("kernel:", "config:"), lambda p: not _result_is_empty(p),
                            _set(config="k9")),
    "unknown config": Fault(_C, ("config:",), lambda p: not _result_is_empty(p),
                            _set(config={"block_m": 64})),
}  # fmt: skip

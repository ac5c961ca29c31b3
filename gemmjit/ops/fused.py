"""The arrays that an epilogue reads: what they must be, and what a kernel is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemmjit.arrays import ArrayView, Frontend, frontend_of
from gemmjit.dtypes import F32, DType
from gemmjit.epilogue import KINDS, Accumulate, Bias, Epilogue, Step, SwiGLU, chain_of
from gemmjit.errors import InvalidDtypeError, InvalidProblemError
from gemmjit.ops.validation import check_overlap, device_name
from gemmjit.variant import Form

__all__ = ["Fused", "FusedViews", "check_flag", "fused_of", "steps_of"]

Shape = tuple[int, ...]

#: What a call takes for a step that is named as in the name of a chain.
_WAYS = (
    ("bias", "bias=values"),
    ("swiglu_split", 'gemmjit.SwiGLU("split")'),
    ("swiglu", 'gemmjit.SwiGLU("interleaved")'),
    ("row_scale", "gemmjit.RowScale(scale)"),
    ("accumulate", "accumulate=True"),
)


@dataclass(frozen=True, slots=True)
class FusedViews:
    """The steps of a call with views of what they read, by the keyword of the step."""

    steps: tuple[Epilogue, ...]
    views: Mapping[str, ArrayView]

    def describe(
        self, form: Form, a: ArrayView, b: ArrayView, num_groups: int
    ) -> tuple[str, tuple[Shape, ...]]:
        """Return the name of the chain and the strides of its operands, after checking them.

        Raises
        ------
        InvalidProblemError
            A step that the form does not have, an odd N under a gate, a wrong shape or device.
        InvalidDtypeError
            An element type that is neither that of `mat_a` nor float32.
        """
        if form == "ragged_k" and any(not isinstance(step, Accumulate) for step in self.steps):
            names = ", ".join(type(step).__name__ for step in self.steps)
            raise InvalidProblemError(
                "epilogue: expected none for (K, M) @ (M, N), which is wgrad and takes accumulate "
                f"only; got {names}. Apply it to the result"
            )
        n = b.shape[-1]
        if any(isinstance(step, SwiGLU) for step in self.steps) and n % 2:
            raise InvalidProblemError(
                f"epilogue: expected an even N for SwiGLU, a gate and a factor for each column of "
                f"the result; got mat_b {b.shape}. Pass both in mat_b"
            )
        extents = {"row": a.shape[0], "group": num_groups, "column": n}
        parts, strides = [], []
        for step in self.steps:
            option = step.option
            operand = step.operand
            if operand is not None:
                view = self.views[step.keyword]
                letters = {"row": "M", "group": "G", "column": "N"}
                expected = tuple(extents[dim] for dim in operand.dims)
                named = ", ".join(letters[dim] for dim in operand.dims)
                named = f"({named},)" if len(operand.dims) == 1 else f"({named})"
                if view.shape != expected:
                    raise InvalidProblemError(
                        f"{operand.argument}: expected shape {named} = {expected}; "
                        f"got {view.shape}. Reshape it, as a view will do"
                    )
                if view.device != a.device:
                    raise InvalidProblemError(
                        f"{operand.argument}: expected an array on {device_name(a.device)}, like "
                        f"mat_a; got one on {device_name(view.device)}. Move it there"
                    )
                option = _operand_option(operand.argument, view.dtype, a.dtype)
                if view.shape[-1] > 1 and view.strides[-1] != 1 and "strided" in step.options:
                    option = f"{option}_strided" if option else "strided"
                strides.append(
                    tuple(
                        s if size > 1 else 0
                        for size, s in zip(view.shape, view.strides, strict=True)
                    )
                )
            parts.append(Step(type(step), option).name)
        name = chain_of("+".join(parts) or "store").name
        return name, tuple(strides)

    def check_apart(self, out: ArrayView) -> None:
        """Raise if the result lies over an operand."""
        for step in self.steps:
            if step.operand is not None:
                check_overlap(out, [self.views[step.keyword]], (step.operand.argument,))


@dataclass(frozen=True, slots=True)
class Fused:
    """The steps of a call and the arrays that they read, in the order of the kernel's arguments."""

    steps: tuple[Epilogue, ...]
    keywords: tuple[str, ...]
    arrays: tuple[Any, ...]

    @property
    def accumulates(self) -> bool:
        """Whether the result is added to `out`."""
        return any(isinstance(step, Accumulate) for step in self.steps)

    def signature(self, frontend: Frontend) -> tuple[Any, ...]:
        """Return what the steps and the arrays are, but for addresses."""
        # Steps compare without their arrays.
        return (self.steps, *map(frontend.signature, self.arrays))

    def pointers(self, frontend: Frontend) -> tuple[int, ...]:
        """Return the address of each array."""
        return tuple(map(frontend.pointer, self.arrays))

    def views(self, frontend: Frontend) -> FusedViews:
        """Return the steps with views of their arrays."""
        operands = [step.operand for step in self.steps if step.operand is not None]
        views = {
            keyword: frontend.view(array, operand.argument)
            for keyword, array, operand in zip(self.keywords, self.arrays, operands, strict=True)
        }
        return FusedViews(self.steps, views)


def fused_of(frontend: Frontend, bias: Any, epilogue: Any, accumulate: bool) -> Fused:
    """Return what the arguments of a call say.

    Raises
    ------
    InvalidProblemError
        If steps are none, or out of order; or an array asks for a gradient.
    InvalidDtypeError
        If an array is of another framework than `mat_a`.
    """
    steps = steps_of(bias, epilogue, accumulate)
    keywords, arrays = [], []
    for step in steps:
        if step.operand is None:
            continue
        name, array = step.operand.argument, step.array
        other = frontend_of(array, name)
        if other.name != frontend.name:
            raise InvalidDtypeError(
                f"{name}: expected a {frontend.name} array, like mat_a; got a {other.name} one. "
                "Convert it without a copy through DLPack"
            )
        frontend.check_differentiable(array, name)
        keywords.append(step.keyword)
        arrays.append(array)
    return Fused(steps, tuple(keywords), tuple(arrays))


def check_flag(accumulate: Any) -> None:
    """Raise for an `accumulate` that is no bool: an array, or a text such as "no"."""
    if not isinstance(accumulate, bool):
        raise InvalidProblemError(
            f"accumulate: expected True or False; got {type(accumulate).__name__}. "
            "Convert it with bool()"
        )


def steps_of(bias: Any, epilogue: Any, accumulate: bool) -> tuple[Epilogue, ...]:
    """Return the steps that the arguments of a call name, in order.

    Parameters
    ----------
    bias : array or None
    epilogue : Epilogue, sequence of Epilogue, or None
    accumulate : bool

    Raises
    ------
    InvalidProblemError
        If something else is given, or steps are in another order than that in which they apply.
    """
    given: Iterable[Any] = (epilogue,)
    if epilogue is None:
        given = ()
    elif isinstance(epilogue, Sequence) and not isinstance(epilogue, str):
        given = epilogue
    steps = ([Bias(bias)] if bias is not None else []) + list(given)
    for step in steps:
        if not isinstance(step, KINDS):
            kind = "a class" if isinstance(step, type) else type(step).__name__
            mend = "Make one of it"
            if isinstance(step, str):
                kind, mend = repr(step), f"Pass {_written(step)}"
            raise InvalidProblemError(
                "epilogue: expected gemmjit.SwiGLU(...), gemmjit.RowScale(...), or several of them "
                f"in a tuple; got {kind}. {mend}"
            )
    check_flag(accumulate)
    if accumulate and not any(isinstance(step, Accumulate) for step in steps):
        steps.append(Accumulate())
    stages = [step.stage for step in steps]
    if stages != sorted(set(stages)):
        order = ", ".join(kind.__name__ for kind in KINDS)
        got = ", ".join(type(step).__name__ for step in steps)
        raise InvalidProblemError(
            f"epilogue: expected each step once, in the order in which they apply, {order}; "
            f"got {got}. Reorder them"
        )
    return tuple(steps)


def _written(name: str) -> str:
    """Return what a call takes instead of the name of a chain."""
    ways = (_way(part) for part in name.split("+"))
    return " and ".join(way for way in ways if way) or "one of these"


def _way(step: str) -> str:
    return next((way for start, way in _WAYS if step.lower().startswith(start)), "")


def _operand_option(argument: str, dtype: DType, in_dtype: DType) -> str:
    if dtype is in_dtype:
        return ""
    if dtype is F32:
        return "f32"
    raise InvalidDtypeError(
        f"{argument}: expected {in_dtype}, like mat_a, or float32; got {dtype}. Cast it"
    )

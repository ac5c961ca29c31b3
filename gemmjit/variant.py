"""What a problem dictates about the compiled code, tile apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from gemmjit.dtypes import BF16, DType, dtype_of
from gemmjit.epilogue import Chain, chain_of
from gemmjit.errors import InvalidConfigError
from gemmjit.pickles import NamedFields

__all__ = ["MAX_SHAPE", "Form", "Schedule", "Variant"]

#: Largest extent of an operand: kernels count in 32 bits, and round up to whole tiles.
MAX_SHAPE = 2**31 - 1024

Form = Literal["ragged_m", "ragged_k"]
Schedule = Literal["list", "scan", "compact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant(NamedFields):
    """Types, memory orders, alignment classes, schedule and epilogue of one compiled kernel.

    Attributes
    ----------
    form : {"ragged_m", "ragged_k"}
        Whether groups cut the rows of the result (fprop, dgrad) or the contraction (wgrad).
    in_dtype, out_dtype : DType
        Element types of the operands and of the result.
    a_k_major, b_k_major : bool
        Whether the contraction is the contiguous dimension of A (of B); otherwise M (N) is.
    a_vector, b_vector : bool
        Whether the operand can be loaded in aligned vectors along that dimension. If not, single
        elements are loaded at any strides.
    d_paired : bool
        Whether two neighbouring columns of the result can be stored at once.
    a_blocked, b_blocked : bool
        k3: whether an M-major A (N-major B) is loaded as blocks of 64 columns, of which M (N) must
        be a multiple.
    d_by_tma : bool
        k3: whether the result is stored by TMA.
    schedule : {"list", "scan", "compact"}
        Tile list from the host, offsets walked by the kernel, or tile list from another kernel.
    epilogue : str
        Name of a chain of steps, as in ``bias+swiglu_split+row_scale``; see `gemmjit.epilogue`.
        ``store`` for none, ``accumulate`` to add to the result.
    shape_n, shape_k : int
        N and K compiled in, or 0.
    """

    form: Form = "ragged_m"
    in_dtype: DType = BF16
    out_dtype: DType = BF16
    a_k_major: bool = True
    b_k_major: bool = False
    a_vector: bool = True
    b_vector: bool = True
    d_paired: bool = True
    a_blocked: bool = False
    b_blocked: bool = False
    d_by_tma: bool = False
    schedule: Schedule = "scan"
    epilogue: str = "store"
    shape_n: int = 0
    shape_k: int = 0

    @property
    def chain(self) -> Chain:
        """The steps of the epilogue."""
        return chain_of(self.epilogue)

    def to_dict(self) -> dict[str, object]:
        """Return the fields as a JSON-compatible mapping."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["in_dtype"] = self.in_dtype.name
        values["out_dtype"] = self.out_dtype.name
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Variant:
        """Build a variant from a mapping; element types may be names.

        Where `a_k_major` is not given, A lies as in training: for wgrad a transposed activation.

        Raises
        ------
        InvalidConfigError
            If a name is unknown or a value is not one of those allowed.
        """
        given = dict(values)
        known = {f.name: f for f in fields(cls)}
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise InvalidConfigError(
                f"variant: unknown field {', '.join(unknown)}; there are {', '.join(known)}"
            )
        for name in ("in_dtype", "out_dtype"):
            if name in given:
                given[name] = dtype_of(given[name], name)
        if given.get("form") == "ragged_k":
            given.setdefault("a_k_major", False)
        variant = cls(**given)
        wrong = variant.wrong_values()
        if wrong:
            raise InvalidConfigError("variant: " + "; ".join(wrong))
        return variant

    def wrong_values(self) -> list[str]:
        """Return a reason for each field whose value is not one of those that there are."""
        reasons = []
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed or type(value) is not type(allowed[0]):
                names = ", ".join(map(str, allowed))
                reasons.append(f"{name} must be one of {names}; got {value!r}")
        try:
            chain_of(self.epilogue)
        except InvalidConfigError as error:
            reasons.append(str(error))
        for name in ("in_dtype", "out_dtype"):
            if not isinstance(getattr(self, name), DType):
                reasons.append(f"{name} must be an element type; got {getattr(self, name)!r}")
        for name in ("shape_n", "shape_k"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= MAX_SHAPE:
                reasons.append(
                    f"{name} must be a whole number from 0 to {MAX_SHAPE}; got {value!r}"
                )
        return reasons

    def __str__(self) -> str:
        a = ("k" if self.a_k_major else "m") + ("" if self.a_vector else "1")
        b = ("k" if self.b_k_major else "n") + ("" if self.b_vector else "1")
        a += "b" if self.a_blocked else ""
        b += "b" if self.b_blocked else ""
        d = self.out_dtype.short + ("" if self.d_paired else "x1") + ("t" if self.d_by_tma else "")
        parts = [self.form.replace("ragged_", "r"), self.in_dtype.short, a + b, d, self.schedule]
        if self.epilogue != "store":
            parts.append(self.epilogue.replace("accumulate", "acc").replace("+", "_"))
        if self.shape_n or self.shape_k:
            parts.append(f"n{self.shape_n}k{self.shape_k}")
        return "_".join(parts)


_CHOICES: dict[str, tuple[object, ...]] = {
    "form": get_args(Form),
    "schedule": get_args(Schedule),
    **{
        name: (False, True)
        for name in (
            "a_k_major",
            "b_k_major",
            "a_vector",
            "b_vector",
            "d_paired",
            "a_blocked",
            "b_blocked",
            "d_by_tma",
        )
    },
}

"""Instruction descriptors of `tcgen05.mma` (PTX ISA 9.1, section 9.7.16.4.2, tables 39, 42 to 44).

Every field is checked: reserved bits, types that the kind does not have, shapes that it cannot do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from gemmjit.emulator.faults import MemoryFault, UnknownInstruction

__all__ = ["BLOCK_SCALED", "KINDS", "InstructionDescriptor", "decode_instruction"]

_SMALL = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_PACKED = {1: "e2m1"}

#: Element types by code, and K, of every kind.
KINDS: dict[str, tuple[dict[int, str], int]] = {
    "f16": ({0: "f16", 1: "bf16"}, 16),
    "tf32": ({2: "tf32"}, 8),
    "f8f6f4": (_SMALL, 32),
    "i8": ({0: "u8", 1: "s8"}, 32),
    "mxf8f6f4": (_SMALL, 32),
    "mxf4": (_PACKED, 64),
    "mxf4nvf4": (_PACKED, 64),
}
#: Kinds with block scales.
BLOCK_SCALED = ("mxf8f6f4", "mxf4", "mxf4nvf4")

_RESULTS = {
    "f16": {0: "f16", 1: "f32"}, "tf32": {1: "f32"}, "f8f6f4": {0: "f16", 1: "f32"},
    "i8": {2: "s32"},
}  # fmt: skip
# A rule: holds, field, what is expected, what there is.
_Rule = tuple[bool, str, object, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionDescriptor:
    """What the 32 bits say.

    Attributes
    ----------
    m, n, k : int
        Extents over all blocks that take part.
    a_type, b_type, d_type : str
        Element types as PTX spells them.
    negate_a, negate_b : bool
    mn_major_a, mn_major_b : bool
        The transpose bits.
    saturate : bool
        Clamp integer sums.
    scale_type : str
        ``ue8m0`` or ``ue4m3``, empty without block scales.
    scale_a, scale_b : int
        Byte of the word where a row's scales start.
    """

    m: int
    n: int
    k: int
    a_type: str
    b_type: str
    d_type: str
    negate_a: bool
    negate_b: bool
    mn_major_a: bool
    mn_major_b: bool
    saturate: bool = False
    scale_type: str = ""
    scale_a: int = 0
    scale_b: int = 0


def _field(bits: int, low: int, width: int) -> int:
    return bits >> low & ((1 << width) - 1)


@lru_cache(maxsize=1024)
def decode_instruction(
    kind: str, bits: int, cta_group: int, scales: int = 0, stationary: bool = False
) -> InstructionDescriptor:
    """Read an instruction descriptor.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    bits : int
        The 32-bit operand.
    cta_group : {1, 2}
    scales : int
        Scales of a row in K, of the block-scaled kinds.
    stationary : bool
        Whether it is of `.ws`, which has other shapes, and bits for the largest shift of B.

    Raises
    ------
    MemoryFault
        Naming the field that breaks a rule.
    UnknownInstruction
        If the descriptor asks for what is not emulated: sparse A, K of 96.
    """
    opcode = "tcgen05.mma.ws" if stationary else "tcgen05.mma"
    text = f"{opcode} kind::{kind} instruction descriptor {bits:#010x}"
    if _field(bits, 2, 1):
        raise UnknownInstruction(f"{text}: sparse matrices have no semantics in the emulator")
    scaled = kind in BLOCK_SCALED
    packed = kind in ("mxf4", "mxf4nvf4")
    if packed and _field(bits, 31, 1):
        raise UnknownInstruction(f"{text}: K of 96 has no semantics in the emulator")
    types, k = KINDS[kind]
    m = _field(bits, 27, 2) << 7 if scaled else _field(bits, 24, 5) << 4
    n = _field(bits, 17, 6) << 3
    codes = _field(bits, 7, 3), _field(bits, 10, 2 if packed else 3)
    rules = [*_fixed_fields(bits, scaled, packed, stationary), *_types(kind, bits, codes)]
    rules += _stationary_shape(m, n) if stationary else _shape(kind, m, n, cta_group)
    rules += _operations(kind, bits, n, types.get(codes[1], ""), cta_group)
    if scaled:
        rules += _scales(kind, bits, scales)
    for holds, name, expected, got in rules:
        if not holds:
            raise MemoryFault(f"{text}: {name}: expected {expected}; got {got}")
    return InstructionDescriptor(
        m=m, n=n, k=k, a_type=types[codes[0]], b_type=types[codes[1]],
        d_type="f32" if scaled else _RESULTS[kind][_field(bits, 4, 2)],
        negate_a=bool(_field(bits, 13, 1)), negate_b=bool(_field(bits, 14, 1)),
        mn_major_a=bool(_field(bits, 15, 1)), mn_major_b=bool(_field(bits, 16, 1)),
        saturate=not scaled and bool(_field(bits, 3, 1)),
        scale_type=("ue8m0" if _field(bits, 23, 1) else "ue4m3") if scaled else "",
        scale_a=_field(bits, 29, 2) if scaled else 0, scale_b=_field(bits, 4, 2) if scaled else 0,
    )  # fmt: skip


def _fixed_fields(bits: int, scaled: bool, packed: bool, stationary: bool) -> Iterator[_Rule]:
    fields: list[tuple[int, int]] = [(0, 2), (6, 1)]
    if scaled:
        fields += [(3, 1), (24, 3), (12, 1) if packed else (31, 1)]
    else:
        fields += [(23, 1), (29, 1)]
        if not stationary:
            fields.append((30, 2))
    for low, width in fields:
        got = _field(bits, low, width)
        yield got == 0, f"bits {low} to {low + width - 1}", 0, got


def _types(kind: str, bits: int, codes: tuple[int, int]) -> Iterator[_Rule]:
    types = KINDS[kind][0]
    for name, code in zip(("atype", "btype"), codes, strict=True):
        yield code in types, name, f"one of {types}", code
    if kind in BLOCK_SCALED:
        return
    results, code = _RESULTS[kind], _field(bits, 4, 2)
    yield code in results, "dtype", f"one of {results}", code
    if kind == "f16":
        yield codes[0] == codes[1], "btype", f"that of A, {codes[0]}", codes[1]
        half = code == 0
        yield not (half and codes[0] == 1), "dtype", "F32 with BF16 operands", "F16"
    yield not _field(bits, 3, 1) or kind == "i8", "saturate", "0 but for kind::i8", 1


def _shape(kind: str, m: int, n: int, cta_group: int) -> Iterator[_Rule]:
    allowed_m: tuple[int, ...] = (128, 256) if cta_group == 2 else (64, 128)
    if kind in BLOCK_SCALED and cta_group == 1:
        allowed_m = (128,)
    yield m in allowed_m, "M", f"one of {allowed_m}", m
    step = 8 * cta_group
    if kind == "i8":
        step = 32 if cta_group == 2 else 8 if n <= 32 else 16
    yield step <= n <= 256 and n % step == 0, "N", f"a multiple of {step} up to 256", n


def _stationary_shape(m: int, n: int) -> Iterator[_Rule]:
    yield m in (32, 64, 128), "M", "one of (32, 64, 128)", m
    yield n in (64, 128, 256), "N", "one of (64, 128, 256)", n


def _operations(kind: str, bits: int, n: int, b_type: str, cta_group: int) -> Iterator[_Rule]:
    if kind == "i8":
        yield not _field(bits, 13, 2), "negate", "0 for integers", _field(bits, 13, 2)
    transposed = _field(bits, 15, 2)
    if kind in ("mxf4", "mxf4nvf4"):
        yield not transposed, "transpose", "0 for packed 4-bit elements", transposed
    elif transposed & 2 and kind in ("f8f6f4", "mxf8f6f4", "i8"):
        step = 16 * cta_group
        yield n % step == 0, "N", f"a multiple of {step} with an N-major B of {b_type}", n


def _scales(kind: str, bits: int, scales: int) -> Iterator[_Rule]:
    is_ue8m0 = _field(bits, 23, 1)
    ue4m3 = kind == "mxf4nvf4" and scales == 4
    yield is_ue8m0 == 1 or ue4m3, "scale type", "1 (UE8M0)", is_ue8m0
    allowed = {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)}[scales]
    for name, low in (("SFA id", 29), ("SFB id", 4)):
        got = _field(bits, low, 2)
        yield got in allowed, name, f"one of {allowed}", got

"""The modifiers that builders understand, by opcode: anything else is refused.

A builder may look only at the modifiers that change its semantics; the others must be known to
change nothing. Types are not listed. Opcodes that are not listed check their own form.
"""

from __future__ import annotations

from gemmjit.emulator.ptx_types import PTX_TYPES

__all__ = ["unknown_modifiers"]

_ROUNDING = "rn rz rm rp"
_COMPARE = (
    "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor ftz"
)  # fmt: skip
_ORDER = "weak relaxed acquire release acq_rel volatile mmio cta cluster gpu sys"
_SPACES = "global shared shared::cta shared::cluster local const param param::entry param::func"
_CACHE = (
    "ca cg cs cv lu nc wb wt L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last "
    "L1::no_allocate L2::evict_normal L2::evict_first L2::evict_last L2::cache_hint L2::64B "
    "L2::128B L2::256B"
)  # fmt: skip
_VECTORS = "v2 v4 v8"

_ALLOWED = {
    "add": f"{_ROUNDING} ftz sat cc", "sub": f"{_ROUNDING} ftz sat cc", "addc": "cc", "subc": "cc",
    "mul": f"{_ROUNDING} ftz sat lo hi wide", "fma": f"{_ROUNDING} ftz sat relu",
    "mad": f"{_ROUNDING} ftz sat lo hi wide cc", "madc": "lo hi cc",
    "mul24": "lo hi", "mad24": "lo hi", "sad": "", "dp4a": "", "dp2a": "lo hi",
    "min": "ftz NaN relu xorsign abs", "max": "ftz NaN relu xorsign abs", "abs": "ftz",
    "neg": "ftz", "div": f"{_ROUNDING} ftz approx full", "rem": "",
    "rcp": f"{_ROUNDING} ftz approx",
    "sqrt": f"{_ROUNDING} ftz approx", "rsqrt": "approx ftz", "sin": "approx ftz",
    "cos": "approx ftz", "lg2": "approx ftz", "ex2": "approx ftz", "tanh": "approx",
    "copysign": "", "testp": "finite infinite number notanumber normal subnormal",
    "and": "", "or": "", "xor": "", "not": "", "cnot": "", "shl": "", "shr": "", "brev": "",
    "clz": "", "popc": "", "bfind": "shiftamt", "bfe": "", "bfi": "", "bmsk": "clamp wrap",
    "szext": "clamp wrap", "fns": "", "lop3": "", "shf": "l r clamp wrap",
    "prmt": "f4e b4e rc8 ecl ecr rc16",
    "setp": _COMPARE, "set": _COMPARE, "selp": "", "slct": "ftz",
    "cvt": f"{_ROUNDING} rna rni rzi rmi rpi ftz sat satfinite relu pack",
    "mov": "", "cvta": f"to {_SPACES}", "isspacep": _SPACES,
    "ld": f"{_ORDER} {_SPACES} {_CACHE} {_VECTORS}", "ldu": f"global {_VECTORS}",
    "st": f"{_ORDER} {_SPACES} {_CACHE} {_VECTORS} async bulk "
    "mbarrier::complete_tx::bytes",
    "atom": f"{_ORDER} {_SPACES} {_VECTORS} add min max and or xor exch inc dec cas noftz "
    "L2::cache_hint",
    "red": f"{_ORDER} {_SPACES} {_VECTORS} add min max and or xor inc dec noftz L2::cache_hint "
    "async mbarrier::complete_tx::bytes",
    "shfl": "sync idx up down bfly", "vote": "sync any all uni ballot", "match": "sync any all",
    "redux": "sync add min max and or xor abs NaN", "elect": "sync", "activemask": "",
    "bar": "cta sync arrive red warp popc and or", "bra": "uni", "brx": "idx", "call": "uni",
    "ret": "uni", "exit": "", "trap": "", "brkpt": "",
    "barrier": "cta sync arrive red warp cluster wait aligned popc and or release relaxed acquire",
    "mbarrier": f"init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait parity "
    f"noComplete pending_count {_ORDER} shared shared::cta shared::cluster",
    "membar": "cta gl sys", "mapa": "shared::cluster", "getctarank": "shared::cluster",
    "fence": "acq_rel sc acquire release cta cluster gpu sys proxy alias async async::generic "
    "mbarrier_init sync_restrict::shared::cta sync_restrict::shared::cluster global shared::cta "
    "shared::cluster tensormap::generic",
    "setmaxnreg": "inc dec sync aligned", "nanosleep": "", "pmevent": "mask",
    "prefetch": "global local L1 L2 L2::evict_last L2::evict_normal tensormap const param",
    "prefetchu": "L1", "applypriority": "global L2::evict_normal", "discard": "global L2",
    "createpolicy": "fractional range cvt L2::evict_last L2::evict_normal L2::evict_first "
    "L2::evict_unchanged L2 global",
}  # fmt: skip
_TABLE = {opcode: frozenset(words.split()) for opcode, words in _ALLOWED.items()}


def unknown_modifiers(opcode: str, mods: tuple[str, ...]) -> list[str]:
    """Return the modifiers that no builder of this opcode knows."""
    allowed = _TABLE.get(opcode)
    if allowed is None:
        return []
    return [m for m in mods if m not in allowed and m not in PTX_TYPES]

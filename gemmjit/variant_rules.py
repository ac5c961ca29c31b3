"""Which variants a kernel has; part of `gemmjit.constraints`."""

from __future__ import annotations

from gemmjit.kernels import Kernel, Variant

__all__ = ["variant_reasons"]


def variant_reasons(kernel: Kernel, variant: Variant) -> list[str]:
    """Return every rule that a variant breaks on a kernel, whatever its tile."""
    reasons = _form_reasons(kernel, variant) + _operand_reasons(kernel, variant)
    return reasons + _trait_reasons(kernel, variant)


def _form_reasons(kernel: Kernel, variant: Variant) -> list[str]:
    """Return what does not go together with the form."""
    reasons = []
    if variant.form not in kernel.forms:
        reasons.append(f"form: {kernel.name} has {', '.join(kernel.forms)}; got {variant.form}")
    if variant.form == "ragged_k" and variant.schedule != "scan":
        reasons.append(
            f"schedule: ragged_k has as many tiles for every group and takes scan; "
            f"got {variant.schedule}"
        )
    if variant.form == "ragged_k" and variant.shape_k:
        reasons.append(
            f"shape_k: the contraction of ragged_k differs from group to group, expected 0; "
            f"got {variant.shape_k}"
        )
    return reasons


def _trait_reasons(kernel: Kernel, variant: Variant) -> list[str]:
    """Return what does not go together with ways to load and store that not every kernel has."""
    reasons = [
        f"{name}: {kernel.name} has no such way; expected False, got True"
        for name in ("a_blocked", "b_blocked", "d_by_tma")
        if getattr(variant, name) and name not in kernel.trait_names
    ]
    if variant.a_blocked and variant.a_k_major:
        reasons.append("a_blocked: expected an M-major mat_a; got a K-major one")
    if variant.b_blocked and variant.b_k_major:
        reasons.append("b_blocked: expected an N-major mat_b; got a K-major one")
    if variant.d_by_tma and (variant.out_dtype.bits != 16 or variant.epilogue != "store"):
        reasons.append(
            "d_by_tma: expected results of 16 bits that are stored; "
            f"got {variant.out_dtype}, {variant.epilogue}"
        )
    return reasons


def _operand_reasons(kernel: Kernel, variant: Variant) -> list[str]:
    """Return what a kernel that loads through TMA misses in the operands."""
    if not kernel.loads_by_tma:
        return []
    reasons = []
    if variant.a_k_major != (variant.form == "ragged_m"):
        reasons.append(
            f"mat_a: {kernel.name} loads it with the ragged dimension outside; got it contiguous"
        )
    if variant.form == "ragged_k" and variant.b_k_major:
        reasons.append(
            f"mat_b: {kernel.name} loads it with the ragged dimension outside; got it contiguous"
        )
    for name in ("a", "b"):
        if not getattr(variant, f"{name}_vector"):
            reasons.append(
                f"mat_{name}: {kernel.name} loads it by TMA, which needs one contiguous dimension, "
                f"and pointer and strides in multiples of 16 bytes; got {name}_vector False"
            )
    return reasons

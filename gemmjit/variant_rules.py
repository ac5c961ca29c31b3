"""Which variants a kernel has; part of `gemmjit.constraints`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmjit.config import Config, Sm90WgmmaConfig
from gemmjit.dtypes import F32
from gemmjit.kernels import Kernel, Variant
from gemmjit.problem import Problem

__all__ = ["scheduled", "tile_reasons", "variant_reasons"]


def scheduled(fields: Mapping[str, Any], config: object) -> dict[str, Any]:
    """Return fields of a variant with the schedule that a tile asks for, where none is given."""
    compact = isinstance(config, Config) and config.schedule == "compact"
    implied = {"schedule": "compact"} if compact and fields.get("form") != "ragged_k" else {}
    return {**implied, **fields}


def variant_reasons(kernel: Kernel, variant: Variant, problem: Problem | None) -> list[str]:
    """Return every rule that a variant breaks on a kernel, whatever its tile.

    Where the problem is known that needs the variant, reasons name its strides.
    """
    reasons = _form_reasons(kernel, variant) + _operand_reasons(kernel, variant, problem)
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
    return reasons + _epilogue_reasons(kernel, variant)


def _epilogue_reasons(kernel: Kernel, variant: Variant) -> list[str]:
    """Return which steps of the epilogue there are not."""
    reasons = []
    steps = variant.chain.keywords
    if variant.form == "ragged_k" and set(steps) - {"accumulate"}:
        reasons.append(
            f"epilogue: ragged_k (wgrad) takes store or accumulate; got {variant.epilogue}"
        )
    missing = [step for step in steps if step not in kernel.epilogues]
    if missing:
        reasons.append(
            f"epilogue: {kernel.name} has {', '.join(kernel.epilogues)}; got {', '.join(missing)}"
        )
    if variant.chain.accumulates and variant.out_dtype != F32:
        reasons.append(
            f"out_dtype: {variant.epilogue} takes float32, to which every call adds; "
            f"got {variant.out_dtype}"
        )
    if variant.shape_n % variant.chain.folds:
        reasons.append(
            f"shape_n: expected a multiple of {variant.chain.folds} for {variant.epilogue}; "
            f"got {variant.shape_n}"
        )
    return reasons


def tile_reasons(kernel: Kernel, config: Config, variant: Variant) -> list[str]:
    """Return why a tile does not go together with a schedule or an epilogue."""
    reasons = _schedule_reasons(config, variant)
    return reasons or _epilogue_tile_reasons(kernel, config, variant)


def _schedule_reasons(config: Config, variant: Variant) -> list[str]:
    """Return why no call could use the kernel: of its two schedules one is compact, one not.

    Offsets on the device need the variant compact if and only if the tile says so. Those on the
    host need the variant list, whatever the tile says; wgrad always scans.
    """
    asked, has = config.schedule == "compact", variant.schedule == "compact"
    if asked == has or variant.form == "ragged_k" or variant.schedule == "list":
        return []
    if has:
        return [
            "schedule: the variant compact takes a tile with schedule='compact'; "
            f"got {config.schedule!r}. Give the tile that, or the variant schedule='scan'"
        ]
    return [
        "schedule: a tile with schedule='compact' takes the variant compact, or list for offsets "
        f"on the host; got {variant.schedule}. Leave the variant's schedule out, or that of the "
        "tile"
    ]


def _epilogue_tile_reasons(kernel: Kernel, config: Config, variant: Variant) -> list[str]:
    """Return why a tile does not go together with an epilogue.

    Half of its columns are gates and half their factors. In an N-major B both come to k2 as TMA
    boxes of 128 bytes, and half a tile is a whole number of them. The pointers of a bias would be
    spilled in the main loop of k2's largest tile if two blocks had to share a multiprocessor.
    """
    if (
        kernel.name == "k2"
        and "bias" in variant.chain.keywords
        and config.min_blocks_per_sm > 1
        and config.block_m * config.block_n >= 128 * 128
    ):
        return [
            f"min_blocks_per_sm: k2 with a bias takes 1 for a tile of {config.block_m} x "
            f"{config.block_n}, more would spill; got {config.min_blocks_per_sm}"
        ]
    if isinstance(config, Sm90WgmmaConfig) and config.split_rows and variant.form == "ragged_k":
        reasons = _split_reasons(config, variant)
        if reasons:
            return reasons
    if kernel.name == "k2" and variant.chain.gate == "split" and not variant.b_k_major:
        box = 128 // variant.in_dtype.itemsize
        if config.block_n // 2 % box:
            return [
                f"block_n: k2 with swiglu_split and an N-major mat_b takes a multiple of "
                f"{2 * box}; got {config.block_n}"
            ]
    return []


def _split_reasons(config: Sm90WgmmaConfig, variant: Variant) -> list[str]:
    """Return why k3 has no registers left to add pieces up, if so: something would be spilled."""
    if config.block_n <= 128:
        return []
    told = f"got {config.split_rows} with {config}, {variant}"
    if not variant.d_by_tma:
        return [
            "split_rows: k3 takes 0 for more than 128 columns that are not stored by TMA, they "
            f"would spill; {told}"
        ]
    if variant.chain.accumulates and config.store_boxes > 1:
        return [
            "split_rows: k3 takes 0 for more than 128 columns where D is read, they would spill; "
            f"{told}"
        ]
    return []


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
    return reasons


def _operand_reasons(kernel: Kernel, variant: Variant, problem: Problem | None) -> list[str]:
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
            got = f"{name}_vector False" if problem is None else _layout(problem, name)
            reasons.append(
                f"mat_{name}: {kernel.name} loads it by TMA, which needs one contiguous dimension, "
                f"and pointer and other strides in multiples of 16 bytes; got {got}"
            )
    return reasons


def _layout(problem: Problem, name: str) -> str:
    """Return the strides and the alignment of an operand, in bytes."""
    s, size = problem.strides, problem.in_dtype.itemsize
    of_b = (s.bg, s.bk, s.bn) if problem.form == "ragged_m" else (s.bk, s.bn)
    strides = tuple(stride * size for stride in ((s.am, s.ak) if name == "a" else of_b))
    alignment = problem.a_alignment if name == "a" else problem.b_alignment
    return f"strides of {strides} bytes and a pointer on a multiple of {alignment}"

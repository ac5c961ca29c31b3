"""Bugs to plant in the project's own kernels: what is changed, and how it must show.

Each is one edit of a template's text, of the kind that a person makes: a wait, a barrier or a fence
left out, a count or a parity that is off by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gemmjit import SimtConfig, Sm80MmaConfig, Sm90TmaMmaConfig, Sm90WgmmaConfig
from gemmjit.config import Config
from gemmjit.templates import read_template

K0_FILES = ("kernels/simt_grouped_mm.cu.j2",)
K1_FILES = ("kernels/sm80_mma_grouped_mm.cu.j2",)
K2_FILES = ("kernels/sm90_tma_mma_grouped_mm.cu.j2",)
K3_FILES = (
    "kernels/sm90_wgmma_grouped_mm.cu.j2",
    "core/wgmma_tiles.cuh",
    "core/wgmma_load.cuh",
    "core/wgmma_multiply.cuh",
    "core/wgmma_boxes.cuh",
    "core/wgmma_store.cuh",
)

#: The smallest tiles that use everything a kernel has.
TILES: dict[str, Config] = {
    "k0": SimtConfig(),
    "k1": Sm80MmaConfig(block_m=32, block_n=64, num_stages=3),
    "k1 fragments": Sm80MmaConfig(
        block_m=32, block_n=64, num_stages=2, double_buffer_fragments=True
    ),
    "k2": Sm90TmaMmaConfig(block_m=32, block_n=64, num_stages=2),
    "k2 unswizzled": Sm90TmaMmaConfig(block_m=32, block_n=64, num_stages=3, swizzle=0),
    "k3 cooperative": Sm90WgmmaConfig(block_m=128, block_n=64, num_stages=2, pingpong=False),
    "k3 pingpong": Sm90WgmmaConfig(block_m=64, block_n=64, num_stages=3),
    "k3 wide": Sm90WgmmaConfig(block_m=128, block_n=128, num_stages=2, pingpong=False),
    "k3 boxes": Sm90WgmmaConfig(block_m=64, block_n=192, num_stages=2, store_boxes=3),
    "k3 tall": Sm90WgmmaConfig(block_m=128, block_n=64, num_stages=3, store_boxes=2),
}

VALUES = "wrong result"
RACE = "RaceError"
LOCK, BARRIER = "Deadlock", "BarrierFault"
MEMORY = "MemoryFault"
#: ptxas itself sees that wgmma's registers are used without a wait, and says so in its log.
ADVISORY = "CompileError"
#: Garbage instead of a tile may send a loop on a very long way.
ENDLESS = "StepBudgetExceeded"


@dataclass(frozen=True)
class Bug:
    """One edit.

    Attributes
    ----------
    tile : str
        Key of `TILES`.
    files : tuple of str
        Templates of the kernel.
    old, new : str
        Text that occurs exactly once in them, and what takes its place.
    shows_as : tuple of str
        Error types, or `VALUES`; which one depends on where the bug meets the schedule.
    case : str
        Problem on which it can show: the producer passes a slot too early only where the
        contraction is short, since otherwise stages hold it back. For k0 a short one does.
    """

    tile: str
    files: tuple[str, ...]
    old: str
    new: str
    shows_as: tuple[str, ...]
    case: str = "deep"


def bugs_of(
    files: tuple[str, ...],
    tile: str,
    rows: dict[str, tuple[str, str, tuple[str, ...]]],
    case: str = "deep",
) -> dict[str, Bug]:
    kernel = tile.split()[0]
    return {f"{kernel}: {name}": Bug(tile, files, *row, case) for name, row in rows.items()}


def plant(files: tuple[str, ...], old: str, new: str, directory: Path) -> None:
    """Write a changed copy of the one template that has a text into an override directory."""
    texts = {file: read_template(file) for file in files}
    counts = {file: text.count(old) for file, text in texts.items()}
    assert sum(counts.values()) == 1, f"templates have changed: {old!r} occurs in {counts}"
    file = max(files, key=counts.__getitem__)
    place = directory / file
    place.parent.mkdir(parents=True)
    place.write_text(texts[file].replace(old, new))


_STAGE_FULL = "mbarrier_wait(full_barrier(base + STAGE_BARRIERS, stages), stages.parity);"
_STAGE_EMPTY = "mbarrier_wait(empty_barrier(base + STAGE_BARRIERS, stages), stages.parity ^ 1);"
_SLOT_FULL = "mbarrier_wait(full_barrier(base + SLOT_BARRIERS, slots), slots.parity);"
_SLOT_EMPTY = "mbarrier_wait(empty_barrier(base + SLOT_BARRIERS, slots), slots.parity ^ 1);"
_STAGE_FREE = "if (lane == 0) mbarrier_arrive(empty_barrier(base + STAGE_BARRIERS, stages));"
_READS_FENCED = "      fence_async_smem();\n"
_FENCE_INIT = "    fence_mbarrier_init();\n"

_K0 = bugs_of(K0_FILES, "k0", case="flat", rows={
    "no barrier before the slice is read": (
        "      __syncthreads();\n      if (k + BLOCK_K", "      if (k + BLOCK_K", (VALUES,),
    ),
    "no barrier before the slice is overwritten": (
        "      __syncthreads();   // before the next slice overwrites this one\n", "", (VALUES,),
    ),
})  # fmt: skip

_K1 = bugs_of(K1_FILES, "k1", {
    "no wait for the copies": ("      cp_async_wait<NUM_STAGES - 2>();\n", "", (VALUES,)),
    "waits for one group too few": (
        "cp_async_wait<NUM_STAGES - 2>();", "cp_async_wait<NUM_STAGES - 1>();", (VALUES,),
    ),
    "no barrier behind the wait": (
        "      __syncthreads();\n      if (k_tile", "      if (k_tile", (VALUES,),
    ),
    "no barrier before the next tile": (
        "    __syncthreads();   // before the next tile's copies overwrite the stages\n", "",
        (VALUES,),
    ),
    "copies of the loop never committed": (
        "      cp_async_commit();\n      multiply_stage", "      multiply_stage", (VALUES, RACE),
    ),
    "fills the stage that is read": (
        "smem + k_tile % NUM_STAGES * STAGE_BYTES;\n      const int k =",
        "smem + (k_tile + 1) % NUM_STAGES * STAGE_BYTES;\n      const int k =", (VALUES,),
    ),
    "rows of A read without the pad": (
        "((m + low) * A_PITCH + k + high)", "((m + low) * A_INNER + k + high)", (VALUES, MEMORY),
    ),
    "rows of B read with another pad": (
        "((k + low) * B_PITCH + n + second)", "((k + low) * (B_PITCH + 8) + n + second)",
        (VALUES, MEMORY),
    ),
    "copies past the end of an operand": (
        "const bool exists = outer < outer_valid && bytes > 0;", "const bool exists = bytes > 0;",
        (MEMORY,),
    ),
}) | bugs_of(K1_FILES, "k1 fragments", {
    "fragments are loaded into the buffer in use": (
        "load_fragments(f[(s + 1) & 1],", "load_fragments(f[s & 1],", (VALUES,),
    ),
})  # fmt: skip

_K2 = bugs_of(K2_FILES, "k2", {
    "no wait for a full stage": (_STAGE_FULL, ";", (VALUES, RACE)),
    "no wait for an empty stage": (_STAGE_EMPTY, ";", (VALUES, RACE, BARRIER, LOCK)),
    "announces too few bytes": (
        "mbarrier_arrive_expect_tx(full, STAGE_BYTES);",
        "mbarrier_arrive_expect_tx(full, STAGE_BYTES - 128);", (VALUES, RACE, LOCK, BARRIER),
    ),
    "announces too many bytes": (
        "mbarrier_arrive_expect_tx(full, STAGE_BYTES);",
        "mbarrier_arrive_expect_tx(full, STAGE_BYTES + 128);", (LOCK,),
    ),
    "announces no bytes": (
        "mbarrier_arrive_expect_tx(full, STAGE_BYTES);", "mbarrier_arrive(full);",
        (VALUES, RACE, LOCK, BARRIER),
    ),
    "one arrival too few for an empty stage": (
        "STAGE_BARRIERS, 1, MMA_WARPS);", "STAGE_BARRIERS, 1, MMA_WARPS - 1);",
        (VALUES, RACE, LOCK, BARRIER),
    ),
    "one arrival too many for an empty stage": (
        "STAGE_BARRIERS, 1, MMA_WARPS);", "STAGE_BARRIERS, 1, MMA_WARPS + 1);", (LOCK,),
    ),
    "one arrival too many for a full stage": (
        "STAGE_BARRIERS, 1, MMA_WARPS);", "STAGE_BARRIERS, 2, MMA_WARPS);", (LOCK,),
    ),
    "wrong parity of a full stage": (
        _STAGE_FULL, _STAGE_FULL.replace("parity)", "parity ^ 1)"), (VALUES, RACE, LOCK),
    ),
    "wrong parity of an empty stage": (
        _STAGE_EMPTY, _STAGE_EMPTY.replace(" ^ 1", ""), (VALUES, RACE, LOCK, BARRIER),
    ),
    "stages are never freed": (_STAGE_FREE, ";", (LOCK,)),
    "a stage is freed before it is read": (
        f"multiply_stage(acc, a, a + A_BYTES, warp, lane);\n"
        f"      fence_async_smem();\n      __syncwarp();\n      {_STAGE_FREE}",
        f"__syncwarp();\n      {_STAGE_FREE}\n"
        "      multiply_stage(acc, a, a + A_BYTES, warp, lane);",
        (VALUES, RACE),
    ),
    "no fence behind the reads of a stage": (_READS_FENCED, "", (RACE,)),
    "one lane alone fences the reads of a stage": (
        _READS_FENCED, _READS_FENCED.replace("fence_", "if (lane == 0) fence_"), (RACE,),
    ),
    "no fence behind the barriers' init": (_FENCE_INIT, "", (BARRIER, RACE)),
    "no barrier behind the barriers' init": (
        "  __syncthreads();\n  if (warp == MMA_WARPS)", "  if (warp == MMA_WARPS)",
        (BARRIER, RACE),
    ),
    "rows read without the swizzle": (
        "mask(swizzle_mask<SWIZZLE>(row))", "mask(0)", (VALUES,),
    ),
    "the wrong group's B": ("full, x, y, tile.group);", "full, x, y, 0);", (VALUES,)),
}) | bugs_of(K2_FILES, "k2", case="flat", rows={
    "no wait for a full slot": (_SLOT_FULL, ";", (VALUES, RACE, LOCK, BARRIER)),
    "no wait for an empty slot": (_SLOT_EMPTY, ";", (VALUES, RACE, LOCK, BARRIER)),
    "one arrival too few for an empty slot": (
        "SLOT_BARRIERS, 1, MMA_WARPS);", "SLOT_BARRIERS, 1, MMA_WARPS - 1);",
        (VALUES, RACE, LOCK, BARRIER),
    ),
    "wrong parity of a full slot": (
        _SLOT_FULL, _SLOT_FULL.replace("parity)", "parity ^ 1)"), (VALUES, RACE, LOCK, BARRIER),
    ),
    "wrong parity of an empty slot": (
        _SLOT_EMPTY, _SLOT_EMPTY.replace(" ^ 1", ""), (VALUES, RACE, LOCK, BARRIER),
    ),
    "a slot is freed before it is read": (
        "    const int k_count = slot(slots)->w;\n",
        "    if (lane == 0) mbarrier_arrive(empty_barrier(base + SLOT_BARRIERS, slots));\n"
        "    const int k_count = slot(slots)->w;\n", (VALUES, RACE, LOCK, BARRIER),
    ),
}) | bugs_of(K2_FILES, "k2 unswizzled", {
    "no fence behind the reads of a stage without a swizzle": (_READS_FENCED, "", (RACE,)),
    "a stage reused at once": (
        "tile, k, args.dim_n);\n        stages.advance();", "tile, k, args.dim_n);",
        (LOCK, RACE, VALUES, BARRIER),
    ),
})  # fmt: skip

_FULL = "    mbarrier_wait(full_barrier(barriers, stages), stages.parity);\n"
_BYTES = "mbarrier_arrive_expect_tx(full, boxes * BOX_BYTES + B_BYTES);"
BOX_FREE = "    if (!READS_D && ONE_BARRIER && leader) bulk_wait_read<max_int(PLACES - 2, 0)>();\n"
BEFORE_STORE = BOX_FREE + "    sync_consumer(consumer);\n"
_TURN = "      mbarrier_wait(own_turn, (number / CONSUMERS + 1 - consumer) & 1);\n"
_PRODUCTS_DONE = "  wgmma_wait<IN_FLIGHT * K_STEPS / UNROLLED>();\n"
_FREE_LATE = (
    "    if (IN_FLIGHT > 0 && k_tile > 0 && leader) "
    "mbarrier_arrive(empty_barrier(barriers, previous));\n"
)

_K3 = bugs_of(K3_FILES, "k3 cooperative", {
    "no wait for a full stage": (_FULL, "", (VALUES, RACE)),
    "no wait for an empty stage": (_STAGE_EMPTY, ";", (VALUES, RACE, BARRIER, LOCK)),
    "announces too few bytes": (
        _BYTES, _BYTES.replace("B_BYTES)", "B_BYTES / 2)"), (VALUES, RACE, LOCK, BARRIER),
    ),
    "announces too many bytes": (_BYTES, _BYTES.replace("B_BYTES)", "B_BYTES * 2)"), (LOCK,)),
    "announces boxes that are not loaded": (
        _BYTES, "mbarrier_arrive_expect_tx(full, STAGE_BYTES);", (LOCK,),
    ),
    "one arrival too few for an empty stage": (
        "PINGPONG ? 1 : CONSUMERS);", "1);", (VALUES, RACE, LOCK, BARRIER),
    ),
    "one arrival too many for an empty stage": ("PINGPONG ? 1 : CONSUMERS);", "3);", (LOCK,)),
    "wrong parity of a full stage": (
        _FULL, _FULL.replace("parity)", "parity ^ 1)"), (VALUES, RACE, LOCK),
    ),
    "wrong parity of an empty stage": (
        _STAGE_EMPTY, _STAGE_EMPTY.replace(" ^ 1", ""), (VALUES, RACE, LOCK, BARRIER),
    ),
    "no fence behind the barriers' init": (_FENCE_INIT, "", (BARRIER, RACE)),
    "no barrier behind the barriers' init": (
        "  __syncthreads();\n  if (warp < 4)", "  if (warp < 4)", (BARRIER, RACE),
    ),
    "consumers ask for registers that the block does not have": (
        '"n"(CONSUMER_REGISTERS)', '"n"(240)', (LOCK,),
    ),
    "no fence before the products": ("    wgmma_fence();", "", (RACE, ADVISORY)),
    "no wait for the products": (_PRODUCTS_DONE, "", (VALUES, RACE, ADVISORY)),
    "no proxy fence before the store": (
        "    fence_async_smem();\n", "", (RACE, VALUES),
    ),
    "no barrier before the store": (BEFORE_STORE, BOX_FREE, (RACE, VALUES)),
    "results not swizzled": (
        "((BOX_PITCH == 128 ? chunk ^ (row & 7) : chunk ^ (row / 2 & 3)) << 4)", "(chunk << 4)",
        (VALUES,),
    ),
    "exits while stores read": (
        "  if (D_BY_TMA && leader) bulk_wait_read<0>();", "", (RACE,),
    ),
    "wrong stride in a descriptor": (
        "(b_box, B_CHUNK * 128, B_CHUNK * 16)", "(b_box, B_CHUNK * 128, B_CHUNK * 32)",
        (VALUES, RACE),
    ),
    "descriptors do not move along K": ("      a = a.behind(A_STEP);\n", "", (VALUES,)),
    "the last rows are stored too": (
        "FORM == FORM_RAGGED_M ? ROWS - rows :", "FORM == FORM_RAGGED_M ? 0 :",
        (VALUES,),
    ),
}) | bugs_of(K3_FILES, "k3 cooperative", case="flat", rows={
    "no wait for a full slot": (
        f"  {_SLOT_FULL}\n  return *slot_at(slots);", "  return *slot_at(slots);",
        (VALUES, RACE, LOCK, BARRIER, MEMORY, ENDLESS),
    ),
    "no wait for an empty slot": (_SLOT_EMPTY, ";", (VALUES, RACE, LOCK, BARRIER)),
    "one arrival too few for an empty slot": (
        "1 + 4 * CONSUMERS);", "4 * CONSUMERS);", (VALUES, RACE, LOCK, BARRIER),
    ),
}) | bugs_of(K3_FILES, "k3 pingpong", case="flat", rows={
    "the turn is handed on past a late warp": (
        "  if (PINGPONG && k_tiles == 0) sync_consumer(consumer);\n", "", (LOCK,),
    ),
}) | bugs_of(K3_FILES, "k3 pingpong", {
    "no wait for the own turn": (_TURN, "", (VALUES, RACE, LOCK, BARRIER)),
    "wrong parity of the turn": (
        _TURN, _TURN.replace("& 1)", "& 1 ^ 1)"), (VALUES, RACE, LOCK, BARRIER),
    ),
    "the turn is never handed on": (
        "  if (PINGPONG && leader) mbarrier_arrive(next_in_order);\n", "", (LOCK,),
    ),
    "a stage is freed while products read it": (
        _FREE_LATE, _FREE_LATE.replace("k_tile > 0 && ", "").replace("previous", "stages"),
        (VALUES, RACE, LOCK, BARRIER),
    ),
    "the last products are not waited for": (
        "    wgmma_wait<0>();\n", "", (VALUES, RACE, ADVISORY),
    ),
    "both consumers store through one box": (
        "base + STORES + consumer * STORE_BOXES * BOX_BYTES + place * PLACE_BYTES;",
        "base + STORES + place * PLACE_BYTES;", (VALUES, RACE),
    ),
    "one barrier for both consumers": (
        '"r"(1 + consumer)', '"r"(1)', (VALUES, RACE, LOCK, BARRIER),
    ),
})  # fmt: skip

BUGS = _K0 | _K1 | _K2 | _K3

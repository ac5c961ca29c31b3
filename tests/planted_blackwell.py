"""Bugs to plant in the kernels of ``tests/blackwell``: one edit each, and how it must show."""

from __future__ import annotations

from dataclasses import dataclass, field

from blackwell_kernels import Gemm100, Gemm120

VALUES, RACE, LOCK, BARRIER = "wrong result", "RaceError", "Deadlock", "BarrierFault"
MEMORY, UNDECIDED = "MemoryFault", "UndecidedSemantics"

ONE, TWO = Gemm100(), Gemm100(pair=2)
TAKEN = Gemm100(pair=2, control=1)
# Short contractions: what gives tiles back may be late.
FLAT = tuple(Gemm100(pair=pair, block_n=128, dim_k=64, tiles=12) for pair in (1, 2))
FLAT_TAKEN = tuple(Gemm100(pair=pair, control=1, dim_k=64, tiles=12) for pair in (1, 2))
PADDED, PACKED = (Gemm120(packed=p, dim_m=64, dim_n=32) for p in (0, 1))


@dataclass(frozen=True)
class Bug:
    """One edit of a text that occurs exactly once.

    Attributes
    ----------
    shows_as : tuple of str
        Kinds of fault, or `VALUES`; which one depends on where the bug meets the schedule.
    where : tuple of problems
        Every one of them must show it.
    """

    old: str
    new: str
    shows_as: tuple[str, ...]
    where: tuple[Gemm100 | Gemm120, ...] = field(default=(ONE, TWO))


READY = "mbarrier_wait(ready + 8 * accumulator, round);"
FULL = "mbarrier_wait(full + 8 * s, (step + i) / STAGES & 1);"
EMPTY = "mbarrier_wait(empty + 8 * s, ((step + i) / STAGES & 1) ^ 1);"
DRAINED = "mbarrier_wait(drained + 8 * accumulator, round ^ 1);"

SM100 = {
    # The seven that hardware would not forgive and a compiler does not see.
    "no wait for a full stage": Bug(FULL, "", (RACE,)),
    "no wait for an empty stage": Bug(EMPTY, "", (RACE, BARRIER, LOCK, VALUES)),
    "no wait for the accumulator": Bug(READY, "", (RACE, VALUES, LOCK)),
    "half of N in the instruction descriptor": Bug(
        "(BLOCK_N >> 3) << 17", "(BLOCK_N >> 4) << 17", (VALUES,)
    ),
    "adds to fresh tensor memory": Bug("i > 0 || kk > 0", "true", (VALUES,)),
    "another warp's quadrant": Bug("(quadrant << 21)", "((warp & 1) << 21)", (UNDECIDED,)),
    "no wait for loads": Bug("        wait_loads();\n", "", (RACE, VALUES)),
    # More of the same kind.
    "no wait for a drained accumulator": Bug(DRAINED, "", (RACE, BARRIER, VALUES), FLAT),
    "no fence behind the accumulator": Bug(f"{READY}\n      after_sync();", READY, (RACE,)),
    "no fence before the accumulator is given back": Bug(
        "      before_sync();\n      __syncwarp();", "      __syncwarp();", (RACE,)
    ),
    "both accumulators in one place": Bug(
        "multiply(tmem + accumulator * BLOCK_N,", "multiply(tmem,", (RACE, VALUES)
    ),
    "stride of eight rows": Bug("u64(1024 >> 4) << 32", "u64(512 >> 4) << 32", (VALUES,)),
    "swizzle of the descriptor": Bug("2ull << 61", "4ull << 61", (VALUES,)),
    "no version in the descriptor": Bug(" | 1ull << 46", "", (MEMORY,)),
    "short steps along K": Bug(
        "descriptor(from + 32 * kk)", "descriptor(from + 16 * kk)", (VALUES,)
    ),
    "no deallocation": Bug('"tcgen05.dealloc."', '"// tcgen05.dealloc."', (MEMORY,)),
    "deallocates too early": Bug(
        "  before_sync();\n  cluster_sync();\n  after_sync();\n  if (warp == 1) {",
        "  if (warp == 1) {",
        (RACE, MEMORY, VALUES),
        (ONE,),
    ),
    "N is no multiple of 16 in a pair": Bug(
        "(BLOCK_N >> 3) << 17", "(BLOCK_N + 8 >> 3) << 17", (MEMORY,), (TWO,)
    ),
    "half of the bytes announced": Bug(
        "PAIR * (A_BYTES + B_BYTES)", "(A_BYTES + B_BYTES)", (RACE, BARRIER, LOCK, VALUES), (TWO,)
    ),
    "the second block signals its own barrier": Bug(
        "load(to, &a, of_leader(full + 8 * s)",
        "load(to, &a, full + 8 * s",
        (LOCK, BARRIER),
        (TWO,),
    ),
    "both blocks load the same half of B": Bug(
        " + int(rank) * (BLOCK_N / PAIR)", "", (VALUES,), (TWO,)
    ),
    "another thread commits": Bug(
        "        commit(ready + 8 * accumulator);\n      }\n      __syncwarp();",
        "      }\n      __syncwarp();\n"
        "      if (rank == 0 && threadIdx.x % 32 == 31) commit(ready + 8 * accumulator);\n"
        "      __syncwarp();",
        (RACE,),
    ),
    "commits to one block": Bug("BOTH_BLOCKS = 3", "BOTH_BLOCKS = 1", (LOCK,), (TWO,)),
    "no wait for taken responses": Bug(
        "mbarrier_wait(taken, parity ^ 1);", "", (RACE, BARRIER, VALUES, LOCK), FLAT_TAKEN
    ),
    "no fence behind the response": Bug(
        "    fence_async_smem();\n    __syncwarp();", "    __syncwarp();", (RACE,), (TAKEN,)
    ),
}

BOTH = (PADDED, PACKED)
SM120 = {
    "no wait for a full stage": Bug(
        "mbarrier_wait(full + 8 * s, i / STAGES & 1);", "", (RACE, VALUES), BOTH
    ),
    "no wait for an empty stage": Bug(
        "mbarrier_wait(empty + 8 * s, (i / STAGES & 1) ^ 1);", "",
        (RACE, BARRIER, LOCK, VALUES), BOTH,
    ),
    "padding counts as bytes": Bug(
        "A_BYTES / 2 + B_BYTES", "A_BYTES + B_BYTES", (LOCK, BARRIER), (PADDED,)
    ),
    "elements not moved to their bits": Bug("ra[x] <<= 2", "ra[x] <<= 0", (UNDECIDED,), (PADDED,)),
    "rows of scales": Bug("+ 8 * (lane & 1)", "+ 8 * (lane >> 1 & 1)", (UNDECIDED,), BOTH),
    "no fence before the stage is given back": Bug(
        "    fence_async_smem();   // the", "    // the", (RACE,), BOTH
    ),
    "no swizzle": Bug("((chunk ^ (r & 7)) << 4)", "(chunk << 4)", (VALUES,), BOTH),
}  # fmt: skip

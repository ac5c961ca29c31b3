"""Bugs planted in the project's own kernels are found; the kernels as they are stay silent.

A bug is an edit of a template's text. "Found" is a wrong result, or an error of the emulator (or of
the check of the compiler's log), under at least one of the policies and seeds that the test names.
The sound kernels run under all policies and twenty seeds (`slow`; three otherwise).
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gemmjit
from gemmjit import Sm80MmaConfig, Sm90TmaMmaConfig, Sm90WgmmaConfig
from gemmjit.emulator import plan_executor
from gemmjit.emulator.executor import emulate
from gemmjit.errors import CompileError, EmulatorError

K1 = Sm80MmaConfig(block_m=64, block_n=64, block_k=32, num_stages=3)
K2 = Sm90TmaMmaConfig(block_m=64, block_n=64, num_stages=2)
COOPERATIVE = Sm90WgmmaConfig(block_m=128, block_n=64, num_stages=2, pingpong=False)
PINGPONG = Sm90WgmmaConfig(block_m=64, block_n=64, num_stages=3, pingpong=True)
WIDE = Sm90WgmmaConfig(block_m=128, block_n=128, num_stages=2, pingpong=False)
KERNELS = {
    "k1": K1, "k2": K2, "k3 cooperative": COOPERATIVE, "k3 pingpong": PINGPONG, "k3 wide": WIDE,
}  # fmt: skip

SIZES, DIM_K, DIM_N = (130, 0, 3, 70), 264, 136
POLICIES = [("eager", 0), ("lazy", 0)]


def operands():
    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (sum(SIZES), DIM_K)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-3, 4, (len(SIZES), DIM_K, DIM_N)).astype(ml_dtypes.bfloat16)
    return a, b, np.cumsum(SIZES).astype(np.int32)


def expected():
    a, b, _ = operands()
    groups = np.repeat(np.arange(len(SIZES)), SIZES)
    exact = np.einsum("mk,mkn->mn", a.astype(np.float64), b.astype(np.float64)[groups])
    return exact.astype(ml_dtypes.bfloat16)


WANT = expected()


@pytest.fixture
def verdict(monkeypatch):
    """Return a function that runs a kernel and says what is wrong with it, or nothing."""
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_90a")

    def run(config, policy, seed):
        def forced(launches, **keywords):
            keywords |= {"policy": policy, "seed": seed, "unwaited_stores": "error"}
            keywords["max_steps"] = 2_000_000  # a sound run needs a tenth of that
            return emulate(launches, **keywords)

        monkeypatch.setattr(plan_executor, "emulate", forced)
        a, b, ends = operands()
        try:
            got = gemmjit.grouped_mm(a, b, offs=ends, config=config)
        except (CompileError, EmulatorError) as error:
            return f"{type(error).__name__}: {error}"
        return "" if np.array_equal(got, WANT) else "wrong result"

    return run


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(20), marks=pytest.mark.slow)], ids=["three", "twenty"]
)
def test_sound_kernels_are_silent(verdict, kernel, seeds):
    for policy, seed in [*POLICIES, *(("random", s) for s in seeds)]:
        assert verdict(KERNELS[kernel], policy, seed) == "", f"{policy}, seed {seed}"


K3_FILE = "kernels/sm90_wgmma_grouped_mm.cu.j2"
K2_FILE = "kernels/sm90_tma_mma_grouped_mm.cu.j2"
K1_FILE = "kernels/sm80_mma_grouped_mm.cu.j2"
FULL_WAIT = "    mbarrier_wait(full_barrier(barriers, stages), stages.parity);\n"
EMPTY_WAIT = "mbarrier_wait(empty_barrier(base + STAGE_BARRIERS, stages), stages.parity ^ 1);"
BYTES = "boxes * BOX_BYTES + B_BYTES)"
SECOND_SYNC = "    fence_async_smem();\n    sync_consumer(consumer);\n"

# name: (kernel, file, text, replacement)
BUGS = {
    "no full wait": ("k3 cooperative", K3_FILE, FULL_WAIT, ""),
    "no empty wait": ("k3 cooperative", K3_FILE, EMPTY_WAIT, ";"),
    "expects too few bytes": ("k3 cooperative", K3_FILE, BYTES, "boxes * BOX_BYTES + B_BYTES / 2)"),
    "expects too many bytes": (
        "k3 cooperative", K3_FILE, BYTES, "boxes * BOX_BYTES + B_BYTES * 2)",
    ),
    "empty count too small": ("k3 cooperative", K3_FILE, "PINGPONG ? 1 : CONSUMERS);", "1);"),
    "wrong phase": ("k3 cooperative", K3_FILE, EMPTY_WAIT, EMPTY_WAIT.replace(" ^ 1", "")),
    "wrong stride in a descriptor": (
        "k3 cooperative", K3_FILE, "wgmma_descriptor(b + s * 2048, BOX_BYTES, 1024)",
        "wgmma_descriptor(b + s * 2048, BOX_BYTES, 2048)",
    ),
    "no swizzle in the epilogue": (
        "k3 cooperative", K3_FILE, "((chunk ^ (warp_row & 7)) << 4)", "(chunk << 4)",
    ),
    "no barrier before the store": (
        "k3 cooperative", K3_FILE, SECOND_SYNC, "    fence_async_smem();\n",
    ),
    "no proxy fence": ("k3 cooperative", K3_FILE, "    fence_async_smem();\n", ""),
    "no wait before exit": (
        "k3 cooperative", K3_FILE, "  if (D_BY_TMA && leader) bulk_wait_read<0>();", "",
    ),
    "no barrier behind the init": (
        "k3 cooperative", K3_FILE, "  __syncthreads();\n  if (warp < 4)", "  if (warp < 4)",
    ),
    "store box reused too early": (
        "k3 wide", K3_FILE, "    if (leader) bulk_wait_read<STORE_BOXES - 1>();\n", "",
    ),
    "no wgmma wait": ("k3 cooperative", K3_FILE, "      wgmma_wait<IN_FLIGHT>();\n", ""),
    "no wgmma fence": ("k3 cooperative", K3_FILE, "      wgmma_fence();\n", ""),
    "stage freed while wgmma reads it": (
        "k3 pingpong", K3_FILE, "wgmma_wait<IN_FLIGHT>();\n      if (IN_FLIGHT > 0 && k_tile > 0 "
        "&& leader) mbarrier_arrive(empty_barrier(barriers, previous));",
        "if (leader) mbarrier_arrive(empty_barrier(barriers, stages));\n"
        "      wgmma_wait<IN_FLIGHT>();",
    ),
    "slot freed before it is read": (
        "k3 cooperative", K3_FILE,
        "  mbarrier_wait(full_barrier(base + SLOT_BARRIERS, slots), slots.parity);\n", "",
    ),
    "the other consumer's turn": (
        "k3 pingpong", K3_FILE, "(number / CONSUMERS + 1 - consumer) & 1);",
        "(number / CONSUMERS + consumer) & 1);",
    ),
    "k1: no wait for the copies": ("k1", K1_FILE, "      cp_async_wait<NUM_STAGES - 2>();\n", ""),
    "k1: waits for one group too few": (
        "k1", K1_FILE, "cp_async_wait<NUM_STAGES - 2>();", "cp_async_wait<NUM_STAGES - 1>();",
    ),
    "k1: no barrier in the loop": (
        "k1", K1_FILE, "      __syncthreads();\n      if (k_tile", "      if (k_tile",
    ),
}  # fmt: skip


KINDS = {
    "wrong result", "Deadlock", "StepBudgetExceeded", "RaceError", "BarrierFault", "MemoryFault",
    "ConvergenceFault",
    "CompileError",
}  # fmt: skip


def seeds_of(name):
    return range(8) if name.startswith("k1") else range(6)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(verdict, tmp_path, name):
    kernel, file, text, replacement = BUGS[name]
    source = gemmjit.templates.read_template(file)
    assert source.count(text) == 1, (
        f"{file} has changed: {text!r} occurs {source.count(text)} times"
    )
    target = tmp_path / file
    target.parent.mkdir(parents=True)
    target.write_text(source.replace(text, replacement))
    runs = [*POLICIES, *(("random", seed) for seed in seeds_of(name))]
    with gemmjit.templates.override(tmp_path):
        for policy, seed in runs:
            found = verdict(KERNELS[kernel], policy, seed)
            if found:
                print(f"{name}: found by {policy}, seed {seed}: {found}")
                assert found.split(":")[0] in KINDS
                return
    pytest.fail(f"{name}: not found under {runs}")

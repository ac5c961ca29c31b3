"""Architectures: names, limits, what runs where."""

from __future__ import annotations

import pickle

import pytest

from gemmjit.arch import DEFAULT_ARCH, Arch, targets_for
from gemmjit.errors import UnsupportedArchError


@pytest.mark.parametrize(
    "text", ["sm_90a", "sm90a", "90a", "compute_90a", "SM_90A", " sm_90a ", Arch(90, "a")]
)
def test_spellings(text):
    assert Arch.parse(text) == Arch(90, "a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("banana", ("such as sm_80", "'banana'")),
        ("", ("such as sm_80", "''")),
        ("sm_9", ("such as sm_80", "'sm_9'")),
        ("sm_90b", ("such as sm_80", "'sm_90b'")),
        ("sm_61", ("sm_75", "sm_121", "'sm_61'")),
        ("sm_70", ("sm_75", "'sm_70'")),
        ("sm_80a", ("sm_80", "'a'", "Use sm_80")),
        ("sm_90f", ("sm_90", "'f'", "Use sm_90")),
    ],
)
def test_br121_unknown_names(text, words):
    with pytest.raises(UnsupportedArchError) as caught:
        Arch.parse(text)
    for word in ("arch", *words):
        assert word in str(caught.value)


def test_name_capability_and_order():
    arch = Arch.parse("sm_103a")
    assert (arch.name, str(arch), arch.capability) == ("sm_103a", "sm_103a", (10, 3))
    assert Arch.of_capability(12, 1) == Arch(121)
    assert Arch(90) < Arch(90, "a") < Arch(100)
    assert pickle.loads(pickle.dumps(arch)) == arch
    assert Arch.parse(DEFAULT_ARCH) == Arch(90, "a")


@pytest.mark.parametrize(
    ("number", "smem_per_block", "max_warps", "max_blocks"),
    [
        # CUDA C++ Programming Guide, technical specifications per compute capability
        (75, 65536, 32, 16),
        (80, 166912, 64, 32),
        (86, 101376, 48, 16),
        (90, 232448, 64, 32),
        (100, 232448, 64, 32),
        (120, 101376, 48, 24),
    ],
)
def test_limits(number, smem_per_block, max_warps, max_blocks):
    limits = Arch(number).limits
    assert limits.registers == 65536
    assert limits.smem_per_block == smem_per_block
    assert (limits.max_warps, limits.max_blocks) == (max_warps, max_blocks)
    assert limits.smem_per_sm >= limits.smem_per_block + limits.smem_reserved


def test_limits_of_an_unknown_architecture():
    with pytest.raises(UnsupportedArchError, match=r"resource limits are known.*got sm_61"):
        _ = Arch(61).limits


@pytest.mark.parametrize(
    ("target", "device", "runs"),
    [
        ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False),
        ("sm_80", "sm_90", False),
        ("sm_90a", "sm_90", True),
        ("sm_100a", "sm_103", False),
        ("sm_100f", "sm_103", True),
        ("sm_103f", "sm_100", False),
        ("sm_120f", "sm_121", True),
        ("sm_100f", "sm_110", False),
    ],
)
def test_what_runs_where(target, device, runs):
    assert Arch.parse(target).runs_on(Arch.parse(device)) is runs


@pytest.mark.parametrize(
    ("device", "targets"),
    [
        ("sm_75", ["sm_75"]),
        ("sm_86", ["sm_86", "sm_80"]),
        ("sm_90", ["sm_90a", "sm_90"]),
        ("sm_100f", ["sm_100f"]),
    ],
)
def test_targets_of_plain_kernels(device, targets):
    assert [t.name for t in targets_for(Arch.parse(device))] == targets


@pytest.mark.parametrize(
    ("device", "first"), [("sm_90", "sm_90a"), ("sm_103", "sm_103a"), ("sm_120", "sm_120a")]
)
def test_first_target_of_an_accelerated_kernel(device, first):
    targets = targets_for(Arch.parse(device), accelerated=True)
    assert targets[0].name == first
    assert all(t.suffix for t in targets)


def test_no_target_of_an_accelerated_kernel():
    assert targets_for(Arch.parse("sm_86"), accelerated=True) == ()

"""shfl, vote, match, redux, elect, activemask against Python."""

from __future__ import annotations

import numpy as np
import pytest
from lane_programs import evaluate, integers

from gemmjit.emulator.faults import ConvergenceFault

FULL = "0xffffffff"
A = integers("u4", 256, 1)


def shuffled(mode, index, clamp, segment):
    out, inside = np.empty(256, "u4"), np.empty(256, bool)
    for lane in range(256):
        base, own = lane & ~31, lane & 31
        top = (own & segment) | (clamp & ~segment)
        j = {
            "up": own - index,
            "down": own + index,
            "bfly": own ^ index,
            "idx": (own & segment) | (index & ~segment),
        }[mode]
        ok = j >= top if mode == "up" else j <= top
        out[lane], inside[lane] = A[base + (j if ok else own)], ok
    return out, inside


@pytest.mark.parametrize("policy", ["eager", "random"])
@pytest.mark.parametrize(
    ("mode", "index", "clamp", "segment"),
    [
        ("idx", 5, 31, 0),
        ("up", 3, 0, 0),
        ("down", 4, 31, 0),
        ("bfly", 16, 31, 0),
        ("idx", 3, 7, 24),
        ("up", 2, 0, 24),
        ("down", 2, 7, 24),
        ("bfly", 1, 31, 0),
    ],
)
def test_shuffles(mode, index, clamp, segment, policy):
    control = clamp | segment << 8
    body = f"shfl.sync.{mode}.b32 %d0|%p, %a, {index}, {control}, {FULL}; selp.u32 %d1, 1, 0, %p;"
    values, inside = evaluate(body, [A], ["u4", "u4"], policy=policy)
    expected, ok = shuffled(mode, index, clamp, segment)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(inside, ok)


def test_votes():
    even = (A.reshape(-1, 32) & 1) == 0
    body = f"""
    and.b32 %t, %a, 1; setp.eq.u32 %p, %t, 0;
    vote.sync.ballot.b32 %d0, %p, {FULL}; vote.sync.any.pred %q, %p, {FULL}; selp.u32 %d1, 1, 0, %q;
    vote.sync.all.pred %q, !%p, {FULL}; selp.u32 %d2, 1, 0, %q;
    vote.sync.uni.pred %q, %p, {FULL}; selp.u32 %d3, 1, 0, %q;
    """
    a = A.copy()
    a[:32], a[32:64] = 2, 3
    even = (a.reshape(-1, 32) & 1) == 0
    got = evaluate(body, [a], ["u4"] * 4, declare=".reg .b32 %t;")
    ballots = [sum(1 << i for i in range(32) if row[i]) for row in even]
    np.testing.assert_array_equal(got[0], np.repeat(ballots, 32))
    np.testing.assert_array_equal(got[1], np.repeat(even.any(1), 32))
    np.testing.assert_array_equal(got[2], np.repeat((~even).all(1), 32))
    np.testing.assert_array_equal(got[3], np.repeat(even.all(1) | ~even.any(1), 32))


@pytest.mark.parametrize("policy", ["eager", "random"])
def test_member_masks_of_diverged_lanes(policy):
    body = """
    mov.u32 %t, %laneid; setp.lt.u32 %p, %t, 12; @%p bra LOW;
    vote.sync.ballot.b32 %d, 1, 0xfffff000; activemask.b32 %t; bra OUT;
    LOW: vote.sync.ballot.b32 %d, 1, 0x00000fff;
    OUT:
    """
    got = evaluate(body, [A], "u4", declare=".reg .b32 %t;", policy=policy).reshape(-1, 32)
    assert (got[:, :12] == 0xFFF).all()
    assert (got[:, 12:] == 0xFFFFF000).all()


def test_a_lane_outside_its_own_mask_is_an_error():
    body = (
        "mov.u32 %t, %laneid; setp.ge.u32 %p, %t, 16; @%p exit; vote.sync.ballot.b32 %d, 1, 0xff00;"
    )
    with pytest.raises(ConvergenceFault, match="mask does not name"):
        evaluate(body, [A], "u4", declare=".reg .b32 %t;")


@pytest.mark.parametrize("bits", [32, 64])
def test_match(bits):
    a = (A % 3).astype(f"u{bits // 8}")
    a[:32] = 7
    body = f"""
    match.any.sync.b{bits} %d0, %a, {FULL}; match.all.sync.b{bits} %d1|%p, %a, {FULL};
    selp.u32 %d2, 1, 0, %p;
    """
    same, every, flag = evaluate(body, [a], ["u4"] * 3)
    for w, row in enumerate(a.reshape(-1, 32)):
        expected = [sum(1 << j for j in range(32) if row[j] == row[i]) for i in range(32)]
        np.testing.assert_array_equal(same[w * 32 : w * 32 + 32], expected)
        agreed = len(set(row.tolist())) == 1
        assert (every[w * 32 : w * 32 + 32] == (0xFFFFFFFF if agreed else 0)).all()
        assert (flag[w * 32 : w * 32 + 32] == agreed).all()


@pytest.mark.parametrize(
    ("op", "kind", "function"),
    [
        ("add", "u32", lambda v: int(v.sum()) % 2**32),
        ("min", "u32", np.min),
        ("max", "s32", np.max),
        ("min", "s32", np.min),
        ("and", "b32", np.bitwise_and.reduce),
        ("or", "b32", np.bitwise_or.reduce),
        ("xor", "b32", np.bitwise_xor.reduce),
    ],
)
def test_redux(op, kind, function):
    view = "i4" if kind == "s32" else "u4"
    got = evaluate(f"redux.sync.{op}.{kind} %d, %a, {FULL};", [A], view)
    expected = [function(row) for row in A.view(view).reshape(-1, 32)]
    np.testing.assert_array_equal(got, np.repeat(np.array(expected).astype(view), 32))


def test_redux_by_groups_of_members():
    body = """
    mov.u32 %t, %laneid; setp.lt.u32 %p, %t, 4; selp.b32 %t, 0xf, 0xfffffff0, %p;
    redux.sync.add.u32 %d, %a, %t;
    """
    got = evaluate(body, [A], "u4", declare=".reg .b32 %t;").reshape(-1, 32)
    rows = A.reshape(-1, 32)
    np.testing.assert_array_equal(got[:, 0], rows[:, :4].sum(1, dtype="u4"))
    np.testing.assert_array_equal(got[:, 31], rows[:, 4:].sum(1, dtype="u4"))


def test_elect_takes_one_member():
    body = "elect.sync %d0|%p, 0xfffffff0; selp.u32 %d1, 1, 0, %p;"
    prefix = (
        "mov.u32 %t, %laneid; setp.lt.u32 %q, %t, 4; mov.u32 %d0, 99; mov.u32 %d1, 5; @%q bra OUT;"
        + body
        + "OUT:"
    )
    leader, chosen = evaluate(prefix, [A], ["u4", "u4"], declare=".reg .b32 %t;")
    chosen = chosen.reshape(-1, 32)
    assert (chosen[:, :4] == 5).all()
    assert (chosen[:, 4:].sum(1) == 1).all()
    assert (leader.reshape(-1, 32)[:, 4:] == 4).all()


def test_lane_registers():
    body = """
    mov.u32 %d0, %laneid; mov.u32 %d1, %lanemask_lt; mov.u32 %d2, %lanemask_ge;
    mov.u32 %d3, %warpid;
    """
    lane, below, at_or_above, warp = evaluate(body, [A], ["u4"] * 4)
    ids = np.arange(256) % 32
    np.testing.assert_array_equal(lane, ids)
    np.testing.assert_array_equal(below, (1 << ids) - 1)
    np.testing.assert_array_equal(at_or_above, 0xFFFFFFFF & ~((1 << ids) - 1))
    np.testing.assert_array_equal(warp, np.arange(256) // 32 % 4)

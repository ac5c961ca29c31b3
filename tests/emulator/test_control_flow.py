"""Branches, loops, calls, tables, divergence, convergence, printf and traps."""

from __future__ import annotations

import numpy as np
import pytest
from lane_programs import evaluate, integers

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate, lanes, scheduler
from gemmjit.emulator.faults import (
    ConvergenceFault,
    PtxSyntaxError,
    StepBudgetExceeded,
    Trap,
    UnknownInstruction,
)

POLICIES = ["eager", "lazy", "random"]


@pytest.mark.parametrize("policy", POLICIES)
def test_divergent_loops_meet_again(policy):
    body = """
    and.b32 %n, %a, 31; mov.u32 %d, 0;
    LOOP:
    setp.eq.u32 %p, %n, 0; @%p bra DONE;
    and.b32 %t, %n, 1; setp.eq.u32 %q, %t, 1; @%q bra ODD;
    add.u32 %d, %d, %n; bra NEXT;
    ODD: sub.u32 %d, %d, 1;
    NEXT: sub.u32 %n, %n, 1; bra.uni LOOP;
    DONE:
    vote.sync.ballot.b32 %t, 1, 0xffffffff; setp.eq.u32 %p, %t, 0xffffffff; @!%p trap;
    """
    a = integers("u4", 256, 1)
    got = evaluate(body, [a], "i4", declare=".reg .b32 %n, %t;", policy=policy)
    expected = [sum(k if k % 2 == 0 else -1 for k in range(1, int(v & 31) + 1)) for v in a]
    np.testing.assert_array_equal(got, expected)


def test_labels_and_registers_are_scoped():
    body = """
    mov.u32 %d, 0;
    { .reg .pred p; .reg .b32 t; mov.u32 t, 3; L: sub.u32 t, t, 1; add.u32 %d, %d, 1;
      setp.ne.u32 p, t, 0; @p bra L; }
    { .reg .pred p; .reg .b32 t; mov.u32 t, 4; L: sub.u32 t, t, 1; add.u32 %d, %d, 10;
      { .reg .b32 t; mov.u32 t, 77; }
      setp.ne.u32 p, t, 0; @p bra L; }
    """
    assert evaluate(body, [], "u4")[0] == 43


def test_branch_tables():
    body = """
    and.b32 %n, %a, 3;
    TABLE: .branchtargets ONE, TWO, THREE, TWO;
    brx.idx %n, TABLE;
    ONE: mov.u32 %d, 10; bra OUT;
    TWO: mov.u32 %d, 20; bra OUT;
    THREE: mov.u32 %d, 30;
    OUT:
    """
    a = integers("u4", 256, 2)
    got = evaluate(body, [a], "u4", declare=".reg .b32 %n;")
    np.testing.assert_array_equal(got, np.array([10, 20, 30, 20])[a & 3])
    with pytest.raises(UnknownInstruction, match="index 9 in a table"):
        evaluate(
            "T: .branchtargets X; brx.idx %n, T; X:",
            [],
            "u4",
            declare=".reg .b32 %n; mov.u32 %n, 9;",
        )


@pytest.mark.parametrize("policy", POLICIES)
def test_any_number_of_lane_sets(policy, monkeypatch):
    body = """
    mov.u32 %d, 0; and.b32 %n, %a, 63;
    LOOP: setp.eq.u32 %p, %n, 0; @%p bra DONE;
    and.b32 %t, %n, 5; setp.eq.u32 %q, %t, 0; @%q add.u32 %d, %d, 1;
    mul.lo.u32 %n, %n, 5; shr.u32 %n, %n, 3; bra LOOP;
    DONE:
    """
    a = integers("u4", 256, 3)

    def one(n):
        count = 0
        while n:
            count += n & 5 == 0
            n = n * 5 >> 3
        return count

    expected = [one(int(v) & 63) for v in a]
    declare = ".reg .b32 %n, %t;"
    for limit in (lanes._CACHE_LIMIT, 8):
        monkeypatch.setattr(lanes, "_CACHE_LIMIT", limit)
        monkeypatch.setattr(scheduler, "_MAX_BOUND", 100 if limit == 8 else 10**6)
        got = evaluate(body, [a], "u4", declare=declare, policy=policy)
        np.testing.assert_array_equal(got, expected)


FUNCTIONS = """
.func (.param .b32 out) twice(.param .b32 in)
{
.reg .b32 %x; ld.param.b32 %x, [in]; add.u32 %x, %x, %x; st.param.b32 [out], %x; ret;
}
.func (.reg .b32 %r) clamp(.reg .b32 %x, .reg .b32 %top)
{
.reg .pred %p; setp.le.u32 %p, %x, %top; @%p bra SMALL; mov.u32 %r, %top; ret;
SMALL: mov.u32 %r, %x;
}
.func (.param .align 8 .b8 out[16]) pair(.param .align 8 .b8 in[16])
{
.reg .b64 %x, %y; ld.param.v2.b64 {%x, %y}, [in]; st.param.b64 [out], %y; st.param.b64 [out+8], %x;
}
.func (.param .b32 out) outer(.param .b32 in)
{
.reg .b32 %x; ld.param.b32 %x, [in]; add.u32 %x, %x, 1;
{ .param .b32 a; .param .b32 r; st.param.b32 [a], %x; call.uni (r), twice, (a);
ld.param.b32 %x, [r]; }
st.param.b32 [out], %x; ret;
}
"""


@pytest.mark.parametrize("policy", ["eager", "random"])
def test_calls(policy):
    body = """
    { .param .b32 p; .param .b32 r; st.param.b32 [p], %a; call.uni (r), outer, (p);
    ld.param.b32 %t, [r]; }
    setp.gt.u32 %p, %a, 50;
    @%p call (%t), clamp, (%t, 200);
    { .param .align 8 .b8 p[16]; .param .align 8 .b8 r[16];
      cvt.u64.u32 %x, %a; st.param.b64 [p], %x; st.param.b64 [p+8], 5; call.uni (r), pair, (p);
      ld.param.v2.b64 {%x, %y}, [r]; }
    cvt.u32.u64 %d1, %y; mov.u32 %d0, %t; cvt.u32.u64 %d2, %x;
    """
    a = np.arange(256, dtype="u4")
    got = evaluate(
        body,
        [a],
        ["u4"] * 3,
        declare=".reg .b32 %t; .reg .b64 %x, %y;",
        module=FUNCTIONS,
        policy=policy,
    )
    doubled = 2 * (a + 1)
    np.testing.assert_array_equal(got[0], np.where(a > 50, np.minimum(doubled, 200), doubled))
    np.testing.assert_array_equal(got[1], a)
    assert (got[2] == 5).all()


def test_indirect_calls():
    body = """
    mov.u64 %f, twice; mov.u64 %g, outer; and.b32 %t, %a, 1; setp.eq.u32 %p, %t, 0;
    selp.b64 %f, %g, %f, %p;
    { .param .b32 p; .param .b32 r; st.param.b32 [p], %a;
      PROTO: .callprototype (.param .b32 _) _ (.param .b32 _);
      call (r), %f, (p), PROTO; ld.param.b32 %d, [r]; }
    """
    a = np.arange(64, dtype="u4")
    got = evaluate(body, [a], "u4", declare=".reg .b32 %t; .reg .b64 %f, %g;", module=FUNCTIONS)
    np.testing.assert_array_equal(got, np.where(a % 2 == 0, 2 * (a + 1), 2 * a))
    with pytest.raises(UnknownInstruction, match="pointer that is no function"):
        evaluate(
            body.replace("mov.u64 %f, twice", "mov.u64 %f, 64"),
            [a],
            "u4",
            declare=".reg .b32 %t; .reg .b64 %f, %g;",
            module=FUNCTIONS,
        )


def test_early_exit_and_ret_leave_the_others_running():
    body = "setp.lt.u32 %p, %a, 100; mov.u32 %d, 1; @%p exit; setp.lt.u32 %p, %a, 200; @%p ret;"
    got = evaluate(body, [np.arange(256, dtype="u4")], "u4")
    assert (got[:200] == 0xFFFFFFFF).all()
    assert (got[200:] == 1).all()


def launch(body, *, module="", block=(32,), params="", args=(), memory=None, **options):
    head = ".version 8.7\n.target sm_90a\n.address_size 64\n"
    text = f"{head}{module}\n.visible .entry k({params})\n{{\n{body}\n}}\n"
    return emulate(
        [
            KernelLaunch(
                ptx=text,
                entry="k",
                grid=(1,),
                block=block,
                args=args,
                memory=memory or DeviceMemory(),
            )
        ],
        **options,
    )


def test_printf_and_assertions():
    module = """
    .extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 v);
    .global .align 1 .b8 text[22] = {105, 61, 37, 100, 32, 120, 61, 37, 46, 50, 102, 32, 37, 108,
      108, 117, 32, 37, 37, 10, 0};
    """
    body = """
    .local .align 8 .b8 depot[24]; .reg .b64 %l, %g, %t, %w; .reg .b32 %i, %r; .reg .f64 %x;
    mov.u32 %i, %tid.x; mov.u64 %l, depot; cvta.local.u64 %g, %l;
    st.local.u32 [%l], %i; mov.f64 %x, 0d3FF8000000000000; st.local.f64 [%l+8], %x;
    mov.b64 %w, 18446744073709551615; st.local.b64 [%l+16], %w;
    mov.u64 %t, text; cvta.global.u64 %t, %t;
    { .param .b64 p0; .param .b64 p1; .param .b32 q; st.param.b64 [p0], %t; st.param.b64 [p1], %g;
      call.uni (q), vprintf, (p0, p1); ld.param.b32 %r, [q]; }
    """
    report = launch(body, module=module, block=(3,))
    assert report.output == "".join(f"i={i} x=1.50 18446744073709551615 %\n" for i in range(3))


def test_trap_names_a_thread():
    with pytest.raises(Trap, match=r"1 threads, first block \(0, 0, 0\) thread 9"):
        launch(".reg .pred %p; .reg .b32 %i; mov.u32 %i, %tid.x; setp.eq.u32 %p, %i, 9; @%p trap;")


def test_step_budget():
    with pytest.raises(StepBudgetExceeded, match="max_steps is 1000"):
        launch(".reg .b32 %i; L: add.u32 %i, %i, 1; bra L;", max_steps=1000)


def test_part_of_a_warp_at_an_aligned_instruction():
    body = """
    .reg .pred %p; .reg .b32 %i, %r; mov.u32 %i, %tid.x; setp.lt.u32 %p, %i, 7; @%p bra HERE;
    bar.sync 1, 64; bra OUT;
    HERE: shfl.sync.idx.b32 %r, %i, 0, 31, 0xffffffff;
    OUT:
    """
    with pytest.raises(ConvergenceFault, match=r"(7|25) threads .*other threads of their warp"):
        launch(body)
    body = """
    .reg .pred %p; .reg .b32 %i, %r; mov.u32 %i, %tid.x; setp.lt.u32 %p, %i, 7; @%p exit;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r}, [s];
    """
    with pytest.raises(ConvergenceFault):
        launch(".shared .align 16 .b8 s[128];" + body)


def test_unknown_text_is_refused_with_its_line():
    with pytest.raises(UnknownInstruction, match=r"frobnicate\.u32.*\n.*PTX line 8"):
        launch(".reg .b32 %r;\nfrobnicate.u32 %r, %r;")
    with pytest.raises(UnknownInstruction, match=r"modifier \.strange has no semantics"):
        launch(".reg .b32 %r;\nadd.strange.u32 %r, %r, 1;")
    with pytest.raises(PtxSyntaxError, match=r"PTX line 7: register %x is not declared"):
        launch("mov.u32 %x, 1;")
    with pytest.raises(PtxSyntaxError, match=r"PTX line 7: unknown directive"):
        launch(".frob 1;")
    with pytest.raises(PtxSyntaxError, match="'nowhere' is not declared"):
        launch("bra nowhere;")


def test_recursion_is_refused():
    module = """
    .func (.param .b32 o) f(.param .b32 i) { .reg .b32 %x; ld.param.b32 %x, [i];
    { .param .b32 a; .param .b32 r; st.param.b32 [a], %x; call.uni (r), f, (a); } }
    """
    body = (
        "{ .param .b32 a; .param .b32 r; .reg .b32 %x; st.param.b32 [a], 1; call.uni (r), f, (a); }"
    )
    with pytest.raises(UnknownInstruction, match="recursive"):
        launch(body, module=module)

"""Misuses of `tcgen05` that must be found: allocation, hazards, fences, descriptors, forms."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tcgen05_products import Product
from tcgen05_programs import (
    AFTER,
    BEFORE,
    LOADED,
    STORED,
    WAIT,
    commit,
    descriptor,
    dump,
    execute,
    finished,
    mma,
    program,
    set_descriptor,
)

from gemmjit.emulator.faults import (
    BarrierFault,
    Deadlock,
    MemoryFault,
    RaceError,
    UnknownInstruction,
)

POLICIES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(3))]


def allocate(count, group=1):
    return f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%place], {count};"


def deallocate(count, group=1):
    return f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %tm, {count};"


RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
ALLOCATIONS = [
    (allocate(48), deallocate(48), MemoryFault, "power of two"),
    (allocate(16), deallocate(16), MemoryFault, "power of two"),
    (RELINQUISH + allocate(32), deallocate(32), MemoryFault, "relinquished"),
    (allocate(32) + allocate(64), deallocate(64), MemoryFault, "must not increase"),
    (allocate(32), "", MemoryFault, "exits without a tcgen05.dealloc"),
    (allocate(32), deallocate(64), MemoryFault, "expected an allocation"),
    (allocate(32), deallocate(32) * 2, MemoryFault, "expected an allocation"),
    (allocate(512) + allocate(32), deallocate(32), Deadlock, "tcgen05.alloc for 32 columns"),
    (allocate(32).replace("::1", "::2"), deallocate(32), MemoryFault, "even cluster"),
    (allocate(32), deallocate(32).replace("::1", "::2"), UnknownInstruction, "same .cta_group"),
    (allocate(32).replace(".cta_group::1", ""), deallocate(32), UnknownInstruction, "cta_group"),
]  # fmt: skip


@pytest.mark.parametrize(("alloc", "free", "fault", "reason"), ALLOCATIONS)
def test_rules_of_allocation(alloc, free, fault, reason):
    ptx = program("", alloc=alloc, free=free, wait="", commits="", read="")
    with pytest.raises(fault, match=reason):
        execute(ptx, np.zeros(16, np.uint8))


def test_an_allocation_waits_until_columns_are_free():
    # Warp 1 asks for the rest while warp 0 holds all; it goes on when warp 0 has deallocated.
    ptx = program("", alloc=allocate(512), free="", wait="", commits="", read=f"""
    setp.eq.u32 %p, %tid, 0; shr.u32 %t0, %tid, 5; setp.eq.u32 %w, %t0, 1;
    @!%warp0 bra OTHER; {deallocate(512)} bra BOTH;
    OTHER: @!%w bra BOTH; add.u32 %place, %place, 4;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%place], 256;
    ld.shared.b32 %tm, [%place]; {deallocate(256)}
    BOTH:
    """).replace(".b32 place;", ".b32 place[2];")  # fmt: skip
    for policy in ("eager", "lazy", "random"):
        execute(ptx, np.zeros(16, np.uint8), policy=policy)


def test_fresh_columns_are_poison_also_the_second_time():
    again = f"""{STORED} bar.sync 0; @!%warp0 bra AGAIN; {deallocate(32)} {allocate(32)} AGAIN:
    {BEFORE} bar.sync 0; {AFTER} ld.shared.b32 %tm, [%place];"""
    store = "mov.b32 %r0, 7; tcgen05.st.sync.aligned.32x32b.x1.b32 [%t3], {%r0};"
    quadrant = "and.b32 %t3, %tid, 96; shl.b32 %t3, %t3, 16; add.u32 %t3, %t3, %tm;"
    before = quadrant + store
    for more, expected in (("", 7), (again, 0xFFFFFFFF)):
        ptx = program("", before=before + (more or STORED), alloc=allocate(32), wait="", commits="")
        got, _ = execute(ptx, np.zeros(16, np.uint8))
        assert (got[0, :, 0] == expected).all()


# Bodies and epilogues around one product of `p`, and what must be found, under every policy that
# leaves it in flight.
def races(p):
    load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%q0}, [%t3];"
    quadrant = "and.b32 %t3, %tid, 96; shl.b32 %t3, %t3, 16; add.u32 %t3, %t3, %tm;"
    inside = f"{quadrant} {load}"
    wider = p.idesc + (8 >> 3 << 17)
    copy = "tcgen05.cp.cta_group::1.128x128b [%tm], %a;"
    at_a = set_descriptor("a", descriptor(0, 0, 128, 0))
    yield "no wait for the product", dict(body=p.mma(), wait=""), "commit signals"
    yield "no commit", dict(body=p.mma(), wait="", commits=""), "commit signals"
    yield "shapes differ", dict(body=p.mma() + mma("f16", wider, *p.bits)), "of another shape"
    yield (
        "A is an accumulator",
        dict(body=p.mma() + mma("f16", p.idesc, None, p.bits[1], a_text="[%tm]", d="%t1")
             .replace("mov", "add.u32 %t1, %tm, 64; mov", 1)), "product in flight writes",
    )  # fmt: skip
    yield "copy into an accumulator", dict(body=p.mma() + at_a + copy), "product in flight writes"
    yield "accumulator being copied", dict(body=at_a + copy, wait="", read=inside + LOADED), "copy"
    yield (
        "deallocated under a product",
        dict(body=p.mma(), wait="", read="", commits=""),
        "tcgen05.dealloc",
    )


RACES = [name for name, *_ in races(Product(n=32))]


@pytest.mark.parametrize("policy", [("lazy", 0), ("random", 0), ("random", 1)])
@pytest.mark.parametrize("name", RACES)
def test_races(name, policy):
    p = Product(n=32)
    options, reason = next(row[1:] for row in races(p) if row[0] == name)
    ptx = program(options.pop("body"), columns=32, allocated=128, **options)
    found = []
    for seed in range(policy[1], 24 if policy[0] == "random" else 1, 2):
        try:
            execute(ptx, p.smem, columns=32, policy=policy[0], seed=seed)
        except RaceError as error:
            found.append(str(error))
    # At random a product may be over in time, but not with all of these seeds.
    assert any(re.search(reason, text) for text in found)


def twice(p, before, after):
    """The accumulator is read, then a second product overwrites it."""
    return program(
        p.mma(), columns=32, before="", read=f"""{dump(32)} {before}
        bar.sync 0; @!%first bra SECOND; {after} {p.mma()} {finished()} SECOND: bar.sync 0;""",
    )  # fmt: skip


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize(("before", "after", "reason"), [
    (BEFORE, AFTER, None), ("", AFTER, "no tcgen05.fence::before_thread_sync"),
    (BEFORE, "", "no tcgen05.fence::after_thread_sync"),
])  # fmt: skip
def test_fences_between_a_load_and_the_next_product(before, after, reason, policy, seed):
    p = Product(n=32)
    ptx = twice(p, before, after)
    _, report = execute(ptx, p.smem, policy=policy, seed=seed)
    assert bool(report.warnings) == (reason is not None)
    if reason:
        assert reason in report.warnings[0]
        with pytest.raises(RaceError, match=reason):
            execute(ptx, p.smem, policy=policy, seed=seed, unfenced_tmem="error")


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_a_fence_behind_the_wait_for_a_product(policy, seed):
    p = Product(n=32)
    good, none = (program(p.mma(), after=after, columns=32) for after in (AFTER, ""))
    assert not execute(good, p.smem, policy=policy, seed=seed)[1].warnings
    with pytest.raises(RaceError, match="after_thread_sync stands between"):
        execute(none, p.smem, policy=policy, seed=seed, unfenced_tmem="error")


def test_a_fence_before_the_wait_is_too_early():
    p = Product(n=32)
    ptx = program(p.mma(), wait=AFTER + WAIT, after="", columns=32)
    with pytest.raises(RaceError, match="after_thread_sync stands between"):
        execute(ptx, p.smem, policy="lazy", unfenced_tmem="error")


@pytest.mark.parametrize("policy", POLICIES)
def test_the_source_needs_a_proxy_fence(policy):
    p = Product(n=32)
    ptx = program(p.mma(), columns=32)
    assert "fence.proxy.async.shared::cta;" in ptx
    with pytest.raises(RaceError, match=r"fence\.proxy\.async is missing"):
        execute(ptx.replace("fence.proxy.async.shared::cta;", ""), p.smem, policy=policy[0])


@pytest.mark.parametrize("policy", [("lazy", 0), ("random", 1)])
def test_the_source_may_not_change_under_a_product(policy):
    p = Product(n=32)
    ptx = program(p.mma() + "st.shared.b32 [%s], 0;", columns=32)
    with pytest.raises(RaceError, match="asynchronous operation reads"):
        execute(ptx, p.smem, policy=policy[0], seed=policy[1])


def bits(low, value):
    """The instruction descriptor of a good product with one field changed."""
    return lambda good: good & ~(0x7 << low) | value << low


FIELDS = [
    (lambda good: good | 1, "bits 0 to 1"), (lambda good: good | 1 << 6, "bits 6 to 6"),
    (lambda good: good | 1 << 23, "bits 23"), (lambda good: good | 1 << 29, "bits 29"),
    (lambda good: good | 1 << 30, "bits 30 to 31"), (lambda good: good | 8, "saturate"),
    (bits(7, 2), "atype"), (bits(10, 0), "btype"), (lambda good: good & ~0x30 | 0x20, "dtype"),
    (lambda good: good & ~0x30, "dtype"), (lambda good: good & ~(31 << 24) | 2 << 24, "M"),
    (lambda good: good & ~(31 << 24) | 16 << 24, "M"), (lambda good: good & ~(63 << 17), "N"),
    (lambda good: good | 63 << 17, "N"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "field"), FIELDS)
def test_instruction_descriptors(change, field):
    p = Product(n=32)
    ptx = program(mma("f16", change(p.idesc), *p.bits), columns=32)
    with pytest.raises(MemoryFault, match=re.escape(f"{field}")):
        execute(ptx, p.smem, columns=32)


SHARED = [
    (lambda d: d & ~(7 << 46), "bits 46 to 48"), (lambda d: d | 1 << 49, "base offset"),
    (lambda d: d | 1 << 52, "absolute"), (lambda d: d | 1 << 55, "bits 53 to 60"),
    (lambda d: d & ~(7 << 61) | 3 << 61, "swizzle"), (lambda d: d | 1 << 14, "bits 14 to 15"),
    (lambda d: d | 0x3000, "outside the block"),
]  # fmt: skip


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(("change", "field"), SHARED)
def test_shared_memory_descriptors(change, field, which):
    p = Product(n=32)
    changed = [change(d) if i == which else d for i, d in enumerate(p.bits)]
    with pytest.raises(MemoryFault, match=field):
        execute(program(mma("f16", p.idesc, *changed), columns=32), p.smem, columns=32)


FORMS = [
    ("kind::f16", "kind::f16.ashift", "semantics"), ("mma.", "mma.ws.sp.", "semantics"),
    ("kind::f16", "sp.kind::f16", "semantics"), ("kind::f16", "kind::f8", "semantics"),
    ("kind::f16", "kind::mxf4nvf4.block_scale", "scale vector"),
    ("kind::f16", "kind::mxf4.block_scale.block16", "does not belong"),
    ("kind::f16", "kind::f16.block32", "form"), ("%no;", "%no, 16;", "0 to 15"),
    (" %no;", " {0, 0}, %no;", "expected 4 registers"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), FORMS)
def test_forms_without_semantics(old, new, reason):
    p = Product(n=32)
    body = p.mma()
    assert old in body
    with pytest.raises(UnknownInstruction, match=reason):
        execute(program(body.replace(old, new), columns=32), p.smem, columns=32)


def test_commits_go_to_barriers_of_the_cluster():
    p = Product(m=256, n=32, ranks=2)
    with pytest.raises(MemoryFault, match="ctaMask"):
        execute(program(p.mma(), ranks=2, commits=commit(2, 5)), p.smem, ranks=2)
    with pytest.raises(Deadlock):
        execute(program(p.mma(), ranks=2, commits=commit(2, 1)), p.smem, ranks=2)
    body = (p.mma() + commit(2)).replace("[%bar]", "[%bar-8]")
    with pytest.raises(BarrierFault, match="used but was not"):
        execute(program(body, ranks=2), p.smem, ranks=2)


@pytest.mark.parametrize("thread", [0, 1, 32])
def test_a_commit_tracks_its_own_thread_alone(thread):
    """As where one lane issues, and another is elected to commit."""
    p = Product(n=32)
    late = f"bar.sync 0; setp.eq.u32 %p, %tid, {thread}; @%p {commit()} {WAIT}"
    ptx = program(p.mma(), columns=32, commits="", wait=late)
    got, _ = execute(ptx, p.smem, policy="eager")  # the product is over before
    np.testing.assert_array_equal(p.d(got), p.exact)
    if thread == 0:
        got, _ = execute(ptx, p.smem, policy="lazy")
        np.testing.assert_array_equal(p.d(got), p.exact)
    else:
        with pytest.raises(RaceError, match=r"wait for an mbarrier that a tcgen05\.commit"):
            execute(ptx, p.smem, policy="lazy")

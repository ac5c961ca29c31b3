"""`tcgen05.ld`, `st` and `wait`: shapes, packing, poison, and what must be waited for."""

from __future__ import annotations

import numpy as np
import pytest
from tcgen05_programs import AFTER, BEFORE, LOADED, STORED, execute, program, registers

from gemmjit.emulator.faults import (
    ConvergenceFault,
    MemoryFault,
    RaceError,
    UndecidedSemantics,
    UnknownInstruction,
)
from gemmjit.emulator.tcgen05_fragments import tmem_fragment

POLICIES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]
QUADRANT = "and.b32 %t3, %tid, 96; shl.b32 %t3, %t3, 16; add.u32 %t3, %t3, %tm;"
# Shape, repetitions, registers.
SHAPES = [
    ("32x32b", 1, 1), ("32x32b", 8, 8), ("32x32b", 128, 128), ("16x64b", 1, 1), ("16x64b", 16, 16),
    ("16x128b", 1, 2), ("16x128b", 8, 16), ("16x256b", 1, 4), ("16x256b", 4, 16),
    ("16x32bx2", 2, 2), ("16x32bx2", 8, 8),
]  # fmt: skip
SPLIT = 40


def columns_of(shape, num):
    each = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}[shape]
    return num * each + (SPLIT if shape == "16x32bx2" else 0)


def element(shape, lane, register):
    """Lane and column of a register, by the figures' formulas, one by one."""
    g, t = lane // 4, lane % 4
    if shape == "32x32b":
        return lane, register
    if shape == "16x64b":
        return g + 8 * (lane % 2), 2 * register + lane // 2 % 2
    if shape == "16x128b":
        return g + 8 * (register % 2), 4 * (register // 2) + t
    if shape == "16x256b":
        inner = register % 4
        return g + 8 * (inner // 2), 8 * (register // 4) + 2 * t + inner % 2
    return lane % 16, register + (SPLIT if lane >= 16 else 0)


def access(op, shape, num, count, *, at="%t3", packed=False, name="r"):
    pack = {"ld": ".pack::16b", "st": ".unpack::16b"}[op] if packed else ""
    opcode = f"tcgen05.{op}.sync.aligned.{shape}.x{num}{pack}.b32"
    split = f", {SPLIT}" if shape == "16x32bx2" else ""
    vector = registers(name, count)
    if op == "ld":
        return f"{opcode} {vector}, [{at}]{split};"
    return f"{opcode} [{at}]{split}, {vector};"


def numbered(count, name="r"):
    """Registers that name their thread and themselves."""
    lines = [f"mul.lo.u32 %t0, %tid, {1 << 16};"]
    return "\n".join([*lines, *(f"add.u32 %{name}{i}, %t0, {i};" for i in range(count))])


def run(ptx, columns, policy=("eager", 0), **options):
    source = np.zeros(16, np.uint8)
    return execute(ptx, source, columns=columns, policy=policy[0], seed=policy[1], **options)


def simple(before, *, columns, read=None, body="", **options):
    """No product: the barrier is not used."""
    return program(body, columns=columns, before=before, wait="", commits="", read=read, **options)


# CUTLASS's copy_traits_sm100.hpp, as facts. Shape, num, split of 16x32bx2; bits of a lane of tensor
# memory; thread and value shapes and strides that give the bit of a thread's register.
CUTLASS = [
    ("32x32b", 1, 0, 32, (32,), (32,), (32,), (1,)),
    ("32x32b", 2, 0, 64, (32,), (64,), (64,), (1,)),
    ("16x64b", 1, 0, 64, (2, 2, 8), (512, 32, 64), (32,), (1,)),
    ("16x64b", 2, 0, 128, (2, 2, 8), (1024, 32, 128), (32, 2), (1, 64)),
    ("16x128b", 1, 0, 128, (4, 8), (32, 128), (32, 2), (1, 1024)),
    ("16x128b", 2, 0, 256, (4, 8), (32, 256), (32, 2, 2), (1, 2048, 128)),
    ("16x256b", 1, 0, 256, (4, 8), (64, 256), (64, 2), (1, 2048)),
    ("16x256b", 2, 0, 512, (4, 8), (64, 512), (64, 2, 2), (1, 4096, 256)),
    ("16x256b", 4, 0, 1024, (4, 8), (64, 1024), (64, 2, 4), (1, 8192, 256)),
    ("16x32bx2", 1, 1, 64, (16, 2), (64, 32), (32,), (1,)),
    ("16x32bx2", 2, 2, 128, (16, 2), (128, 64), (64,), (1,)),
]  # fmt: skip


def bit(shape, stride, index):
    found = 0
    for size, step in zip(shape, stride, strict=True):
        found += index % size * step
        index //= size
    return found


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", CUTLASS, ids=lambda c: f"{c[0]}.x{c[1]}")
def test_fragments_are_those_of_cutlass(case, packed):
    """Packed, 16 bits of a register are the lower half of a column: twice as many columns."""
    shape, num, split, width, thread_shape, thread_stride, value_shape, value_stride = case
    fragment = tmem_fragment(shape, num, packed, 2 * split if packed else split)
    for lane, register in np.ndindex(32, fragment.registers):
        at = bit(thread_shape, thread_stride, lane) + bit(value_shape, value_stride, 32 * register)
        row, column = at // width, at % width // 32 * (2 if packed else 1)
        assert fragment.lanes[register, lane] == row
        assert fragment.columns[register, lane] == column


PLACES = [(*s, 0) for s in SHAPES] + [(*s, 16) for s in SHAPES if s[0] != "32x32b"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("shape", "num", "count", "upper"), PLACES)
def test_stores(shape, num, count, upper, policy):
    columns = columns_of(shape, num)
    move = f"add.u32 %t3, %t3, {upper << 16};" if upper else ""
    ptx = simple(
        f"{numbered(count)} {QUADRANT} {move} {access('st', shape, num, count)} {STORED}",
        columns=-(-columns // 32) * 32,
    )
    got, report = run(ptx, -(-columns // 32) * 32, policy)
    expected = np.full_like(got, 0xFFFFFFFF)
    for thread, register in np.ndindex(128, count):
        lane, column = element(shape, thread % 32, register)
        expected[0, thread // 32 * 32 + lane + upper, column] = thread << 16 | register
    np.testing.assert_array_equal(got, expected)
    assert not report.warnings


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("shape", "num", "count"), SHAPES)
def test_loads(shape, num, count, policy):
    columns = max(columns_of(shape, num), count)
    wide = -(-columns // 32) * 32
    fill = f"{numbered(64)} {QUADRANT} " + "\n".join(
        f"add.u32 %t2, %t3, {first}; {access('st', '32x32b', 32, 32, at='%t2')} {STORED}"
        + "".join(f"add.u32 %r{i}, %r{i}, 32;" for i in range(32))
        for first in range(0, wide, 32)
    )
    read = f"{QUADRANT} {access('ld', shape, num, count, name='q')} {LOADED}" + "".join(
        f"st.global.b32 [%to+{4 * i}], %q{i};" for i in range(count)
    )
    got, report = run(simple(fill, columns=wide, read=read), wide, policy)
    for thread, register in np.ndindex(128, count):
        lane, column = element(shape, thread % 32, register)
        assert got[0, thread, register] == (thread // 32 * 32 + lane) << 16 | column
    assert not report.warnings


@pytest.mark.parametrize("shape", ["32x32b", "16x256b"])
def test_packing_joins_neighbours(shape):
    count = {"32x32b": 4, "16x256b": 16}[shape]
    before = (
        f"{numbered(count)} {QUADRANT} {access('st', shape, 4, count, packed=True)} {STORED}"
        f"{access('ld', shape, 4, count, packed=True, name='q')} {LOADED}"
    )
    same = "".join(f"sub.u32 %q{i}, %q{i}, %r{i}; or.b32 %q0, %q0, %q{i};" for i in range(1, count))
    check = f"sub.u32 %q0, %q0, %r0; {same} setp.ne.u32 %p, %q0, 0; @%p trap;"
    ptx = simple(before + check, columns=64)
    got, report = run(ptx, 64)
    assert "pack_16b" in report.warnings[0]
    for thread, register in np.ndindex(128, count):
        lane, column = element(shape, thread % 32, register)
        pair = got[0, thread // 32 * 32 + lane, 2 * column : 2 * column + 2]
        assert (pair & 0xFFFF).tolist() == [register, thread]
        assert (pair >> 16 == 0xFFFF).all()
    with pytest.raises(UndecidedSemantics, match="pack_16b"):
        run(ptx, 64, undecided="error")


POISON = {"ld_registers": "poison"}


@pytest.mark.parametrize("policy", POLICIES)
def test_registers_may_be_used_before_the_wait_or_not(policy):
    fill = f"{numbered(4)} {QUADRANT} {access('st', '32x32b', 4, 4)} {STORED}"
    load = access("ld", "32x32b", 4, 4, name="q")
    use = "".join(f"st.global.b32 [%to+{4 * i}], %q{i};" for i in range(4))
    early = simple(fill, columns=32, read=f"{load} {use} {LOADED}")
    got, _ = run(early, 32, policy, readings=POISON)
    assert (got[0, :, :4] == 0xFFFFFFFF).all()
    got, _ = run(early, 32, policy)
    assert (got[0, :, :4] == np.arange(128)[:, None] << 16 | np.arange(4)).all()
    late = simple(fill, columns=32, read=f"{load} {LOADED} {use}")
    got, _ = run(late, 32, policy, readings=POISON)
    assert (got[0, :, :4] == np.arange(128)[:, None] << 16 | np.arange(4)).all()


NO_LOAD_WAIT = access("ld", "32x32b", 4, 4, name="q")
RACES = [
    ("load without a wait", "", NO_LOAD_WAIT, "wait::ld"),
    ("registers changed under a load", "", f"{NO_LOAD_WAIT} mov.b32 %q1, 0; {LOADED}",
     "registers were written before"),
    ("store without a wait", access("st", "32x32b", 4, 4), None, "wait::st"),
    ("store behind a load", f"{NO_LOAD_WAIT} {access('st', '32x32b', 4, 4)} {LOADED} {STORED}",
     None, "wait::ld"),
    ("two stores", access("st", "32x32b", 4, 4) * 2 + STORED, None, "wait::st"),
]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("before", "read", "reason"), [r[1:] for r in RACES],
                         ids=[r[0] for r in RACES])  # fmt: skip
def test_missing_waits_are_races(before, read, reason, policy):
    ptx = simple(f"{numbered(4)} {QUADRANT} {before}", columns=32, read=read)
    with pytest.raises(RaceError, match=reason):
        run(ptx, 32, policy, readings=POISON)


def test_an_address_that_names_another_quadrant():
    store = access("st", "32x32b", 1, 1, at="%tm")
    got, report = run(simple(f"{numbered(1)} {store} {STORED}", columns=32), 32)
    assert "tmem_quadrant" in report.warnings[0]
    np.testing.assert_array_equal(got[0, :, 0], np.arange(128) << 16)


REFUSED = [
    (access("st", "32x32b", 4, 3), UnknownInstruction, "expected 4 registers"),
    (access("st", "16x256b", 64, 1), UnknownInstruction, "x1 to .x32"),
    (access("st", "32x32b", 3, 3), UnknownInstruction, "x1 to"),
    ("add.u32 %t3, %t3, %tid;" + access("st", "32x32b", 1, 1), ConvergenceFault, "differs"),
    ("add.u32 %t3, %t3, 0x80000;" + access("st", "16x64b", 1, 1), MemoryFault, "multiple of 16"),
    ("add.u32 %t3, %t3, 0x100000;" + access("st", "32x32b", 1, 1), MemoryFault, "multiple of 32"),
    ("add.u32 %t3, %t3, 32;" + access("st", "32x32b", 1, 1), MemoryFault, "allocated"),
    ("add.u32 %t3, %t3, 30;" + access("st", "32x32b", 4, 4), MemoryFault, "allocated"),
    ("@%one " + access("st", "32x32b", 1, 1), ConvergenceFault, "aligned"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "fault", "reason"), REFUSED)
def test_misuses(before, fault, reason):
    with pytest.raises(fault, match=reason):
        run(simple(f"{numbered(4)} {QUADRANT} {before} {STORED}", columns=32), 32)


def test_fences_by_themselves_do_nothing():
    got, report = run(simple(f"{BEFORE} {AFTER}", columns=32), 32)
    assert (got == 0xFFFFFFFF).all()
    assert not report.warnings


REDUCTIONS = ["max.f32", "min.f32", "max.NaN.f32", "min.abs.f32", "max.abs.NaN.f32", "min.s32",
              "max.u32"]  # fmt: skip


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("shape", ["32x32b", "16x32bx2"])
def test_loads_that_reduce(shape, op):
    num = 4
    words = np.random.default_rng(len(op)).integers(0, 2**32, (128, 64), np.uint32)
    words[:, 2] = np.where(np.arange(128) % 3 == 0, 0x7FC12345, words[:, 2])  # NaN
    words[9] = 0xFFC00000
    words[10, :4], words[11, :4] = (0x80000000, 0, 0x80000000, 0), (0, 0x80000000, 0, 0)
    fill = f"""{QUADRANT} mad.lo.u32 %t0, %tid, 256, %s; and.b32 %t0, %t0, 0xffffff;
    {"".join(f"ld.shared.b32 %r{i}, [%t0+{4 * i}];" for i in range(64))}
    tcgen05.st.sync.aligned.32x32b.x64.b32 [%t3], {registers("r", 64)}; {STORED}"""
    load = access("ld", shape, num, num, name="q").replace("tcgen05.ld.", "tcgen05.ld.red.")
    load = load.replace(".b32", f".{op}").replace("}, ", "}, %v0, ")
    stores = "".join(f"st.global.b32 [%to+{4 * i}], %q{i};" for i in range(num))
    read = f"{QUADRANT} {load} {LOADED} {stores} st.global.b32 [%to+{4 * num}], %v0;"
    ptx = simple(fill, columns=64, read=read, target="sm_103a")
    got, _ = execute(ptx, words.reshape(-1).view(np.uint8), columns=64)
    kind = {"f32": np.float32, "s32": np.int32, "u32": np.uint32}[op.split(".")[-1]]
    for thread in range(128):
        place = [element(shape, thread % 32, i) for i in range(num)]
        loaded = np.array([words[thread // 32 * 32 + row, column] for row, column in place])
        np.testing.assert_array_equal(got[0, thread, :num], loaded)
        values = [kind(v) for v in loaded.view(kind)]
        if ".abs" in op:
            values = [abs(v) for v in values]
        numbers = [v for v in values if v == v]
        if not numbers or (".NaN" in op and len(numbers) < num):
            assert got[0, thread, num] == 0x7FFFFFFF
            continue
        # Of two zeros the negative one is less.
        ordered = sorted(numbers, key=lambda v: (v, not np.signbit(v)))
        best = ordered[-1 if op.startswith("max") else 0]
        assert got[0, thread, num] == np.array(best, kind).view(np.uint32)


@pytest.mark.parametrize("op", ["max.abs.s32", "add.f32", "max.b32", "max.min.f32"])
def test_other_reductions_are_refused(op):
    load = f"tcgen05.ld.red.sync.aligned.32x32b.x2.{op} {{%r0, %r1}}, %r2, [%t3];"
    with pytest.raises(UnknownInstruction):
        run(simple(f"{QUADRANT} {load} {LOADED}", columns=32), 32)

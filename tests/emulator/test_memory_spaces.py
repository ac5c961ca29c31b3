"""Bounds, alignment and lifetime of memory in every state space."""

from __future__ import annotations

import numpy as np
import pytest
from lane_programs import evaluate, integers
from memory_programs import run

from gemmjit.emulator import DeviceMemory
from gemmjit.emulator.faults import MemoryFault


def access(offset, width, kind="ld", size=64):
    memory = DeviceMemory()
    pointer = memory.allocate(size, np.zeros(size, "u1"), name="array")
    value = "st.global.b{w} [%a], %v" if kind == "st" else "ld.global.b{w} %v, [%a]"
    hold = max(width * 8, 16)
    body = f"""
    .reg .b64 %a; .reg .b{hold} %v; mov.b{hold} %v, 0; ld.param.u64 %a, [p0];
    {value.format(w=width * 8)};
    """
    run(body, args=[pointer + offset], params=".param .u64 p0", block=(1,), memory=memory)


@pytest.mark.parametrize("kind", ["ld", "st"])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_bounds_of_global_memory(kind, width):
    access(64 - width, width, kind)
    with pytest.raises(MemoryFault, match=r"past the end of allocation array"):
        access(64, width, kind)
    with pytest.raises(MemoryFault, match=r"global address"):
        access(-width, width, kind)


def test_alignment_and_partial_overrun():
    with pytest.raises(MemoryFault, match=r"not a multiple of 8"):
        access(4, 8)
    with pytest.raises(MemoryFault, match=r"reaches 4 bytes past the end of allocation array"):
        access(56, 8, size=60)


def test_a_fault_names_thread_instruction_and_source_line():
    memory = DeviceMemory()
    pointer = memory.allocate(4 * 40, np.zeros(40, "u4"), name="x")
    body = """
    .reg .b64 %a; .reg .b32 %i;
    ld.param.u64 %a, [p0]; mov.u32 %i, %tid.x; mad.wide.u32 %a, %i, 4, %a;
    .loc 1 77 3
    st.global.u32 [%a], %i;
    """
    module = '.file 1 "dir/kernel.cu.j2"'
    with pytest.raises(MemoryFault) as caught:
        run(
            body, args=[pointer], params=".param .u64 p0", block=(64,), memory=memory, module=module
        )
    message = str(caught.value)
    assert "thread 40" in message
    assert "st.global.u32 [%a], %i" in message
    assert "kernel.cu.j2:77" in message


def test_freed_and_read_only_memory_fault():
    memory = DeviceMemory()
    pointer = memory.allocate(64, np.zeros(64, "u1"), writable=False)
    store = ".reg .b64 %a; ld.param.u64 %a, [p0]; st.global.u8 [%a], 1;"
    with pytest.raises(MemoryFault, match="read-only"):
        run(store, args=[pointer], params=".param .u64 p0", block=(1,), memory=memory)
    memory.free(pointer)
    with pytest.raises(MemoryFault):
        run(store, args=[pointer], params=".param .u64 p0", block=(1,), memory=memory)


def test_attached_arrays_are_not_copied():
    array = np.arange(32, dtype="u4")
    memory = DeviceMemory()
    pointer = memory.attach(array)
    body = """
    .reg .b64 %a; .reg .b32 %i, %v; ld.param.u64 %a, [p0]; mov.u32 %i, %tid.x;
    mad.wide.u32 %a, %i, 4, %a; ld.global.u32 %v, [%a]; add.u32 %v, %v, 100; st.global.u32 [%a], %v;
    """
    run(body, args=[pointer], params=".param .u64 p0", memory=memory)
    np.testing.assert_array_equal(array, np.arange(32) + 100)
    with pytest.raises(MemoryFault):
        run(body, args=[pointer], params=".param .u64 p0", memory=memory, block=(64,))


def test_lanes_may_touch_different_allocations():
    memory = DeviceMemory()
    first, second = (
        memory.allocate(64, np.arange(16, dtype="u4")),
        memory.allocate(64, np.arange(16, dtype="u4") + 50),
    )
    out = memory.allocate(128)
    body = """
    .reg .b64 %a, %b, %o; .reg .b32 %i, %j, %v; .reg .pred %p;
    ld.param.u64 %a, [p0]; ld.param.u64 %b, [p1]; ld.param.u64 %o, [p2];
    mov.u32 %i, %tid.x; and.b32 %j, %i, 15; setp.ge.u32 %p, %i, 16; selp.b64 %a, %b, %a, %p;
    mad.wide.u32 %a, %j, 4, %a; ld.u32 %v, [%a]; add.u32 %v, %v, 1; st.u32 [%a], %v;
    mad.wide.u32 %o, %i, 4, %o; ld.global.u32 %v, [%a]; st.global.u32 [%o], %v;
    """
    params = ".param .u64 p0, .param .u64 p1, .param .u64 p2"
    run(body, args=[first, second, out], params=params, memory=memory)
    np.testing.assert_array_equal(memory.read(out, "u4", 32), [*range(1, 17), *range(51, 67)])


def test_fresh_memory_is_poisoned():
    memory = DeviceMemory()
    out = memory.allocate(8)
    assert memory.read(out, "u4", 2).tolist() == [0xFFFFFFFF] * 2
    body = """
    .shared .align 4 .b8 s[4]; .local .align 4 .b8 l[4]; .reg .b64 %o; .reg .b32 %v, %u;
    ld.param.u64 %o, [p0]; ld.shared.u32 %v, [s]; ld.local.u32 %u, [l];
    st.global.v2.u32 [%o], {%v, %u};
    """
    memory.write(out, np.zeros(2, "u4"))
    run(body, args=[out], params=".param .u64 p0", block=(1,), memory=memory)
    assert memory.read(out, "u4", 2).tolist() == [0xFFFFFFFF] * 2


def test_shared_bounds_and_limit():
    body = """
    .shared .align 4 .b8 s[64]; .reg .b32 %a, %v;
    mov.u32 %a, s; add.u32 %a, %a, {offset}; ld.shared.u32 %v, [%a];
    """
    run(body.format(offset=60), block=(1,))
    with pytest.raises(MemoryFault, match="lies outside the block's shared memory"):
        run(body.format(offset=64), block=(1,))
    with pytest.raises(MemoryFault, match="not a multiple of 4"):
        run(body.format(offset=2), block=(1,))
    with pytest.raises(MemoryFault, match=r"232448"):
        run(".reg .b32 %a;", block=(1,), smem_bytes=232449)
    run(".reg .b32 %a;", block=(1,), smem_bytes=232448)
    with pytest.raises(MemoryFault, match=r"166912"):
        run(".reg .b32 %a;", block=(1,), smem_bytes=200000, target="sm_80")


def test_dynamic_shared_memory_follows_the_static_part():
    memory = DeviceMemory()
    out = memory.allocate(16)
    body = """
    .shared .align 4 .b8 fixed[20]; .reg .b64 %o; .reg .b32 %a, %b, %c;
    ld.param.u64 %o, [p0]; mov.u32 %a, fixed; mov.u32 %b, pool; mov.u32 %c, %dynamic_smem_size;
    st.shared.u32 [%b+28], %c; st.global.v4.u32 [%o], {%a, %b, %c, %c};
    """
    module = ".extern .shared .align 128 .b8 pool[];"
    run(
        body,
        args=[out],
        params=".param .u64 p0",
        block=(1,),
        memory=memory,
        module=module,
        smem_bytes=32,
    )
    fixed, pool, size, _ = memory.read(out, "u4", 4).tolist()
    assert (fixed, pool % 128, size) == (1024, 0, 32)
    assert pool >= fixed + 20


def test_local_memory_belongs_to_a_thread():
    a = integers("u4", 256, 1)
    body = """
    .local .align 8 .b8 depot[64]; .reg .b64 %l, %g; .reg .b32 %n, %m;
    mov.u64 %l, depot; cvta.local.u64 %g, %l; and.b32 %n, %a, 15; mul.wide.u32 %l, %n, 4;
    add.s64 %g, %g, %l;
    st.u32 [%g], %a; st.local.u32 [depot+60], %i;
    shl.b32 %m, %n, 2; cvt.u64.u32 %l, %m; cvta.to.local.u64 %g, %g; ld.local.u32 %d, [%g];
    """
    got = evaluate(body, [a], "u4")
    expected = np.where(a & 15 == 15, np.arange(256), a)
    np.testing.assert_array_equal(got, expected)
    with pytest.raises(MemoryFault, match="local offset"):
        evaluate(".local .align 4 .b8 l[8]; ld.local.u32 %d, [l+16];", [a], "u4")


def test_module_variables_and_initialisers():
    module = """
    .global .align 4 .u32 counts[4] = {1, 2, 0x10};
    .const .align 8 .f64 scales[2] = {0d3FF8000000000000, 0d4000000000000000};
    .global .align 1 .b8 text[6] = {104, 101, 108, 108, 111};
    .global .align 8 .u64 pointer = generic(counts);
    .global .f32 half = 0f3F000000;
    """
    body = """
    .reg .b64 %p, %s; .reg .f64 %x; .reg .f32 %f;
    ld.global.u32 %d0, [counts+8]; ld.const.f64 %x, [scales+8]; mov.b64 %d1, %x;
    ld.global.u8 %d2, [text+4]; ld.global.u64 %p, [pointer]; ld.u32 %d3, [%p+4];
    ld.global.f32 %f, [half]; mov.b32 %d4, %f;
    """
    got = evaluate(body, [], ["u4", "u8", "u4", "u4", "u4"], module=module)
    assert [int(v[0]) for v in got[:1]] == [16]
    assert got[1].view("f8")[0] == 2.0
    assert (got[2][0], got[3][0]) == (ord("o"), 2)
    assert got[4].view("f4")[0] == 0.5


def test_global_variables_live_as_long_as_the_arena():
    module = ".global .align 4 .u32 counter = 5;"
    body = ".reg .b32 %v; atom.global.add.u32 %v, [counter], 1; "
    memory = DeviceMemory()
    for _ in range(3):
        run(body, block=(32,), module=module, memory=memory)
    (address,) = memory.module_symbols.values()
    assert memory.read(address, "u4", 1)[0] == 5 + 96

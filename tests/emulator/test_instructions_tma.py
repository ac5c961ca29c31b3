"""Tensor copies executed from PTX text: loads, multicast, stores, reductions, edited maps."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from tma_programs import (
    BASE,
    COLUMNS,
    FILL,
    LOAD,
    MATRIX,
    POLICIES,
    ROWS,
    SMEM,
    STORE,
    WAIT,
    expect,
    load,
    loaded,
    program,
    run,
    store,
    tensor_bytes,
)

from gemmjit.emulator.faults import (
    Deadlock,
    MemoryFault,
    TensorMapFault,
    UnknownInstruction,
)
from gemmjit.emulator.tma import encode, gather4
from gemmjit.tensormap import ElementType, Swizzle, TensorMap


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("coordinates", [(0, 0), (64, 8), (-8, -3), (88, 35), (200, 0)], ids=str)
def test_a_load(coordinates, policy):
    tensor = tensor_bytes()
    smem, _ = run(program(expect(2048) + load() + WAIT), MATRIX, tensor, coordinates, policy=policy)
    np.testing.assert_array_equal(smem[0], loaded(MATRIX, tensor, coordinates))


def test_cache_hints_and_destinations_in_the_block():
    tensor = tensor_bytes(1)
    for opcode, tail in (
        (LOAD + ".L2::cache_hint", ", %x"),
        (LOAD.replace("2d", "2d.tile"), ""),
        (LOAD.replace("shared::cluster", "shared::cta"), ""),
    ):
        ptx = program(expect(2048) + load(opcode=opcode, tail=tail) + WAIT)
        smem, _ = run(ptx, MATRIX, tensor, (8, 4))
        np.testing.assert_array_equal(smem[0], loaded(MATRIX, tensor, (8, 4)))


def test_a_parameter_address_taken_in_32_bits():
    tensor = tensor_bytes(1)
    take = "mov.b32 %r6, map; cvt.u64.u32 %m, %r6; cvta.param.u64 %m, %m;\n"
    smem, _ = run(program(take + expect(2048) + load() + WAIT), MATRIX, tensor, (8, 4))
    np.testing.assert_array_equal(smem[0], loaded(MATRIX, tensor, (8, 4)))


def test_one_dimension_and_three():
    tensor = tensor_bytes(2)
    one = TensorMap(element_type=ElementType.UINT8, dims=(1000,), strides=(), box=(256,))
    ptx = program(expect(256) + load("{%c0}", LOAD.replace("2d", "1d")) + WAIT)
    smem, _ = run(ptx, one, tensor, (896, 0))
    np.testing.assert_array_equal(smem[0], loaded(one, tensor, (896,)))
    three = replace(
        MATRIX, dims=(64, 5, 8), strides=(208, 1040), box=(64, 2, 8), element_strides=(1, 1, 3)
    )
    ptx = program(expect(768) + load("{0, %c0, %c1}", LOAD.replace("2d", "3d")) + WAIT)
    smem, _ = run(ptx, three, tensor, (4, -1))
    np.testing.assert_array_equal(smem[0], loaded(three, tensor, (0, 4, -1)))


@pytest.mark.parametrize("policy", POLICIES)
def test_multicast_signals_every_block(policy):
    tensor = tensor_bytes(3)
    barrier = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
    # Rank 1 of four loads for ranks 0, 1 and 3; rank 2 expects nothing.
    body = f"""
    {barrier}
    mov.u32 %r3, %cluster_ctarank; setp.ne.u32 %p2, %r3, 2; setp.eq.and.u32 %p3, %r3, 1, %p0;
    and.pred %p1, %p0, %p2;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 2048;
    mov.b16 %h0, 11;
    @%p3 {LOAD}.multicast::cluster [%s], [%m, {{%c0, %c1}}], [%b], %h0;
    @!%p2 bra SKIP;
    {WAIT}
    SKIP:
    {barrier}
    """
    ptx = program(body)
    smem, _ = run(ptx, MATRIX, tensor, (8, 8), grid=8, cluster=4, policy=policy)
    for block in range(8):
        if block % 4 == 2:
            assert (smem[block] == 0xFF).all()
        else:
            np.testing.assert_array_equal(smem[block], loaded(MATRIX, tensor, (8, 8)))


def test_maps_in_global_memory_and_edited_maps():
    tensor = tensor_bytes(7)
    body = "mov.b64 %m, %x;\n" + expect(2048) + load() + WAIT
    smem, _ = run(
        program(body), MATRIX, tensor, (8, 2), extra=lambda at: np.frombuffer(
            encode(replace(MATRIX, dims=(70, 9)), at), np.uint8)
    )  # fmt: skip
    np.testing.assert_array_equal(smem[0], loaded(replace(MATRIX, dims=(70, 9)), tensor, (8, 2)))

    edit = """
    @!%p0 bra EDITED;
    tensormap.replace.tile.global_dim.global.b1024.b32 [%x], 0, 70;
    tensormap.replace.tile.global_dim.global.b1024.b32 [%x], 1, %r6;
    tensormap.replace.tile.box_dim.global.b1024.b32 [%x], 1, 8;
    fence.proxy.tensormap::generic.release.gpu;
    EDITED:
    bar.sync 0;
    fence.proxy.tensormap::generic.acquire.gpu [%x], 128;
    """
    body = "mov.b32 %r6, 9;\n" + edit + "mov.b64 %m, %x;\n" + expect(1024) + load() + WAIT
    smem, _ = run(
        program(body), MATRIX, tensor, (8, 2),
        extra=lambda at: np.frombuffer(encode(MATRIX, at), np.uint8),
    )  # fmt: skip
    expected = loaded(replace(MATRIX, dims=(70, 9), box=(64, 8)), tensor, (8, 2))
    np.testing.assert_array_equal(smem[0], expected)


def test_a_map_prepared_in_shared_memory():
    tensor = tensor_bytes(8)
    copy = "\n".join(
        f"ld.param.b64 %at, [map+{8 * i}]; @%p0 st.shared.b64 [%s+{4096 + 8 * i}], %at;"
        for i in range(16)
    )
    body = f"""
    {copy}
    add.u32 %r5, %s, 4096;
    @%p0 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r5], 1, 5;
    bar.sync 0;
    setp.lt.u32 %p2, %tid, 32;
    @!%p2 bra COPIED;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned \
 [%x], [%r5], 128;
    COPIED:
    bar.sync 0;
    fence.proxy.tensormap::generic.acquire.gpu [%x], 128;
    mov.b64 %m, %x;
    """
    smem, _ = run(program(body + expect(2048) + load() + WAIT), MATRIX, tensor, (0, 0))
    expected = loaded(replace(MATRIX, dims=(COLUMNS, 5)), tensor, (0, 0))
    np.testing.assert_array_equal(smem[0][:2048], expected[:2048])


def test_gather_of_four_rows():
    tensor = tensor_bytes(9)
    t = replace(MATRIX, box=(64, 1))
    opcode = LOAD.replace("2d", "2d.tile::gather4").replace("shared::cluster", "shared::cta")
    body = expect(512) + load("{%c0, %c1, 30, 2, 99}", opcode) + WAIT
    smem, _ = run(program(body, target="sm_100a"), t, tensor, (16, 7))
    expected = np.full(BASE + SMEM, 0xFF, np.uint8)
    box = gather4(t, 0, 16, (7, 30, 2, 99), BASE)
    box.write_shared(expected, tensor[box.runs[:, None] + np.arange(box.run_bytes)])
    np.testing.assert_array_equal(smem[0], expected[BASE:])


def test_the_matrix_arrives_unswizzled_when_asked():
    values = np.arange(ROWS * 104).reshape(ROWS, 104) % 251
    matrix = values.astype(ml_dtypes.bfloat16)
    t = replace(MATRIX, swizzle=Swizzle.NONE, box=(24, 16))
    ptx = program(expect(768) + load() + WAIT)
    smem, _ = run(ptx, t, matrix.view(np.uint8).reshape(-1), (8, 3))
    got = smem[0][:768].view(ml_dtypes.bfloat16).reshape(16, 24)
    np.testing.assert_array_equal(got.astype(int), values[3:19, 8:32])


FAULTS = [
    (expect(2048) + load(address="%s+64") + WAIT, MATRIX, (0, 0), TensorMapFault, "128"),
    (expect(2048) + load(address="%s+7168") + WAIT, MATRIX, (0, 0), MemoryFault, "outside"),
    (expect(2048) + load("{%c0}") + WAIT, MATRIX, (0, 0), UnknownInstruction, "coordinates"),
    (expect(2048) + load("{%c0}", LOAD.replace("2d", "1d")) + WAIT, MATRIX, (0, 0),
     TensorMapFault, "rank 2"),
    (expect(2048) + load(opcode=LOAD.replace("2d", "2d.im2col")) + WAIT, MATRIX, (0, 0),
     UnknownInstruction, "im2col"),
    (expect(2048) + load() + WAIT, replace(MATRIX, strides=(200,)), (0, 0), TensorMapFault,
     r"strides\[0\]"),
    (expect(2048) + load() + WAIT, replace(MATRIX, dims=(COLUMNS, ROWS + 1)), (0, 30),
     MemoryFault, "allocation"),
    (expect(4096) + load() + WAIT, MATRIX, (0, 0), Deadlock, "2048 transaction bytes pending"),
    (expect(1024) + load() + WAIT, MATRIX, (0, 0), Deadlock, "-1024 transaction bytes pending"),
    ("add.s64 %m, %m, 64;" + load() + WAIT, MATRIX, (0, 0), TensorMapFault, "emulator encoded"),
    ("add.s64 %m, %m, 32;" + load() + WAIT, MATRIX, (0, 0), TensorMapFault, "multiple of 64"),
    ("cvt.u64.u32 %m, %s; cvta.shared.u64 %m, %m;" + load() + WAIT, MATRIX, (0, 0),
     TensorMapFault, "global memory"),
    ("mov.b64 %m, %x;" + load() + WAIT, MATRIX, (0, 0), TensorMapFault, "unwritten"),
    (expect(2048) + load() + WAIT, MATRIX, (3, 0), TensorMapFault,
     r"multiple of 8 \(16 bytes.*(?s:.)*cp\.async\.bulk\.tensor"),
    (FILL + store(), MATRIX, (-1, 0), TensorMapFault, "negative"),
    (FILL + store(), MATRIX, (4, 0), TensorMapFault, "multiple of 8"),
    (FILL + store(), replace(MATRIX, dims=(COLUMNS, ROWS + 1)), (0, 30), MemoryFault, "allocation"),
    (FILL + store(STORE.replace("cp.", "cp.reduce.", 1).replace("cta", "cta.inc")), MATRIX, (0, 0),
     TensorMapFault, "inc does not take BFLOAT16"),
    (load(opcode=LOAD + ".multicast::cluster", tail=", 6") + WAIT, MATRIX, (0, 0), MemoryFault,
     "ctaMask"),
]  # fmt: skip


@pytest.mark.parametrize("policy", [("eager", 0), ("lazy", 0)])
@pytest.mark.parametrize("case", FAULTS, ids=lambda c: c[4])
def test_what_is_not_allowed_is_a_fault(case, policy):
    body, tensor_map, coordinates, fault, reason = case
    with pytest.raises(fault, match=reason):
        run(program(body), tensor_map, tensor_bytes(), coordinates, policy=policy)

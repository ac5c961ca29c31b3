"""4-bit and 6-bit elements on their way: tensor copies, ldmatrix, cvt."""

from __future__ import annotations

import numpy as np
import pytest
from lane_programs import evaluate, floats

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate
from gemmjit.emulator.faults import BarrierFault, Deadlock, TensorMapFault, UnknownInstruction
from gemmjit.emulator.formats import decode, encode
from gemmjit.emulator.tma import encode as encode_map
from gemmjit.tensormap import ElementType, Swizzle, TensorMap

ROWS = 16
POLICIES = [("eager", 0), ("lazy", 0), ("random", 3)]
TYPES = {
    4: (ElementType.U4X16_ALIGN16B, "b4x16_p64"),
    6: (ElementType.U6X16_ALIGN16B, "b6x16_p32"),
}


def program(fmt, expected_bytes, *, num=4, target="sm_120a", space="shared::cta"):
    """Load a box of 16 rows of 128 elements under the 128-byte swizzle; ldmatrix rows 0 to 15.

    Matrices 0 to 3: rows 0-7 and 8-15 of chunk 2, then of chunk 3.
    """
    out = "\n".join(f"st.global.b32 [%to+{4 * i}], %d{i};" for i in range(num))
    return f"""
.version 8.8
.target {target}
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 result)
{{
.shared .align 1024 .b8 smem[2048]; .shared .align 8 .b64 bar;
.reg .b64 %m, %to; .reg .b32 %t, %s, %b, %r, %q, %d<4>; .reg .pred %p, %w;
mov.b64 %m, map; cvta.param.u64 %m, %m; ld.param.u64 %to, [result];
mov.u32 %t, %tid.x; mov.u32 %s, smem; mov.u32 %b, bar;
setp.eq.u32 %p, %t, 0;
@%p mbarrier.init.shared::cta.b64 [%b], 1;
@%p fence.mbarrier_init.release.cluster;
bar.sync 0;
@%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {expected_bytes};
@%p cp.async.bulk.tensor.2d.{space}.global.mbarrier::complete_tx::bytes [%s], [%m, {{0, 0}}], [%b];
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %w, [%b], 0;
@!%w bra WAIT;
and.b32 %r, %t, 15; shr.u32 %q, %t, 4; add.u32 %q, %q, 2;
and.b32 %t, %r, 7; xor.b32 %q, %q, %t;
shl.b32 %r, %r, 7; shl.b32 %q, %q, 4; add.u32 %s, %s, %r; add.u32 %s, %s, %q;
ldmatrix.sync.aligned.m8n16.x{num}.shared.b8x16.{fmt} {{{", ".join(f"%d{i}" for i in range(num))}}},
 [%s];
mov.u32 %t, %tid.x; mad.wide.u32 %to, %t, 16, %to;
{out}
ret;
}}
"""


def tensor(bits, rng):
    """Codes (16, 128), and their packed rows."""
    codes = rng.integers(0, 1 << bits, (ROWS, 128)).astype(np.uint8)
    planes = np.stack([codes >> i & 1 for i in range(bits)], axis=-1)
    return codes, np.packbits(planes.reshape(ROWS, -1), axis=1, bitorder="little")


def load(bits, expected_bytes=None, policy=("eager", 0), seed=0, **options):
    codes, rows = tensor(bits, np.random.default_rng(seed))
    element, fmt = TYPES[bits]
    described = TensorMap(
        element_type=element, dims=(128, ROWS), strides=(rows.shape[1],), box=(128, ROWS),
        swizzle=Swizzle.BYTES_128,
    )  # fmt: skip
    memory = DeviceMemory()
    at, to = memory.allocate(rows.nbytes, rows), memory.allocate(32 * 16)
    ptx = program(fmt, rows.nbytes if expected_bytes is None else expected_bytes, **options)
    launch = KernelLaunch(
        ptx=ptx, entry="k", grid=(1,), block=(32,), args=[encode_map(described, at), to],
        memory=memory,
    )  # fmt: skip
    emulate([launch], policy=policy[0], seed=policy[1])
    return codes, memory.read(to, np.uint8, 512).reshape(32, 4, 4)


@pytest.mark.parametrize("bits", [4, 6])
@pytest.mark.parametrize("policy", POLICIES)
def test_padded_copies_and_expanding_loads(policy, bits):
    codes, got = load(bits, policy=policy)
    for lane, j, e in np.ndindex(32, 4, 4):
        row, column = 8 * (j % 2) + lane // 4, 16 * (2 + j // 2) + lane % 4 * 4 + e
        assert got[lane, j, e] == codes[row, column]


@pytest.mark.parametrize("bits", [4, 6])
def test_bytes_are_counted_as_they_are_packed(bits):
    with pytest.raises((Deadlock, BarrierFault)):
        load(bits, expected_bytes=ROWS * 128, policy=("lazy", 0))


def test_expanding_loads_of_other_forms_are_refused():
    with pytest.raises(UnknownInstruction, match="semantics"):
        evaluate(
            "ldmatrix.sync.aligned.m8n8.x1.shared.b8x16.b4x16_p64 {%d}, [%a];",
            [np.zeros(32, np.uint32)], np.uint32, target="sm_120a",
        )  # fmt: skip


def test_sm_120_copies_small_elements_into_its_own_block_only():
    with pytest.raises(TensorMapFault, match="shared::cta"):
        load(4, space="shared::cluster")
    load(4, space="shared::cluster", target="sm_100a")


PAIRS = {"e2m1": 4, "e2m3": 8, "e3m2": 8, "e4m3": 8, "e5m2": 8}


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("name", PAIRS)
def test_cvt_to_and_from_pairs(name, relu):
    width = PAIRS[name]
    a, b = floats(np.float32, 256, 1), floats(np.float32, 256, 2)
    a, b = (np.where(np.abs(x) > 1e4, x * np.float32(2.0**-40), x) for x in (a, b))
    declare, to = ".reg .b16 %h;", "cvt.u32.u16 %d, %h;"
    target = "%h"
    if width == 4:
        declare, to, target = ".reg .b8 %h;", "cvt.u32.u8 %d, %h;", "%h"
    body = f"cvt.rn.satfinite{relu}.{name}x2.f32 {target}, %a, %b; {to}"
    got = evaluate(body, [a, b], np.uint32, declare=declare, target="sm_120a")
    high, low = (encode(name, x, satfinite=True, relu=bool(relu)).astype(np.uint32) for x in (a, b))
    np.testing.assert_array_equal(got, high << np.uint32(width) | low)
    codes = got.astype(np.uint32)
    source, move = ("b16", "cvt.u16.u32 %h, %a;") if width == 8 else ("b8", "cvt.u8.u32 %h, %a;")
    back = evaluate(
        f"{move} cvt.rn.f16x2.{name}x2 %d, %h;", [codes], np.uint32,
        declare=f".reg .{source} %h;", target="sm_120a",
    )  # fmt: skip
    for half in (0, 1):
        expected = decode(name, codes >> np.uint32(width * half) & np.uint32((1 << width) - 1))
        found = (back >> np.uint32(16 * half)).astype(np.uint16).view(np.float16)
        np.testing.assert_array_equal(found.astype(np.float32), expected)


@pytest.mark.parametrize("rounding", ["rz", "rp"])
@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
def test_cvt_of_scales(rounding, satfinite):
    a, b = floats(np.float32, 256, 3), floats(np.float32, 256, 4)
    body = f"cvt.{rounding}{satfinite}.ue8m0x2.f32 %h, %a, %b; cvt.u32.u16 %d, %h;"
    got = evaluate(body, [a, b], np.uint32, declare=".reg .b16 %h;", target="sm_100a")
    high, low = (
        encode("ue8m0", x, rounding, satfinite=bool(satfinite)).astype(np.uint32) for x in (a, b)
    )
    np.testing.assert_array_equal(got, high << np.uint32(8) | low)
    back = evaluate(
        "cvt.u16.u32 %h, %a; cvt.rn.bf16x2.ue8m0x2 %d, %h;", [got], np.uint32,
        declare=".reg .b16 %h;", target="sm_100a",
    )  # fmt: skip
    low_half = (back << np.uint32(16)).view(np.float32)
    np.testing.assert_array_equal(low_half, decode("ue8m0", low))

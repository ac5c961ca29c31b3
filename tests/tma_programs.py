"""A program of one TMA copy, and what it should do."""

from __future__ import annotations

import numpy as np

from gemmjit.emulator.executor import KernelLaunch, emulate
from gemmjit.emulator.memory import DeviceMemory
from gemmjit.emulator.tma import encode, load_box
from gemmjit.tensormap import ElementType, Swizzle, TensorMap

SMEM = 8192
BASE = 1024  # first shared offset of an sm_90 block
ROWS, COLUMNS = 40, 100
MATRIX = TensorMap(
    element_type=ElementType.BFLOAT16,
    dims=(COLUMNS, ROWS),
    strides=(208,),
    box=(64, 16),
    swizzle=Swizzle.BYTES_128,
)
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
POLICIES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]


def program(body, *, target="sm_90a"):
    """A kernel of 128 threads: `body` runs in all, thread 0 has %p0, shared memory goes out."""
    return f"""
.version 8.7
.target {target}
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 result, .param .u64 extra,
                  .param .u32 column, .param .u32 row)
{{
.shared .align 1024 .b8 smem[{SMEM}];
.shared .align 8 .b8 bar[8];
.reg .b64 %m, %to, %x, %at; .reg .b32 %tid, %s, %b, %c<8>, %r<8>; .reg .pred %p<4>;
.reg .b32 %v<4>; .reg .b16 %h<2>;
mov.b64 %m, map; cvta.param.u64 %m, %m;
ld.param.u64 %to, [result]; ld.param.u64 %x, [extra];
ld.param.u32 %c0, [column]; ld.param.u32 %c1, [row];
mov.u32 %tid, %tid.x; mov.u32 %s, smem; mov.u32 %b, bar;
setp.eq.u32 %p0, %tid, 0;
@%p0 mbarrier.init.shared::cta.b64 [%b], 1;
fence.mbarrier_init.release.cluster;
bar.sync 0;
{body}
mov.u32 %r7, %ctaid.x; mul.wide.u32 %at, %r7, {SMEM}; add.s64 %to, %to, %at;
mov.u32 %r0, %tid;
OUT:
setp.ge.u32 %p1, %r0, {SMEM // 16};
@%p1 bra END;
shl.b32 %r1, %r0, 4; add.u32 %r2, %r1, %s;
ld.shared.v4.b32 {{%v0, %v1, %v2, %v3}}, [%r2];
cvt.u64.u32 %at, %r1; add.s64 %at, %at, %to;
st.global.v4.b32 [%at], {{%v0, %v1, %v2, %v3}};
add.u32 %r0, %r0, 128;
bra OUT;
END:
ret;
}}
"""


WAIT = """
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%b], 0;
@!%p1 bra WAIT;
"""


def expect(nbytes):
    return f"@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {nbytes};\n"


def load(coordinates="{%c0, %c1}", opcode=LOAD, tail="", address="%s"):
    return f"@%p0 {opcode} [{address}], [%m, {coordinates}], [%b]{tail};\n"


def run(ptx, tensor_map, tensor, coordinates, *, extra=None, grid=1, cluster=1, policy=("eager", 0),
        offset=0):  # fmt: skip
    """Run; returns shared memory of every block, and the tensor afterwards."""
    memory = DeviceMemory()
    at = memory.allocate(tensor.nbytes, tensor)
    to = memory.allocate(SMEM * grid)
    more = memory.allocate(256, extra(at) if extra else None)
    emulate(
        [KernelLaunch(ptx=ptx, entry="k", grid=(grid,), block=(128,), cluster=(cluster,),
                      args=[encode(tensor_map, at + offset), to, more, *coordinates],
                      memory=memory)],
        policy=policy[0], seed=policy[1],
    )  # fmt: skip
    smem = memory.read(to, np.uint8, SMEM * grid).reshape(grid, SMEM)
    return smem, memory.read(at, np.uint8, tensor.nbytes)


def tensor_bytes(seed=0):
    return np.random.default_rng(seed).integers(0, 256, 208 * ROWS, dtype=np.uint8)


def loaded(tensor_map, tensor, coordinates):
    """Shared memory after a load into poison."""
    smem = np.full(BASE + SMEM, 0xFF, np.uint8)
    box = load_box(tensor_map, 0, coordinates, BASE)
    box.write_shared(smem, tensor[box.runs[:, None] + np.arange(box.run_bytes)])
    return smem[BASE:]


FILL = """
mov.u32 %r0, %tid;
FILL:
setp.ge.u32 %p1, %r0, 512;
@%p1 bra FILLED;
mul.lo.u32 %r1, %r0, 16; add.u32 %r1, %r1, %s;
mov.b32 %v0, %r0; add.u32 %v1, %r0, 1000; add.u32 %v2, %r0, 2000; add.u32 %v3, %r0, 3000;
st.shared.v4.b32 [%r1], {%v0, %v1, %v2, %v3};
add.u32 %r0, %r0, 128;
bra FILL;
FILLED:
fence.proxy.async.shared::cta;
bar.sync 0;
"""


def store(opcode=STORE, tail=""):
    return f"@%p0 {opcode} [%m, {{%c0, %c1}}], [%s]{tail};\n"

"""PTX around `ldmatrix.m16n16` and `stmatrix.m16n8`: a warp's 32 rows of 16 bytes."""

from __future__ import annotations

import numpy as np

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate

PRELUDE = """
.version 8.8
.target {target}
.address_size 64
.visible .entry k(.param .u64 source, .param .u64 result)
{{
.shared .align 16 .b8 smem[512];
.reg .b64 %from, %to, %at; .reg .b32 %t, %s, %row, %v<4>, %r<4>;
ld.param.u64 %from, [source]; ld.param.u64 %to, [result];
mov.u32 %t, %tid.x; mov.u32 %s, smem; shl.b32 %row, %t, 4; add.u32 %row, %row, %s;
mul.wide.u32 %at, %t, 16; add.s64 %from, %from, %at; add.s64 %to, %to, %at;
ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%from];
"""
TO_SHARED = "st.shared.v4.b32 [%row], {%v0, %v1, %v2, %v3}; bar.warp.sync -1;"
FROM_SHARED = """bar.warp.sync -1; ld.shared.v4.b32 {%v0, %v1, %v2, %v3}, [%row];
st.global.v4.b32 [%to], {%v0, %v1, %v2, %v3};"""


def _run(body, source, target):
    memory = DeviceMemory()
    to = memory.allocate(512)
    ptx = PRELUDE.format(target=target) + body + "\nret;\n}\n"
    launch = KernelLaunch(
        ptx=ptx, entry="k", grid=(1,), block=(32,), memory=memory,
        args=[memory.allocate(512, np.ascontiguousarray(source).view(np.uint8)), to],
    )  # fmt: skip
    report = emulate([launch])
    return memory.read(to, np.uint8, 512), report


def _registers(count):
    return "{" + ", ".join(f"%r{i}" for i in range(count)) + "}"


def load(rows, opcode, count, *, order="", target="sm_120a", reporting=False):
    """Bytes of the registers of every lane, (32, count, 4); `order` may change %row."""
    stores = "".join(f"st.global.b32 [%to+{4 * i}], %r{i};" for i in range(count))
    body = f"{TO_SHARED} {order} {opcode} {_registers(count)}, [%row]; {stores}"
    words, report = _run(body, rows, target)
    found = words.reshape(32, 4, 4)[:, :count]
    return (found, report) if reporting else found


def store(registers, opcode, *, target="sm_120a", reporting=False):
    """32 rows of 16 bytes, (32, 16), after a store of registers, (32, count, 4)."""
    count = registers.shape[1]
    source = np.zeros((32, 4, 4), np.uint8)
    source[:, :count] = registers
    moves = "".join(f"mov.b32 %r{i}, %v{i};" for i in range(count))
    clear = "mov.b32 %v0, 0; st.shared.v4.b32 [%row], {%v0, %v0, %v0, %v0}; bar.warp.sync -1;"
    body = f"{moves} {clear} {opcode} [%row], {_registers(count)}; {FROM_SHARED}"
    words, report = _run(body, source, target)
    return (words.reshape(32, 16), report) if reporting else words.reshape(32, 16)

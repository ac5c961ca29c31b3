"""Programs around `tcgen05` in hand-written PTX: shared memory in, tensor memory out.

A block (or a pair) of 128 threads fills shared memory from an array, warp 0 allocates tensor
memory, thread 0 (of the first block) runs a body and commits, and every warp dumps its lanes.
"""

from __future__ import annotations

import numpy as np

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate

SMEM = 32768
WAIT = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %w, [%bar], 0; @!%w bra WAIT;"
AFTER = "tcgen05.fence::after_thread_sync;"
BEFORE = "tcgen05.fence::before_thread_sync;"
LOADED = "tcgen05.wait::ld.sync.aligned;"
STORED = "tcgen05.wait::st.sync.aligned;"
SWIZZLES = {0: 0, 32: 6, 64: 4, 128: 2, "128 by 32": 1}


def registers(name, count):
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def meet(ranks):
    if ranks == 1:
        return "bar.sync 0;"
    return "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def commit(ranks=1, mask=3):
    if ranks == 1:
        return "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];"
    return (
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        f"[%bar], {mask};"
    )


def finished(ranks=1):
    """Wait, in the body, for all that it has issued."""
    return f"""tcgen05.commit.cta_group::{ranks}.mbarrier::arrive::one.shared::cluster.b64 [%bar+8];
    INNER: mbarrier.try_wait.parity.shared::cta.b64 %w, [%bar+8], 0; @!%w bra INNER; {AFTER}"""


def dump(columns):
    """Load all columns, 32 at a time, and store them: 4 * columns bytes a lane."""
    lines = ["and.b32 %t3, %tid, 96; shl.b32 %t3, %t3, 16; add.u32 %t3, %t3, %tm;"]
    for first in range(0, columns, 32):
        lines.append(f"add.u32 %t1, %t3, {first};")
        lines.append(f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers('r', 32)}, [%t1];")
        lines.append(LOADED)
        lines += [f"st.global.b32 [%to+{4 * (first + i)}], %r{i};" for i in range(32)]
    return "\n".join(lines)


def program(
    body, *, columns=32, allocated=None, ranks=1, before="", wait=WAIT, after=AFTER,
    read=None, alloc=None, free=None, commits=None, target="sm_100a",
):  # fmt: skip
    """PTX; `body` runs in thread 0, `before` in all threads (%tm is the tensor memory)."""
    count = allocated or max(32, 1 << (columns - 1).bit_length())
    group = f"cta_group::{ranks}"
    if alloc is None:
        alloc = f"""tcgen05.alloc.{group}.sync.aligned.shared::cta.b32 [%place], {count};
        tcgen05.relinquish_alloc_permit.{group}.sync.aligned;"""
    if free is None:
        free = f"tcgen05.dealloc.{group}.sync.aligned.b32 %tm, {count};"
    directive = f".reqnctapercluster {ranks}, 1, 1" if ranks > 1 else ""
    return f"""
.version 8.8
.target {target}
.address_size 64
.visible .entry k(.param .u64 source, .param .u64 result) {directive}
{{
.shared .align 1024 .b8 smem[{SMEM}]; .shared .align 8 .b64 bar[2]; .shared .align 4 .b32 place;
.reg .b64 %from, %to, %at, %base, %a, %b, %big; .reg .pred %p, %w, %warp0, %one, %first, %no, %yes;
.reg .b32 %tid, %rank, %s, %bar, %place, %tm, %i, %t<4>, %v<4>, %r<128>, %q<128>; .reg .b16 %h;
ld.param.u64 %from, [source]; ld.param.u64 %to, [result];
mov.u32 %tid, %tid.x; mov.u32 %rank, %cluster_ctarank;
mov.u32 %s, smem; mov.u32 %bar, bar; mov.u32 %place, place;
mad.wide.u32 %from, %rank, {SMEM}, %from;
mad.wide.u32 %to, %rank, {128 * 4 * columns}, %to; mad.wide.u32 %to, %tid, {4 * columns}, %to;
mov.u32 %i, %tid;
FILL:
setp.lt.u32 %p, %i, {SMEM // 16};
@!%p bra FILLED;
mul.wide.u32 %at, %i, 16; add.s64 %at, %at, %from;
ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%at];
shl.b32 %t0, %i, 4; add.u32 %t0, %t0, %s;
st.shared.v4.b32 [%t0], {{%v0, %v1, %v2, %v3}};
add.u32 %i, %i, 128;
bra FILL;
FILLED:
fence.proxy.async.shared::cta;
setp.eq.u32 %one, %tid, 0; setp.lt.u32 %warp0, %tid, 32;
setp.ne.u32 %no, 0, 0; setp.eq.u32 %yes, 0, 0;
@%one mbarrier.init.shared::cta.b64 [%bar], 1;
@%one mbarrier.init.shared::cta.b64 [%bar+8], 1;
@%one fence.mbarrier_init.release.cluster;
@!%warp0 bra ALLOCATED;
{alloc}
ALLOCATED:
{BEFORE} {meet(ranks)} {AFTER}
ld.shared.b32 %tm, [%place];
and.b32 %t0, %s, 0xffffff; shr.u32 %t0, %t0, 4; cvt.u64.u32 %base, %t0;
{before}
setp.eq.u32 %first, %rank, 0; and.pred %first, %first, %one;
@!%first bra ISSUED;
{body}
{commit(ranks) if commits is None else commits}
ISSUED:
{wait}
{after}
{dump(columns) if read is None else read}
{BEFORE} {meet(ranks)} {AFTER}
@!%warp0 bra FREED;
{free}
FREED:
ret;
}}
"""


def execute(ptx, source, *, columns=32, ranks=1, **options):
    """Return tensor memory (ranks, 128, columns), and the report."""
    data = np.zeros((ranks, SMEM), np.uint8)
    source = np.asarray(source).reshape(ranks, -1)
    data[:, : source.shape[1]] = source
    memory = DeviceMemory()
    to = memory.allocate(ranks * 128 * columns * 4)
    launch = KernelLaunch(
        ptx=ptx, entry="k", grid=(ranks,), block=(128,), cluster=(ranks,),
        args=[memory.allocate(data.nbytes, data), to], memory=memory,
    )  # fmt: skip
    report = emulate([launch], **options)
    return memory.read(to, np.uint32, ranks * 128 * columns).reshape(ranks, 128, columns), report


def descriptor(offset, lbo, sbo, swizzle):
    """64 bits, to which the start of shared memory / 16 is added."""
    code = SWIZZLES[swizzle]
    return (offset >> 4) | (lbo >> 4) << 16 | (sbo >> 4) << 32 | 1 << 46 | code << 61


def set_descriptor(name, bits):
    return f"mov.b64 %{name}, {bits}; add.s64 %{name}, %{name}, %base;"


def mma(
    kind, idesc, a, b, *, d="%tm", accumulate="%no", ranks=1, tail="", scales="", a_text="%a",
    collector="",
):  # fmt: skip
    """One product of descriptors a (or an address in `a_text`) and b."""
    lines = [set_descriptor("a", a)] if a is not None else []
    lines.append(set_descriptor("b", b))
    opcode = f"tcgen05.mma.cta_group::{ranks}.kind::{kind}{collector}"
    lines.append(f"{opcode} [{d}], {a_text}, %b, {idesc},{scales}{tail} {accumulate};")
    return "\n".join(lines)


def swizzled(address, swizzle):
    """Where a byte goes, by the formula of the manual."""
    if swizzle == 0:
        return address
    if swizzle == "128 by 32":
        return address ^ (address >> 7 & 3) << 5
    return address ^ (address >> 7 & (swizzle // 16 - 1)) << 4


class Tile:
    """A matrix (rows, k) in shared memory, byte by byte, in a canonical layout.

    Parameters
    ----------
    octets : array of uint8, (rows, 32) K-major, or (k, rows bytes) MN-major
        One instruction's bytes along the contiguous dimension.
    """

    def __init__(self, octets, swizzle, mn_major=False, offset=0):
        self.swizzle, self.offset = swizzle, offset
        span = {"128 by 32": 128}.get(swizzle, swizzle) or 16
        outer, width = octets.shape
        deep = 4 if swizzle == "128 by 32" and mn_major else 8
        places = {}
        if mn_major:
            blocks, groups = -(-width // span), -(-outer // deep)
            if swizzle:
                self.sbo = deep * span
                self.lbo = groups * self.sbo
                step, along = self.sbo, self.lbo
            else:  # roles are swapped
                self.lbo = 8 * 16
                self.sbo = groups * self.lbo
                step, along = self.lbo, self.sbo
            for k, byte in np.ndindex(outer, width):
                places[k, byte] = (
                    byte % span + byte // span * along + k % deep * span + k // deep * step
                )
            self.nbytes = blocks * groups * deep * span
        else:
            chunk = span if swizzle else 16
            self.sbo = 8 * chunk
            self.lbo = (-(-outer // 8)) * self.sbo if not swizzle else 16
            for r, byte in np.ndindex(outer, width):
                column = byte if swizzle else byte % 16 + byte // 16 * self.lbo
                places[r, byte] = r % 8 * chunk + r // 8 * self.sbo + column
            self.nbytes = -(-outer // 8) * self.sbo * (1 if swizzle else 2)
        self.places = places
        self.octets = octets

    def put(self, smem):
        for at, place in self.places.items():
            smem[swizzled(self.offset + place, self.swizzle)] = self.octets[at]

    @property
    def bits(self):
        return descriptor(self.offset, self.lbo, self.sbo, self.swizzle)

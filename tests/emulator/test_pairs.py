"""Tensor copies of pairs of blocks: whose barrier `.cta_group::2` signals, also with multicast."""

from __future__ import annotations

import numpy as np
import pytest

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate
from gemmjit.emulator.faults import BarrierFault, Deadlock
from gemmjit.emulator.tma import encode
from gemmjit.tensormap import ElementType, TensorMap

ROWS, BYTES = 16, 16 * 64


def program(cluster, *, expected, issuer=1, mask=None, address="0xfeffffff", group=2):
    """Block `issuer` loads; every even block expects bytes; all that expect wait, then dump."""
    multicast = ".multicast::cluster" if mask is not None else ""
    load = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    extra = f", {mask}" if mask is not None else ""
    return f"""
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 result)
  .reqnctapercluster {cluster}, 1, 1
{{
.shared .align 1024 .b8 smem[{BYTES}]; .shared .align 8 .b64 bar;
.reg .b64 %m, %to; .reg .b32 %t, %s, %b, %rank, %v, %even; .reg .pred %p, %w, %e, %i;
mov.b64 %m, map; cvta.param.u64 %m, %m; ld.param.u64 %to, [result];
mov.u32 %t, %tid.x; mov.u32 %s, smem; mov.u32 %b, bar; mov.u32 %rank, %cluster_ctarank;
setp.eq.u32 %p, %t, 0; and.b32 %even, %rank, 1; setp.eq.u32 %e, %even, 0;
@%p mbarrier.init.shared::cta.b64 [%b], 1;
@%p fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
setp.eq.and.u32 %i, %rank, {issuer}, %p;
and.pred %e, %e, %p;
@%e mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {expected};
and.b32 %v, %b, {address};
@%i {load}{multicast}.cta_group::{group} [%s], [%m, {{0, 0}}], [%v]{extra};
setp.eq.u32 %e, %even, 0;
@!%e bra DONE;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %w, [%b], 0;
@!%w bra WAIT;
DONE:
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mad.lo.u32 %v, %rank, 32, %t; mad.wide.u32 %to, %v, 4, %to;
mad.lo.u32 %t, %t, 4, %s; ld.shared.b32 %v, [%t]; st.global.b32 [%to], %v;
ret;
}}
"""


def run(cluster, policy="eager", **options):
    data = np.random.default_rng(0).integers(0, 2**32, ROWS * 16, np.uint32)
    described = TensorMap(
        element_type=ElementType.UINT8, dims=(64, ROWS), strides=(64,), box=(64, ROWS)
    )
    memory = DeviceMemory()
    at, to = memory.allocate(data.nbytes, data), memory.allocate(cluster * 128)
    launch = KernelLaunch(
        ptx=program(cluster, **options), entry="k", grid=(cluster,), block=(32,),
        cluster=(cluster, 1, 1), args=[encode(described, at), to], memory=memory,
    )  # fmt: skip
    emulate([launch], policy=policy)
    return memory.read(to, np.uint32, cluster * 32).reshape(cluster, 32), data[:32]


def filled(cluster, blocks, data):
    expected = np.full((cluster, 32), 0xFFFFFFFF, np.uint32)
    expected[blocks] = data
    return expected


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
def test_the_second_block_signals_the_first(policy):
    got, data = run(2, policy, expected=BYTES)
    np.testing.assert_array_equal(got, filled(2, [1], data))


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
@pytest.mark.parametrize("issuer", [1, 2])
def test_multicast_signals_the_first_block_of_every_pair(issuer, policy):
    # All four blocks receive; each pair's bytes are counted by its even block.
    got, data = run(4, policy, expected=2 * BYTES, issuer=issuer, mask=15)
    np.testing.assert_array_equal(got, filled(4, [0, 1, 2, 3], data))
    with pytest.raises(Deadlock):
        run(4, policy, expected=2 * BYTES, issuer=issuer, mask=7)


def test_without_the_pair_a_barrier_is_where_the_data_go():
    with pytest.raises(BarrierFault, match="its data go to block 1"):
        run(2, expected=BYTES, group=1)
    with pytest.raises(BarrierFault, match="its data go to block 3"):
        run(4, expected=BYTES, issuer=3, address="0xfcffffff")

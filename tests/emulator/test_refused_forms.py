"""What `docs/explanation/emulator.md` lists as not there is refused, by name, and never guessed."""

from __future__ import annotations

import numpy as np
import pytest
from lane_programs import evaluate
from tcgen05_products import Product
from tcgen05_scaled import KINDS, Scaled

from gemmjit.emulator.faults import MemoryFault, UnknownInstruction

DECLARE = """.reg .b32 %x<8>; .reg .b64 %l<4>; .reg .b16 %h<4>; .shared .align 16 .b8 sm[64];
.reg .pred %u;"""
NOT_THERE = [
    "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%x0, %x1, %x2, %x3}, "
    "{%x0, %x1}, {%x0, %x1}, {%x0, %x1, %x2, %x3}, %x4, 0;",
    "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%x0, %x1, %x2, %x3}, %l0, %l1, %x4, 0, "
    "%u, 1, 1, 0, 0;",
    "tcgen05.mma.sp.cta_group::1.kind::f16 [%x0], %l0, %l1, [%x1], %x2, %u;",
    "tcgen05.mma.ws.sp.cta_group::1.kind::f16 [%x0], %l0, %l1, [%x1], %x2, %u;",
    "tcgen05.mma.cta_group::1.kind::f16.ashift [%x0], [%x1], %l1, %x2, %u;",
    "cvt.rs.bf16x2.f32 %d, %a, %a, %a;", "add.f32.bf16 %d, %h0, %a;",
    "st.bulk.weak.shared::cta [%x0], 64, 1;", "multimem.ld_reduce.global.add.f32 %d, [%at];",
    "tex.2d.v4.f32.s32 {%x0, %x1, %x2, %x3}, [%l0, {%a, %a}];",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_THERE, ids=lambda text: text.split()[0])
def test_an_instruction_without_semantics(text):
    with pytest.raises(UnknownInstruction, match=r"semantics|unknown") as caught:
        evaluate(text, [np.zeros(32, np.uint32)], np.uint32, declare=DECLARE, target="sm_103a")
    assert "at PTX line" in str(caught.value)
    assert text.split()[0] in str(caught.value)


def test_a_k_of_96():
    s = Scaled(*KINDS[2], n=32)
    s.idesc |= 1 << 31
    with pytest.raises(UnknownInstruction, match="K of 96"):
        s.run()


def test_a_sparse_instruction_descriptor():
    p = Product()
    p.idesc |= 1 << 2
    with pytest.raises(UnknownInstruction, match="sparse"):
        p.run()


@pytest.mark.parametrize(("bit", "reason"), [(49, "base offset"), (52, "absolute")])
def test_fields_of_matrix_descriptors(bit, reason):
    p = Product()
    p.bits = (p.bits[0] | 1 << bit, p.bits[1])
    with pytest.raises(MemoryFault, match=reason):
        p.run()

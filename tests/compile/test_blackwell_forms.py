"""ptxas has the forms that the emulator gives a meaning, and lacks those that it refuses."""

from __future__ import annotations

import pytest

from gemmjit.arch import Arch
from gemmjit.compiler import get_compiler
from gemmjit.errors import CompileError

REGISTERS = '"+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])'
WS = "setp.ne.u32 p, %0, 0; tcgen05.mma.ws.cta_group::1.kind::{} [%0], {}, %4, %0, {};"
LD = "tcgen05.ld.red.sync.aligned.{} {{%0, %1}}, %2, [%3]{};"
ACCEPTED = [
    (WS.format("f16.collector::b2::fill", "[%0]", "p, 0"), "sm_100a"),
    (WS.format("tf32", "%4", "p, %4"), "sm_100f"),
    (LD.format("32x32b.x2.max.abs.NaN.f32", ""), "sm_103a"),
    (LD.format("16x32bx2.x2.min.s32", ", 16"), "sm_103a"),
    ("ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {%0, %1, %2, %3}, [%3];", "sm_120a"),
    ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8x16.b4x16_p64 {%0, %1}, [%3];", "sm_100a"),
    ("stmatrix.sync.aligned.m16n8.x4.trans.shared.b8 [%0], {%0, %1, %2, %3};", "sm_120a"),
]
REFUSED = [
    (WS.format("tf32", "%4", "{%0, %0, %0, %0}, p"), "sm_100a"),
    (WS.format("tf32.collector::a::fill", "%4", "p"), "sm_100a"),
    (LD.format("32x32b.x2.min.abs.s32", ""), "sm_103a"),
    (LD.format("32x32b.x1.min.s32", "").replace("{%0, %1}", "{%0}"), "sm_103a"),
    ("ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%0, %1}, [%3];", "sm_120a"),
    ("ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8 {%0, %1, %2, %3}, [%3];", "sm_120a"),
    ("stmatrix.sync.aligned.m16n8.x1.shared.b8 [%0], {%0};", "sm_120a"),
]


def compiled(text, target):
    source = f"""extern "C" __global__ void k(unsigned *out, unsigned long long wide) {{
      unsigned r[4];
      for (int i = 0; i < 4; ++i) r[i] = out[i];
      asm volatile("{{.reg .pred p; {text} }}" : {REGISTERS} : "l"(wide));
      for (int i = 0; i < 4; ++i) out[i] = r[i];
    }}"""
    return get_compiler().compile(source, target=Arch.parse(target), name="k")


@pytest.mark.parametrize(("text", "target"), ACCEPTED)
def test_accepted(text, target):
    assert compiled(text, target).cubin


@pytest.mark.parametrize(("text", "target"), REFUSED)
def test_refused(text, target):
    with pytest.raises(CompileError):
        compiled(text, target)

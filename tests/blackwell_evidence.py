"""What is known of Blackwell's instructions, and from where; what the tests execute of them.

Nothing here has met the hardware. The next best are kernels of others that are right on it:
DeepGEMM's and CUTLASS's ran exactly in an earlier emulator with the same reading of the manual,
Triton's run exactly in this one (``tests/emulator/test_triton.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from blackwell_kernels import Gemm100, Gemm120
from tcgen05_products import Product
from tcgen05_programs import STORED, execute, program, registers
from tcgen05_scaled import KINDS, Scaled

DEEPGEMM, CUTLASS, TRITON = "DeepGEMM", "CUTLASS", "Triton"

#: Full names (as patterns) and the kernels that use them. The first match counts.
KNOWN_GOOD: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"tcgen05\.alloc\.cta_group::1.*", (DEEPGEMM, CUTLASS, TRITON)),
    (r"tcgen05\.alloc\.cta_group::2.*", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.mma\.cta_group::1\.kind::f16", (DEEPGEMM, CUTLASS, TRITON)),
    (r"tcgen05\.mma\.cta_group::2\.kind::f16", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.mma\.cta_group::1\.kind::tf32", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.mma\.cta_group::1\.kind::mxf8f6f4\.block_scale.*", (DEEPGEMM, CUTLASS, TRITON)),
    (r"tcgen05\.mma\.cta_group::2\.kind::mxf8f6f4\.block_scale.*", (DEEPGEMM,)),
    (r"tcgen05\.mma\.cta_group::1\.kind::mxf4\.block_scale.*", (CUTLASS, TRITON)),
    (r"tcgen05\.mma\.cta_group::1\.kind::mxf4nvf4\.block_scale\.(block16|scale_vec::4X)",
     (TRITON,)),
    (r"tcgen05\.mma\.cta_group::2\.kind::mxf4nvf4\.block_scale\.(block16|scale_vec::4X)",
     (CUTLASS,)),
    (r"tcgen05\.cp\.cta_group::[12]\.32x128b\.warpx4", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.ld\.sync\.aligned\.32x32b\.x(4|8|16|32|64)\.b32", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.ld\.sync\.aligned\.32x32b\.x128\.b32", (DEEPGEMM, CUTLASS, TRITON)),
    (r"tcgen05\.ld\.sync\.aligned\.(16x256b\.x1|16x128b\.x8)\.b32", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.st\.sync\.aligned\.32x32b\.x\d+\.b32", (TRITON,)),
    (r"tcgen05\.st\.sync\.aligned\.16x256b\.x1\.b32", (DEEPGEMM,)),
    (r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one(\.shared::cluster)?\.b64",
     (DEEPGEMM, CUTLASS, TRITON)),
    (r"tcgen05\.commit\.cta_group::[12]\.mbarrier::arrive::one(\.shared::cluster)?"
     r"(\.multicast::cluster)?\.b64", (DEEPGEMM, CUTLASS)),
    (r"mma\.sync\.aligned\..*kind::mxf8f6f4\.block_scale.*\.(e4m3|e5m2)\.(e4m3|e5m2)\..*",
     (CUTLASS, TRITON)),
    (r"mma\.sync\.aligned\..*kind::mxf8f6f4\.block_scale.*\.(e2m1|e3m2|e4m3)\.(e2m1|e3m2|e4m3)\..*",
     (CUTLASS,)),
    (r"mma\.sync\.aligned\..*kind::mxf4nvf4\.block_scale\.scale_vec::[24]X.*", (CUTLASS, TRITON)),
    (r"mma\.sync\.aligned\..*kind::mxf4\.block_scale.*", (CUTLASS,)),
    (r"ldmatrix\.sync\.aligned\.m8n16\..*b8x16\.(b4x16_p64|b6x16_p32)", (CUTLASS,)),
    (r"clusterlaunchcontrol\..*", (CUTLASS,)),
    (r"cp\.async\.bulk\.tensor\..*\.cta_group::2", (DEEPGEMM, CUTLASS)),
)  # fmt: skip

#: Known kernels have these, but no number that comes out depends on them: only the manual speaks.
ORDER_ONLY = re.compile(r"tcgen05\.(dealloc|relinquish_alloc_permit|wait|fence)")

_BLACKWELL = re.compile(
    r"tcgen05\.|clusterlaunchcontrol\.|mma\.sync.*kind::|.*b8x16|.*cta_group::2"
)


def known_good(name: str) -> tuple[str, ...]:
    """Whose kernels use an instruction rightly."""
    for pattern, sources in KNOWN_GOOD:
        if re.fullmatch(pattern, name):
            return sources
    return ()


def of_blackwell(names: Iterable[str]) -> set[str]:
    """The instructions that only sm_100 and later have."""
    return {name for name in names if _BLACKWELL.match(name)}


def _reports() -> Iterator[tuple[str, object]]:
    for pair in (1, 2):
        for control in (0, 1):
            yield "gemm_sm100", Gemm100(pair=pair, control=control).run()[1]
    for packed in (0, 1):
        gemm = Gemm120(packed=packed, dim_m=64, dim_n=32, steps=1)
        yield "gemm_sm120", gemm.run()[1]
    for ranks in (1, 2):
        for a_type in ("bf16", "tf32", "e4m3", "s8"):
            p = Product(a_type, a_type, m=128 * ranks, n=32, ranks=ranks,
                        d_type="s32" if a_type == "s8" else "f32")  # fmt: skip
            ptx = program(p.mma(), ranks=ranks)
            yield "products", execute(ptx, p.smem, ranks=ranks)[1]
        for kind in KINDS:
            yield "scaled products", Scaled(*kind, n=32, ranks=ranks).run()[1]
    for shape, count in (("32x32b", 1), ("16x64b", 1), ("16x128b", 2), ("16x256b", 4),
                         ("16x32bx2", 1)):  # fmt: skip
        split = ", 8" if shape == "16x32bx2" else ""
        vector = registers("r", count)
        before = f"""mov.b32 %r0, 0; and.b32 %t3, %tid, 96; shl.b32 %t3, %t3, 16;
        add.u32 %t3, %t3, %tm;
        tcgen05.st.sync.aligned.{shape}.x1.b32 [%t3]{split}, {vector}; {STORED}
        tcgen05.ld.sync.aligned.{shape}.x1.b32 {vector}, [%t3]{split};
        tcgen05.wait::ld.sync.aligned;"""
        ptx = program("", before=before, wait="", commits="", read="")
        yield "loads and stores", execute(ptx, [0])[1]


def executed() -> dict[str, set[str]]:
    """Instructions of Blackwell and the tests' kernels that execute them."""
    found: dict[str, set[str]] = {}
    for user, report in _reports():
        for name in of_blackwell(report.instructions):
            found.setdefault(name, set()).add(user)
    return found

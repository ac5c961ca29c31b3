"""What is known of Blackwell's instructions, and from where; what the tests execute of them.

Nothing here has met the hardware. The next best are kernels of others that are right on it.
Triton's run exactly in this emulator (``tests/emulator/test_triton.py``), and what they execute is
generated: ``tests/data/triton_instructions.txt``. DeepGEMM's and CUTLASS's ran exactly in an
earlier emulator with the same reading of the manual; `KNOWN_GOOD` is the record of that, by hand.
The layouts in `WRITTEN_DOWN` are formulas in CUTLASS's sources, to which tests compare.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from blackwell_kernels import Gemm100, Gemm120
from byte_matrices import load, store
from tcgen05_products import Product
from tcgen05_programs import STORED, descriptor, execute, program, registers, set_descriptor
from tcgen05_scaled import KINDS, Scaled

DEEPGEMM, CUTLASS, TRITON = "DeepGEMM", "CUTLASS", "Triton"
TRITON_RECORD = Path(__file__).with_name("data") / "triton_instructions.txt"

#: Full names (as patterns) and the kernels, of an earlier emulator's, that use them.
KNOWN_GOOD: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"tcgen05\.alloc\.cta_group::[12].*", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.mma\.cta_group::[12]\.kind::f16", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.mma\.cta_group::1\.kind::tf32", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.mma\.cta_group::1\.kind::mxf8f6f4\.block_scale.*", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.mma\.cta_group::2\.kind::mxf8f6f4\.block_scale.*", (DEEPGEMM,)),
    (r"tcgen05\.mma\.cta_group::1\.kind::mxf4\.block_scale.*", (CUTLASS,)),
    (r"tcgen05\.mma\.cta_group::2\.kind::mxf4nvf4\.block_scale\.(block16|scale_vec::4X)",
     (CUTLASS,)),
    (r"tcgen05\.cp\.cta_group::[12]\.32x128b\.warpx4", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.ld\.sync\.aligned\.32x32b\.x(4|8|16|32|64|128)\.b32", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.ld\.sync\.aligned\.(16x256b\.x1|16x128b\.x8)\.b32", (DEEPGEMM, CUTLASS)),
    (r"tcgen05\.st\.sync\.aligned\.16x256b\.x1\.b32", (DEEPGEMM,)),
    (r"tcgen05\.commit\.cta_group::[12]\.mbarrier::arrive::one(\.shared::cluster)?"
     r"(\.multicast::cluster)?\.b64", (DEEPGEMM, CUTLASS)),
    (r"mma\.sync\.aligned\..*kind::mxf8f6f4\.block_scale.*\.(e2m1|e3m2|e4m3)\.(e2m1|e3m2|e4m3)\..*",
     (CUTLASS,)),
    (r"mma\.sync\.aligned\..*kind::mxf4nvf4\.block_scale\.scale_vec::[24]X.*", (CUTLASS,)),
    (r"mma\.sync\.aligned\..*kind::mxf4\.block_scale.*", (CUTLASS,)),
    (r"ldmatrix\.sync\.aligned\.m8n16\..*b8x16\.(b4x16_p64|b6x16_p32)", (CUTLASS,)),
    (r"clusterlaunchcontrol\..*", (CUTLASS,)),
    (r"cp\.async\.bulk\.tensor\..*\.cta_group::2", (DEEPGEMM, CUTLASS)),
)  # fmt: skip

#: Instructions whose layouts CUTLASS's sources give (`mma_traits_sm100_frag.hpp`,
#: `copy_traits_sm100.hpp`), and the tests that compare with them.
WRITTEN_DOWN = (
    (r"tcgen05\.(ld|st)\.sync\.aligned\..*", "test_tcgen05_ld_st"),
    (r"tcgen05\.mma\.ws\..*", "test_tcgen05_stationary"),
    (r"(ldmatrix\.sync\.aligned\.m16n16|stmatrix\.sync\.aligned\.m16n8)\..*",
     "test_byte_matrices"),
)  # fmt: skip

#: Known kernels have these, but no number that comes out depends on them: only the manual speaks.
ORDER_ONLY = re.compile(r"tcgen05\.(dealloc|relinquish_alloc_permit|wait|fence)")

_BLACKWELL = re.compile(
    r"tcgen05\.|clusterlaunchcontrol\.|mma\.sync.*kind::|.*b8x16|.*cta_group::2|ldmatrix.*m16n16"
    r"|stmatrix.*m16n8"
)


def canonical(name: str) -> str:
    """A name with its size of scales as `.blockN`: one instruction has up to three names."""
    if name.startswith("tcgen05.mma.") and ".block_scale" in name:
        head, _, size = name.partition(".block_scale")
        fine = size in (".block16", ".scale_vec::4X")
        return f"{head}.block_scale.block{16 if fine else 32}"
    return name


@cache
def triton_record() -> frozenset[str]:
    """What Triton's kernels execute."""
    return frozenset(TRITON_RECORD.read_text(encoding="utf-8").split())


def known_good(name: str) -> tuple[str, ...]:
    """Whose kernels use an instruction rightly."""
    found: tuple[str, ...] = ()
    for pattern, sources in KNOWN_GOOD:
        if re.fullmatch(pattern, name):
            found = sources
            break
    if canonical(name) in {canonical(each) for each in triton_record()}:
        found += (TRITON,)
    return found


def written_down(name: str) -> str:
    """The test that compares an instruction with CUTLASS's layouts, or nothing."""
    return next((test for pattern, test in WRITTEN_DOWN if re.fullmatch(pattern, name)), "")


def of_blackwell(names: Iterable[str]) -> set[str]:
    """The instructions that only sm_100 and later have."""
    return {name for name in names if _BLACKWELL.match(name)}


def _exact(got: object, expected: object) -> None:
    """What does not compute rightly is no evidence."""
    np.testing.assert_array_equal(got, expected)


def _reports() -> Iterator[tuple[str, object]]:
    for pair in (1, 2):
        for control in (0, 1):
            wrong, report = Gemm100(pair=pair, control=control).run()
            _exact(wrong, 0)
            yield "gemm_sm100", report
    for packed in (0, 1):
        wrong, report = Gemm120(packed=packed, dim_m=64, dim_n=32, steps=1).run()
        _exact(wrong, 0)
        yield "gemm_sm120", report
    for ranks in (1, 2):
        for a_type in ("bf16", "tf32", "e4m3", "s8"):
            p = Product(a_type, a_type, m=128 * ranks, n=32, ranks=ranks,
                        d_type="s32" if a_type == "s8" else "f32")  # fmt: skip
            words, report = execute(program(p.mma(), ranks=ranks), p.smem, ranks=ranks)
            _exact(p.d(words), p.exact)
            yield "products", report
        for kind in KINDS:
            s = Scaled(*kind, n=32, ranks=ranks)
            got, report = s.run()
            _exact(got, s.exact.astype(np.float32))
            yield "scaled products", report
    for a_type in ("bf16", "tf32", "e4m3", "s8"):
        p = Product(a_type, a_type, n=64, d_type="s32" if a_type == "s8" else "f32")
        body = p.mma().replace("tcgen05.mma.", "tcgen05.mma.ws.")
        words, report = execute(program(body, columns=64), p.smem, columns=64)
        _exact(p.d(words), p.exact)
        yield "products", report
    yield from _moves()


def _moves() -> Iterator[tuple[str, object]]:
    for shape, count in (("32x32b", 1), ("16x64b", 1), ("16x128b", 2), ("16x256b", 4),
                         ("16x32bx2", 1)):  # fmt: skip
        split = ", 8" if shape == "16x32bx2" else ""
        numbers = "".join(f"mad.lo.u32 %r{i}, %tid, 8, {i};" for i in range(count))
        check = "".join(f"setp.ne.u32 %p, %q{i}, %r{i}; @%p trap;" for i in range(count))
        before = f"""{numbers} and.b32 %t3, %tid, 96; shl.b32 %t3, %t3, 16;
        add.u32 %t3, %t3, %tm;
        tcgen05.st.sync.aligned.{shape}.x1.b32 [%t3]{split}, {registers("r", count)}; {STORED}
        tcgen05.ld.sync.aligned.{shape}.x1.b32 {registers("q", count)}, [%t3]{split};
        tcgen05.wait::ld.sync.aligned; {check}"""
        ptx = program("", before=before, wait="", commits="", read="")
        yield "loads and stores", execute(ptx, [0])[1]
    before = f"""and.b32 %t3, %tid, 96; shl.b32 %t3, %t3, 16; add.u32 %t3, %t3, %tm;
    add.u32 %r0, %tid, 5; tcgen05.st.sync.aligned.32x32b.x2.b32 [%t3], {{%tid, %r0}}; {STORED}
    tcgen05.ld.red.sync.aligned.32x32b.x2.max.u32 {{%q0, %q1}}, %q2, [%t3];
    tcgen05.wait::ld.sync.aligned; setp.ne.u32 %p, %q2, %r0; @%p trap;"""
    ptx = program("", before=before, wait="", commits="", read="", target="sm_103a")
    yield "loads and stores", execute(ptx, [0])[1]
    rows = np.random.default_rng(0).integers(0, 256, (128, 16), np.uint8)
    copied = set_descriptor("a", descriptor(0, 0, 128, 0))
    copied += "tcgen05.cp.cta_group::1.128x128b [%tm], %a;"
    for shift in ("", "tcgen05.shift.cta_group::1.down [%tm];"):
        words, report = execute(program(copied + shift), rows.reshape(-1))
        first = words[0, :, :4].copy().view(np.uint8)
        _exact(first[:31], rows[:31] if not shift else rows[1:32])
        yield "loads and stores", report
    matrix = rows[:32]
    registers_, report = load(matrix, "ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8", 4,
                              reporting=True)  # fmt: skip
    _exact(registers_[0, 0], matrix[:4, 0])
    yield "loads and stores", report
    stored, report = store(registers_, "stmatrix.sync.aligned.m16n8.x4.trans.shared.b8",
                           reporting=True)  # fmt: skip
    _exact(stored[0, 0], registers_[0, 0, 0])
    yield "loads and stores", report


def executed() -> dict[str, set[str]]:
    """Instructions of Blackwell and the tests' kernels that execute them."""
    found: dict[str, set[str]] = {}
    for user, report in _reports():
        for name in of_blackwell(report.instructions):
            found.setdefault(name, set()).add(user)
    return found

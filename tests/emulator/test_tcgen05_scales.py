"""Block-scaled `tcgen05.mma`: scales by `tcgen05.cp` and `st`, ids, NaN, and what is undecided."""

from __future__ import annotations

import numpy as np
import pytest
from tcgen05_products import POLICIES
from tcgen05_programs import STORED
from tcgen05_scaled import ATOM, KINDS, Scaled

from gemmjit.emulator.faults import UndecidedSemantics


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize(
    ("n", "ranks"), [(64, 1), (128, 1), (192, 1), (256, 1), (128, 2), (256, 2)]
)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k[0]}{k[1]}-{k[3]}")
def test_scales_of_every_kind(kind, n, ranks, policy, seed):
    s = Scaled(*kind, n=n, ranks=ranks, seed=n)
    got, report = s.run(policy=(policy, seed))
    np.testing.assert_array_equal(got, s.exact.astype(np.float32))
    assert not report.warnings


@pytest.mark.parametrize("n", [32, 96, 256])
@pytest.mark.parametrize("kind", KINDS[::2], ids=lambda k: f"{k[0]}{k[1]}-{k[3]}")
def test_64_rows_of_each_block_of_a_pair(kind, n):
    s = Scaled(*kind, n=n, ranks=2, rows=64, seed=n)
    got, report = s.run()
    np.testing.assert_array_equal(got, s.exact.astype(np.float32))
    assert "scale_parts" in report.warnings[0]
    assert len(report.warnings) == 1


@pytest.mark.parametrize("b", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
@pytest.mark.parametrize("a", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_mixed_formats(a, b):
    for mn in (False, True):
        s = Scaled(*KINDS[0], a=a, b=b, n=32, mn=mn)
        np.testing.assert_array_equal(s.run()[0], s.exact.astype(np.float32))


@pytest.mark.parametrize(("kind", "ids"), [
    (KINDS[0], (1, 2)), (KINDS[0], (3, 0)), (KINDS[2], (2, 0)), (KINDS[4], (0, 2)),
])  # fmt: skip
def test_ids_choose_bytes(kind, ids):
    s = Scaled(*kind, ids=ids)
    np.testing.assert_array_equal(s.run()[0], s.exact.astype(np.float32))


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_copies_and_products_keep_their_order(policy, seed):
    s = Scaled(*KINDS[2])
    body = s.copies() + s.mma() + s.copies() + s.mma(accumulate="%yes")
    got, _ = s.run(body, (policy, seed))
    np.testing.assert_array_equal(got, (2 * s.exact).astype(np.float32))


def test_a_nan_scale_spoils_its_row_or_column_alone():
    s = Scaled(*KINDS[6])
    s.sfa[5, 3] = s.sfb[77, 0] = 0x7F
    s.put_scales()
    expected = np.zeros((128, 128), np.bool_)
    expected[5], expected[:, 77] = True, True
    for numerics in ("fp32", "tensor_core"):
        got, _ = s.run(numerics=numerics)
        np.testing.assert_array_equal(np.isnan(got), expected)
        assert set(got.view(np.uint32)[np.isnan(got)].tolist()) == {0x7FFFFFFF}


def stored_scales(s, spoil):
    """Scales by `tcgen05.st`; `spoil` is PTX that may change %r0 to %r7 in some warps."""
    loads = "".join(
        f"ld.shared.b32 %r{i}, [%i+{s.scales_at + ATOM * (i // 4) + 4 * (i % 4)}];"
        for i in range(8)
    )
    return f"""and.b32 %i, %tid, 31; shl.b32 %i, %i, 4; add.u32 %i, %i, %s; {loads} {spoil}
    and.b32 %t3, %tid, 96; shl.b32 %t3, %t3, 16; add.u32 %t3, %t3, %tm; add.u32 %t3, %t3, 256;
    tcgen05.st.sync.aligned.32x32b.x8.b32 [%t3], {{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}};
    {STORED} tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;"""


def test_quadrants_that_differ_are_undecided():
    s = Scaled(*KINDS[0], a="e4m3", b="e4m3")
    got, report = s.run(s.mma(), before=stored_scales(s, ""))
    np.testing.assert_array_equal(got, s.exact.astype(np.float32))
    assert not report.warnings
    # Warps 1 to 3 double all their scales: one more in each of the exponents.
    spoil = "setp.gt.u32 %p, %tid, 31;" + "".join(f"@%p add.u32 %r{i}, %r{i}, 1;" for i in range(8))
    got, report = s.run(s.mma(), before=stored_scales(s, spoil))
    np.testing.assert_array_equal(got, s.exact.astype(np.float32))
    assert "scale_quadrant" in report.warnings[0]
    got, _ = s.run(s.mma(), before=stored_scales(s, spoil), readings={"scale_quadrant": "own"})
    factor = np.where(np.arange(128) < 32, 1, 4)[:, None]
    np.testing.assert_array_equal(got, (s.exact * factor).astype(np.float32))
    with pytest.raises(UndecidedSemantics, match="scale_quadrant"):
        s.run(s.mma(), before=stored_scales(s, spoil), undecided="error")


def test_scales_of_b_that_differ_in_a_pair_are_undecided():
    s = Scaled(*KINDS[0], a="e4m3", b="e4m3", ranks=2)
    at = slice(s.scales_at + ATOM, s.scales_at + 2 * ATOM)
    s.smem[1, at] += 1  # NaN bytes become 0, which nobody reads
    for reading, factor in (("own", 2), ("leader", 1)):
        got, report = s.run(readings={"scale_b_pair": reading})
        expected = s.exact * np.where(np.arange(256) < 128, 1, factor)[:, None]
        np.testing.assert_array_equal(got, expected.astype(np.float32))
        assert "scale_b_pair" in report.warnings[0]

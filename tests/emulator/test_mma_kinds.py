"""`mma.sync` with a kind: values against float64, scale selectors, NaN, what is undecided."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from mma_kinds import (
    a_lanes,
    b_lanes,
    finite_codes,
    matrix_of,
    pack_a,
    pack_b,
    program,
    registers_of,
    run,
    scale_words,
    values,
)

from gemmjit.emulator.faults import UndecidedSemantics, UnknownInstruction

SMALL = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
# kind, K, scales of a row, type of a scale
SCALED = [
    ("mxf8f6f4", 32, 1, "ue8m0"), ("mxf4", 64, 2, "ue8m0"), ("mxf4nvf4", 64, 2, "ue8m0"),
    ("mxf4nvf4", 64, 4, "ue8m0"), ("mxf4nvf4", 64, 4, "ue4m3"),
]  # fmt: skip


class Case:
    """Operands of one instruction, and the exact result."""

    def __init__(self, a_type, b_type, k, per_row=0, scale_type="", seed=0):
        rng = np.random.default_rng(seed)
        self.types, self.per_row = (a_type, b_type), per_row
        self.a = finite_codes(rng, a_type, (16, k))
        self.b = finite_codes(rng, b_type, (k, 8))
        self.c = rng.integers(-64, 65, (16, 8)).astype(np.float32)
        low, high = (122, 133) if scale_type == "ue8m0" else (0x20, 0x50)
        self.scale_type = scale_type
        self.sfa = rng.integers(low, high, (16, max(per_row, 1))).astype(np.uint8)
        self.sfb = rng.integers(low, high, (8, max(per_row, 1))).astype(np.uint8)

    @property
    def exact(self):
        a, b = values(self.types[0], self.a), values(self.types[1], self.b)
        if self.per_row:
            size = a.shape[1] // self.per_row
            a = a * np.repeat(values(self.scale_type, self.sfa), size, axis=1)
            b = b * np.repeat(values(self.scale_type, self.sfb), size, axis=1).T
        return a @ b + self.c

    def words(self, ids=(0, 0, 0, 0), spread=True):
        byte_a, thread_a, byte_b, thread_b = ids
        words = np.zeros((32, 12), np.uint32)
        words[:, :4] = pack_a(self.a, self.types[0])
        words[:, 4:6] = pack_b(self.b, self.types[1])
        words[:, 6:10] = registers_of(self.c).view(np.uint32)
        words[:, 10] = scale_words(self.sfa, a_lanes(thread_a, spread), byte_a, spread)
        words[:, 11] = scale_words(self.sfb, b_lanes(thread_b, spread), byte_b, spread)
        return words


def scaled_name(kind, k, per_row, scale_type, types, first=True):
    size = f".scale_vec::{per_row}X" if per_row else ""
    kind = f"kind::{kind}.block_scale{size}"
    shape = f"m16n8k{k}.row.col"
    front = f"{kind}.{shape}" if first else f"{shape}.{kind}"
    return f"{front}.f32.{types[0]}.{types[1]}.f32.{scale_type}"


def tail(ids=(0, 0, 0, 0), braces=True):
    a, b = ("{%x10}", "{%x11}") if braces else ("%x10", "%x11")
    return f", {a}, {{{ids[0]}, {ids[1]}}}, {b}, {{{ids[2]}, {ids[3]}}}"


@pytest.mark.parametrize("b_type", SMALL)
@pytest.mark.parametrize("a_type", SMALL)
def test_small_floats_of_any_two_formats(a_type, b_type):
    case = Case(a_type, b_type, 32, seed=SMALL.index(a_type) * 5 + SMALL.index(b_type))
    name = f"m16n8k32.row.col.kind::f8f6f4.f32.{a_type}.{b_type}.f32"
    got, report = run(program(name), case.words())
    # Sums are in FP32: each of 33 terms may lose half a unit of the largest partial sum.
    bound = 33 * 2.0**-24 * (abs(values(a_type, case.a)) @ abs(values(b_type, case.b)) + 64)
    assert (abs(matrix_of(got.view(np.float32)) - case.exact) <= bound).all()
    assert not report.warnings
    scaled = Case(a_type, b_type, 32, 1, "ue8m0")
    ptx = program(scaled_name("mxf8f6f4", 32, 1, "ue8m0", (a_type, b_type)), tail())
    got, report = run(ptx, scaled.words())
    np.testing.assert_array_equal(matrix_of(got.view(np.float32)), scaled.exact.astype(np.float32))
    assert not report.warnings


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("kind", "k", "per_row", "scale_type"), SCALED)
def test_scales(kind, k, per_row, scale_type, first):
    types = ("e3m2", "e4m3") if k == 32 else ("e2m1", "e2m1")
    case = Case(*types, k, per_row, scale_type, seed=per_row)
    ptx = program(scaled_name(kind, k, per_row, scale_type, types, first), tail(braces=first))
    got, report = run(ptx, case.words())
    np.testing.assert_array_equal(matrix_of(got.view(np.float32)), case.exact.astype(np.float32))
    assert not report.warnings


SELECTORS = [
    (1, ids) for ids in itertools.product((0, 3), (0, 1), (1, 2), (0, 2, 3))
] + [(2, ids) for ids in itertools.product((0, 2), (0, 1), (0, 2), (0, 3))]  # fmt: skip


@pytest.mark.parametrize(("per_row", "ids"), SELECTORS, ids=str)
def test_selectors_pick_bytes_and_lanes(per_row, ids):
    kind, k, types = ("mxf4", 64, ("e2m1", "e2m1"))
    if per_row == 1:
        kind, k, types = ("mxf8f6f4", 32, ("e5m2", "e2m3"))
    case = Case(*types, k, per_row, "ue8m0", seed=sum(ids))
    ptx = program(scaled_name(kind, k, per_row, "ue8m0", types), tail(ids))
    got, report = run(ptx, case.words(ids, spread=False))
    np.testing.assert_array_equal(matrix_of(got.view(np.float32)), case.exact.astype(np.float32))
    assert any("scale_lanes" in w for w in report.warnings)
    assert any("scale_selector" in w for w in report.warnings) == any(ids)
    with pytest.raises(UndecidedSemantics, match="scale_"):
        run(ptx, case.words(ids, spread=False), undecided="error")


def test_a_nan_scale_spoils_its_row_or_column_alone():
    case = Case("e2m1", "e2m1", 64, 4, "ue4m3")
    case.sfa[3, 1], case.sfb[6, 2] = 0x7F, 0x7F
    ptx = program(scaled_name("mxf4nvf4", 64, 4, "ue4m3", case.types), tail())
    for numerics in ("fp32", "tensor_core"):
        got, _ = run(ptx, case.words(), numerics=numerics)
        nan = np.isnan(matrix_of(got.view(np.float32)))
        expected = np.zeros((16, 8), np.bool_)
        expected[3], expected[:, 6] = True, True
        np.testing.assert_array_equal(nan, expected)
        assert set(got[np.isnan(got.view(np.float32))].tolist()) == {0x7FFFFFFF}


def test_ff_is_nan_and_the_other_ends_of_ue8m0_are_numbers():
    case = Case("e4m3", "e4m3", 32, 1, "ue8m0")
    case.a[:] = case.b[:] = 0x38  # 1.0
    case.c[:] = 0
    case.sfa[:, 0] = [255, 254, 0, *[127] * 13]
    case.sfb[:, 0] = [127, 0, 254, *[127] * 5]
    ptx = program(scaled_name("mxf8f6f4", 32, 1, "ue8m0", case.types), tail())
    got = matrix_of(run(ptx, case.words())[0].view(np.float32))
    assert np.isnan(got[0]).all()
    assert got[1].tolist() == [np.inf, 32, *[np.inf] * 6]
    assert got[2, :3].tolist() == [32 * 2.0**-127, 0, 32]
    assert got[3].tolist() == [32, 32 * 2.0**-127, np.inf, *[32] * 5]


def test_unused_bits_of_containers_are_reported():
    case = Case("e2m1", "e3m2", 32, 1, "ue8m0")
    words = case.words()
    ptx = program(scaled_name("mxf8f6f4", 32, 1, "ue8m0", case.types), tail())
    clean, report = run(ptx, words)
    assert not report.warnings
    words[5, 0] |= np.uint32(1)
    got, report = run(ptx, words)
    np.testing.assert_array_equal(got, clean)
    assert "container_padding" in report.warnings[0]


REFUSED = [
    ("m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e2m1.f16", "", "both"),
    ("m16n8k16.row.col.kind::f8f6f4.f32.e4m3.e2m1.f32", "", "m16n8k32"),
    ("kind::mxf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0", tail(),
     "scales"),
    ("kind::mxf4nvf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3", tail(),
     "scales"),
    ("kind::mxf4nvf4.block_scale.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3", tail(), "scales"),
    ("kind::mxf4.block_scale.m16n8k64.row.col.f32.e4m3.e2m1.f32.ue8m0", tail(), "elements"),
    ("kind::mxf4.block_scale.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0", tail((1, 0, 0, 0)),
     "byte-id-a"),
    ("kind::mxf4.block_scale.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0", tail((0, 2, 0, 0)),
     "thread-id-a"),
    ("kind::mxf8f6f4.m16n8k32.row.col.f32.e4m3.e4m3.f32", "", "form"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "end", "reason"), REFUSED)
def test_forms_that_the_manual_does_not_list(name, end, reason):
    with pytest.raises(UnknownInstruction, match=reason):
        run(program(name, end), np.zeros((32, 12), np.uint32))

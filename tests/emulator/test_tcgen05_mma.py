"""`tcgen05.mma` from PTX text: kinds, layouts of operands and results, negation, masks."""

from __future__ import annotations

import numpy as np
import pytest
from tcgen05_products import CODE, POLICIES, Product
from tcgen05_programs import AFTER, BEFORE, STORED, Tile, commit, execute, program, registers

from gemmjit.emulator.accumulate import Accumulation, matrix_product
from gemmjit.emulator.faults import Deadlock


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(("a_mn", "b_mn"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("kind", ["bf16", "f16", "e4m3", "s8"])
def test_majors_and_swizzles(kind, a_mn, b_mn, swizzle):
    p = Product(kind, kind, swizzle=swizzle, a_mn=bool(a_mn), b_mn=bool(b_mn), seed=swizzle,
                d_type="s32" if kind == "s8" else "f32")  # fmt: skip
    np.testing.assert_array_equal(p.d(p.run()), p.exact)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_tf32_is_k_major_but_for_one_swizzle(swizzle):
    p = Product("tf32", "tf32", swizzle=swizzle)
    np.testing.assert_array_equal(p.d(p.run()), p.exact)


def test_tf32_along_m_and_n():
    p = Product("tf32", "tf32", swizzle="128 by 32", a_mn=True, b_mn=True)
    np.testing.assert_array_equal(p.d(p.run()), p.exact)


SHAPES = [(64, 8, 1), (64, 40, 1), (128, 16, 1), (128, 256, 1), (64, 256, 1), (128, 32, 2),
          (128, 256, 2), (256, 32, 2), (256, 192, 2)]  # fmt: skip


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
@pytest.mark.parametrize(("m", "n", "ranks"), SHAPES)
def test_shapes_and_layouts_of_d(m, n, ranks, policy, seed):
    p = Product(m=m, n=n, ranks=ranks, seed=n, swizzle=32)
    np.testing.assert_array_equal(p.d(p.run(policy=(policy, seed))), p.exact)


@pytest.mark.parametrize("b_type", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
@pytest.mark.parametrize("a_type", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_small_floats(a_type, b_type):
    p = Product(a_type, b_type, n=32, seed=CODE[a_type] * 8 + CODE[b_type])
    np.testing.assert_array_equal(p.d(p.run()), p.exact)
    along = Product(a_type, b_type, n=32, swizzle=64, a_mn=True, b_mn=True, m=64)
    np.testing.assert_array_equal(along.d(along.run()), along.exact)


@pytest.mark.parametrize(("a_type", "b_type"), [("u8", "s8"), ("s8", "u8"), ("u8", "u8")])
def test_integers(a_type, b_type):
    p = Product(a_type, b_type, d_type="s32")
    np.testing.assert_array_equal(p.d(p.run()), p.exact)


@pytest.mark.parametrize("negate", [1, 2, 3])
def test_negation(negate):
    p = Product(negate=negate)
    np.testing.assert_array_equal(p.d(p.run()), p.exact)


@pytest.mark.parametrize("a_type", ["f16", "e2m1"])
def test_a_half_result_is_the_lower_half_of_a_column(a_type):
    p = Product(a_type, a_type, d_type="f16")
    half = p.exact.astype(np.float16)
    np.testing.assert_array_equal(p.d(p.run()), half)
    twice = p.run(p.mma() + p.mma(accumulate="%yes"))
    np.testing.assert_array_equal(p.d(twice), (half + p.exact).astype(np.float16))


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_products_add_up_in_order(policy, seed):
    p = Product(ranks=2, m=256)
    body = p.mma() + p.mma(accumulate="%yes") * 2 + p.mma(accumulate="!%no")
    np.testing.assert_array_equal(p.d(p.run(body, (policy, seed))), 4 * p.exact)
    body = p.mma(accumulate="%no") + p.mma(accumulate="!%yes", collector=".collector::a::lastuse")
    np.testing.assert_array_equal(p.d(p.run(body, (policy, seed))), p.exact)


def test_the_old_sum_can_be_scaled():
    p = Product()
    body = p.mma() + p.mma(accumulate="%yes").replace("%yes;", "%yes, 3;")
    np.testing.assert_array_equal(p.d(p.run(body)), p.exact * 9 / 8)


@pytest.mark.parametrize("ranks", [1, 2])
def test_disabled_lanes_keep_what_they_had(ranks):
    p = Product(m=128 * ranks, ranks=ranks)
    masks = [0x1, 0x80000000, 0, 0xF0, 0x2, 0, 0x100, 0][: 4 * ranks]
    body = p.mma() + p.mma(accumulate="%yes", tail=" {" + ", ".join(map(str, masks)) + "},")
    got = p.d(p.run(body))
    factor = np.full(p.m, 2.0)
    for row in range(p.m):
        factor[row] -= masks[row // 32] >> row % 32 & 1
    assert 1 < factor.mean() < 2
    np.testing.assert_array_equal(got, p.exact * factor[:, None])


def test_disabled_lanes_where_rows_are_not_lanes():
    p = Product(m=64, n=32)
    masks = [0x5, 0, 0xFFFFFFFF, 0x80008000]
    got = p.d(p.run(p.mma() + p.mma(accumulate="%yes", tail=f" {{{str(masks)[1:-1]}}},")))
    lane = np.arange(64) % 16 + np.arange(64) // 16 * 32
    factor = 2 - (np.array(masks)[lane // 32] >> lane % 32 & 1)
    np.testing.assert_array_equal(got, p.exact * factor[:, None])
    pair = Product(m=128, n=64, ranks=2)
    masks += [2, 4, 0x10, 0]
    got = pair.d(pair.run(pair.mma() + pair.mma(accumulate="%yes", tail=f" {{{str(masks)[1:-1]}}},",
                                                )))  # fmt: skip
    factor = np.zeros((128, 64))
    for row, half in np.ndindex(128, 2):
        lane = 128 * (row // 64) + row % 64 + 64 * half
        factor[row, 32 * half : 32 * half + 32] = 2 - (masks[lane // 32] >> lane % 32 & 1)
    np.testing.assert_array_equal(got, pair.exact * factor)


@pytest.mark.parametrize("saturate", [0, 1])
def test_integers_saturate_or_wrap(saturate):
    p = Product("s8", "s8", n=32, d_type="s32")
    p.idesc |= saturate << 3
    fill = "".join(f"mov.b32 %r{i}, {0x7FFFFFF0};" for i in range(32))
    before = f"""{fill} and.b32 %t3, %tid, 96; shl.b32 %t3, %t3, 16; add.u32 %t3, %t3, %tm;
    tcgen05.st.sync.aligned.32x32b.x32.b32 [%t3], {registers("r", 32)}; {STORED} {BEFORE}
    bar.sync 0; {AFTER}"""
    total = p.exact + 0x7FFFFFF0
    assert (total > 2**31).any()
    expected = np.minimum(total, 2**31 - 1) if saturate else (total + 2**31) % 2**32 - 2**31
    got = p.d(p.run(p.mma(accumulate="%yes"), before=before))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("a_type", ["bf16", "tf32", "e5m2"])
def test_infinities_and_nan(a_type):
    """Inf and NaN of A reach their rows alone, 0 x Inf is NaN; every NaN is 0x7FFFFFFF."""
    p = Product(a_type, a_type, n=32, swizzle=0)
    width = {"bf16": 2, "tf32": 4, "e5m2": 1}[a_type]
    infinite = {"bf16": 0x7F80, "tf32": 0x7F800000, "e5m2": 0x7C}[a_type]
    nan = {"bf16": 0x7F81, "tf32": 0x7F802000, "e5m2": 0x7D}[a_type]
    for row, code in ((3, infinite), (5, nan)):
        octets = np.frombuffer(code.to_bytes(width, "little"), np.uint8)
        p.smem[0, row % 8 * 16 + row // 8 * 128 :][:width] = octets
    first = p.exact[3] - p.a[3, 0] * p.b[:, 0]
    words = p.run()[0, :, :32]
    with np.errstate(invalid="ignore"):
        expected = (np.inf * p.b[:, 0] + first).astype(np.float32)
    np.testing.assert_array_equal(words[3].view(np.float32), expected)
    assert (words[5] == 0x7FFFFFFF).all()
    assert (words[3][np.isnan(expected)] == 0x7FFFFFFF).all()
    rest = np.delete(np.arange(128), [3, 5])
    np.testing.assert_array_equal(words[rest].view(np.float32), p.exact[rest])


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_two_pairs_commit_to_all_of_their_cluster(policy, seed):
    pairs = [Product(m=256, n=32, ranks=2, seed=s) for s in (1, 2)]
    ptx = program(pairs[0].mma(), ranks=2, commits=commit(2, 15))
    for old, new in (
        (".reqnctapercluster 2", ".reqnctapercluster 4"),
        ("setp.eq.u32 %first, %rank, 0;", "and.b32 %t0, %rank, 1; setp.eq.u32 %first, %t0, 0;"),
        ("mbarrier.init.shared::cta.b64 [%bar], 1;", "mbarrier.init.shared::cta.b64 [%bar], 2;"),
    ):
        assert old in ptx
        ptx = ptx.replace(old, new)
    smem = np.concatenate([p.smem for p in pairs])
    words, _ = execute(ptx, smem, ranks=4, policy=policy, seed=seed)
    for i, p in enumerate(pairs):
        np.testing.assert_array_equal(p.d(words[2 * i : 2 * i + 2]), p.exact)
    with pytest.raises(Deadlock):  # the last two blocks wait for both
        execute(ptx.replace("[%bar], 15;", "[%bar], 3;"), smem, ranks=4, policy=policy, seed=seed)


def test_two_accumulators_of_64_rows_share_columns():
    p = Product(m=64, n=32)
    other = "add.u32 %t2, %tm, 0x100000;" + p.mma(d="%t2") + p.mma(d="%t2", accumulate="%yes")
    got = p.run(p.mma() + other)
    np.testing.assert_array_equal(p.d(got), p.exact)
    np.testing.assert_array_equal(p.d(got, lane=16), 2 * p.exact)


@pytest.mark.parametrize("d_type", ["f32", "f16"])
def test_the_model_of_the_tensor_cores(d_type):
    """`numerics="tensor_core"`: terms cut to 25 fraction bits, as for Hopper."""
    p = Product("f16", "f16", n=64, d_type=d_type)
    rng = np.random.default_rng(9)
    a, b = (
        (rng.standard_normal((rows, 16)) * 2.0 ** rng.integers(-6, 7, (rows, 16))).astype(
            np.float16
        )
        for rows in (128, 64)
    )
    p.smem[:] = 0
    for held, bits in ((a, p.bits[0]), (b, p.bits[1])):
        tile = Tile(held.view(np.uint8).reshape(len(held), 32), 128, False, (bits & 0x3FFF) << 4)
        tile.put(p.smem[0])
    ptx = program(p.mma(), columns=64)
    plain, model = (
        p.d(execute(ptx, p.smem, columns=64, numerics=numerics)[0])
        for numerics in ("fp32", "tensor_core")
    )
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    expected = matrix_product(
        wide_a[None], wide_b.T[None], np.zeros((1, 128, 64), np.float32),
        a_type="f16", b_type="f16", accumulation=Accumulation(25), half_result=d_type == "f16",
    )[0]  # fmt: skip
    np.testing.assert_array_equal(model, expected)
    np.testing.assert_allclose(plain, expected, rtol=2e-3, atol=1e-2)
    assert (plain != expected).any() or d_type == "f16"

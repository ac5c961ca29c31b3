"""`gemmjit.integrations.jax` on the CPU, against ``jax.lax.ragged_dot``."""

from __future__ import annotations

import numpy as np
import pytest

import gemmjit
from gemmjit.emulator import plan_executor
from gemmjit.errors import InvalidConfigError, InvalidDtypeError, InvalidProblemError

jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from gemmjit.integrations.jax import ragged_dot, ragged_dot_transposed  # noqa: E402


@pytest.fixture(autouse=True)
def on_the_cpu():
    """Where JAX has a GPU too, this is about the CPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


SIZES = [0, 3, 20, 0, 7, 0]
ROWS, K, N = 40, 48, 56


def whole(*shape: int, dtype="bfloat16", seed: int = 0):
    """Return whole numbers, whose products and sums are exact in every type."""
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(-3, 4, shape), dtype)


def operands(dtype="bfloat16"):
    groups = len(SIZES)
    return (
        whole(ROWS, K, dtype=dtype),
        whole(groups, K, N, dtype=dtype, seed=1),
        jnp.array(SIZES, jnp.int32),
    )


def same(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert np.array_equal(np.asarray(got), np.asarray(want))


@pytest.fixture
def launched(monkeypatch):
    """The kernels that the emulator ran."""
    seen = []
    run = plan_executor.run

    def spy(plan, views):
        seen.append(plan.launches[-1].kernel.entry)
        run(plan, views)

    monkeypatch.setattr(plan_executor, "run", spy)
    return seen


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("preferred", [None, jnp.float32], ids=["own", "f32"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_values_are_those_of_lax(dtype, preferred, jitted, launched):
    lhs, rhs, sizes = operands(dtype)
    want = jax.lax.ragged_dot(lhs, rhs, sizes, preferred_element_type=preferred)

    def call(*arrays):
        return ragged_dot(*arrays, preferred_element_type=preferred)

    same((jax.jit(call) if jitted else call)(lhs, rhs, sizes), want)
    assert np.asarray(want)[: sum(SIZES)].any()
    assert not np.asarray(want)[sum(SIZES) :].any()  # rows of no group are zero
    assert len(launched) == 1
    assert ("_k0_" in launched[0]) is (dtype == "float32")


@pytest.mark.parametrize("sizes", [[40, 0, 0, 0, 0, 0], [0] * 6, [1, 1, 1, 1, 1, 35]])
def test_sizes_of_groups(sizes):
    lhs, rhs, _ = operands()
    sizes = jnp.array(sizes, jnp.int32)
    same(ragged_dot(lhs, rhs, sizes), jax.lax.ragged_dot(lhs, rhs, sizes))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
def test_types_of_sizes(dtype):
    lhs, rhs, sizes = operands()
    same(ragged_dot(lhs, rhs, sizes.astype(dtype)), jax.lax.ragged_dot(lhs, rhs, sizes))


def test_no_group_reaches_past_the_last_row():
    lhs, rhs, _ = operands()
    sizes = jnp.array([30, 30, 2**30, 2**30, -5, 7], jnp.int32)
    want = jax.lax.ragged_dot(lhs, rhs, jnp.array([30, 10, 0, 0, 0, 0], jnp.int32))
    same(ragged_dot(lhs, rhs, sizes), want)


def test_rows_of_no_group_influence_nothing():
    lhs, rhs, sizes = operands()
    poisoned = lhs.at[sum(SIZES) :].set(jnp.nan)
    same(ragged_dot(poisoned, rhs, sizes), ragged_dot(lhs, rhs, sizes))
    dy = whole(ROWS, N, seed=2)
    same(
        ragged_dot_transposed(poisoned, dy.at[sum(SIZES) :].set(jnp.nan), sizes),
        ragged_dot_transposed(lhs, dy, sizes),
    )


@pytest.mark.parametrize(
    ("rows", "k", "n", "sizes"),
    [(0, 8, 8, [0, 0]), (4, 0, 8, [1, 2]), (4, 8, 0, [1, 2]), (4, 8, 8, [])],
    ids=["no rows", "no K", "no N", "no groups"],
)
def test_dimensions_of_length_zero(rows, k, n, sizes):
    lhs, rhs = whole(rows, k), whole(len(sizes), k, n)
    got = ragged_dot(lhs, rhs, jnp.array(sizes, jnp.int32))
    assert got.shape == (rows, n)
    assert not np.asarray(got, np.float32).any()


def test_weights_that_are_stored_transposed_are_not_copied():
    lhs, rhs, sizes = operands()
    stored = rhs.swapaxes(1, 2)

    def call(lhs, stored, sizes):
        return ragged_dot(lhs, stored, sizes, transpose_rhs=True)

    same(call(lhs, stored, sizes), jax.lax.ragged_dot(lhs, rhs, sizes))
    program = jax.jit(call).lower(lhs, stored, sizes).compile().as_text()
    assert "gemmjit_grouped_mm" in program
    assert "transpose(" not in program


def test_the_product_of_each_group_transposed():
    lhs, _, sizes = operands()
    rhs = whole(ROWS, N, seed=3)
    numbers = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    want = jax.lax.ragged_dot_general(lhs, rhs, sizes, numbers, preferred_element_type=jnp.float32)
    got = ragged_dot_transposed(lhs, rhs, sizes, jnp.float32)
    same(got, want)
    assert not np.asarray(got)[np.array(SIZES) == 0].any()


@pytest.mark.parametrize("name", ["k0", "k1", "k2", "k3"])
def test_config_chooses_the_kernel_under_jit(name, launched):
    lhs, rhs, sizes = operands()

    @jax.jit
    def call(*arrays):
        return ragged_dot(*arrays, config=name)

    same(call(lhs, rhs, sizes), jax.lax.ragged_dot(lhs, rhs, sizes))
    assert [f"_{name}_" in entry for entry in launched] == [True]


def test_a_config_is_carried_whole(launched):
    lhs, rhs, sizes = operands()
    config = gemmjit.kernels.kernel("k1").config_type(block_m=32)
    same(ragged_dot(lhs, rhs, sizes, config=config), jax.lax.ragged_dot(lhs, rhs, sizes))
    assert [entry.startswith("gemmjit_k1_32x") for entry in launched] == [True]


# Gradients


def losses(dot, **keywords):
    """Return the gradients of a loss whose gradients are whole numbers."""
    weights = jnp.asarray(np.random.default_rng(5).integers(-2, 3, (ROWS, N)))

    def loss(lhs, rhs, sizes):
        return (dot(lhs, rhs, sizes, **keywords) * weights).astype(jnp.float32).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradients_are_those_of_lax(dtype, launched):
    arrays = operands(dtype)
    for got, want in zip(
        losses(ragged_dot)(*arrays), losses(jax.lax.ragged_dot)(*arrays), strict=True
    ):
        same(got, want)
    # The product itself has no part in this loss's gradients; theirs are one launch each.
    assert len(launched) == 2


def test_gradients_of_a_weight_that_is_stored_transposed():
    lhs, rhs, sizes = operands()
    stored = rhs.swapaxes(1, 2)
    got = losses(ragged_dot, transpose_rhs=True)(lhs, stored, sizes)
    want = losses(jax.lax.ragged_dot)(lhs, rhs, sizes)
    same(got[0], want[0])
    same(got[1], want[1].swapaxes(1, 2))


@pytest.mark.parametrize("transpose", [False, True])
def test_gradients_of_gradients_agree_with_differences(transpose):
    rng = np.random.default_rng(4)
    lhs = jnp.asarray(rng.standard_normal((9, 8)), jnp.float32)
    rhs = jnp.asarray(rng.standard_normal((3, 8, 8)), jnp.float32)
    sizes = jnp.array([4, 0, 3])

    def call(lhs, rhs):
        return ragged_dot(lhs, rhs, sizes, transpose_rhs=transpose)

    check_grads(call, (lhs, rhs), order=2, modes=["rev"], atol=2e-2, rtol=2e-2)


def test_gradients_of_the_transposed_product_agree_with_differences():
    rng = np.random.default_rng(6)
    lhs = jnp.asarray(rng.standard_normal((9, 8)), jnp.float32)
    rhs = jnp.asarray(rng.standard_normal((9, 4)), jnp.float32)
    sizes = jnp.array([4, 0, 3])
    check_grads(
        lambda lhs, rhs: ragged_dot_transposed(lhs, rhs, sizes),
        (lhs, rhs), order=1, modes=["rev"], atol=2e-2, rtol=2e-2,
    )  # fmt: skip


def test_a_gradient_in_another_type_is_rounded_to_that_of_the_operands():
    arrays = operands("bfloat16")
    got = losses(ragged_dot, preferred_element_type=jnp.float32)(*arrays)
    assert [g.dtype for g in got] == [jnp.bfloat16] * 2
    for one, want in zip(got, losses(jax.lax.ragged_dot)(*arrays), strict=True):
        same(one, want)  # the whole numbers of this loss need no rounding


def test_forward_mode_is_refused():
    lhs, rhs, sizes = operands()
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda lhs: ragged_dot(lhs, rhs, sizes), (lhs,), (lhs,))


# Transformations


def test_vmap_runs_one_element_at_a_time(launched):
    lhs, rhs, sizes = operands()
    batch = jnp.stack([lhs, 2 * lhs, -lhs])
    got = jax.vmap(ragged_dot, in_axes=(0, None, None))(batch, rhs, sizes)
    want = jnp.stack([jax.lax.ragged_dot(one, rhs, sizes) for one in batch])
    same(got, want)
    assert len(launched) == len(batch)


def test_calls_of_several_threads_keep_apart():
    from concurrent.futures import ThreadPoolExecutor

    lhs, rhs, sizes = operands()
    call = jax.jit(ragged_dot)
    want = np.asarray(call(lhs, rhs, sizes), np.float32)
    with ThreadPoolExecutor(4) as pool:
        factors = [1, 2, 4, -1] * 3
        results = list(pool.map(lambda f: call(lhs * f, rhs, sizes), factors))
    for factor, result in zip(factors, results, strict=True):
        assert np.array_equal(np.asarray(result, np.float32), want * factor)


# Errors


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda a, b, s: (a, b.swapaxes(1, 2), s), InvalidProblemError, "rhs: expected shape"),
        (lambda a, b, s: (a[None], b, s), InvalidProblemError, "jax.vmap"),
        (lambda a, b, s: (a, b[0], s), InvalidProblemError, "lhs, rhs: expected shapes"),
        (lambda a, b, s: (a, b, s[1:]), InvalidProblemError, "group_sizes: expected 6"),
        (lambda a, b, s: (a, b, s[None]), InvalidProblemError, "group_sizes: expected one"),
        (lambda a, b, s: (a, b, s * 1.0), InvalidProblemError, "whole numbers"),
        (lambda a, b, s: (a, b.astype("float32"), s), InvalidDtypeError, "rhs: expected bfloat16"),
        (lambda a, b, s: (a.astype("int32"), b, s), InvalidDtypeError, "lhs: expected one of"),
    ],
)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_a_broken_rule_is_an_error_while_tracing(change, error, text, jitted):
    arrays = change(*operands())
    with pytest.raises(error, match=text) as caught:
        (jax.jit(ragged_dot) if jitted else ragged_dot)(*arrays)
    assert "mat_" not in str(caught.value)


def test_what_ragged_dot_does_not_have_is_refused():
    arrays = operands()
    with pytest.raises(InvalidProblemError, match="group_offset"):
        ragged_dot(*arrays, group_offset=jnp.array([1]))
    with pytest.raises(InvalidDtypeError, match="preferred_element_type"):
        ragged_dot(*arrays, preferred_element_type=jnp.int32)


def test_an_error_of_the_run_comes_with_its_text(monkeypatch):
    arrays = operands()
    monkeypatch.setenv("GEMMJIT_ARCH", "sm_75")
    with pytest.raises(Exception, match=r"InvalidConfigError: .*k1") as caught:
        jax.block_until_ready(ragged_dot(*arrays, config="k1"))
    assert not isinstance(caught.value, InvalidConfigError)  # it is XLA's, with our text
    monkeypatch.delenv("GEMMJIT_ARCH")
    same(ragged_dot(*arrays, config="k1"), jax.lax.ragged_dot(*arrays))  # nothing is left behind


def test_grouped_mm_says_where_jax_arrays_go():
    lhs, rhs, _ = operands()
    with pytest.raises(InvalidDtypeError, match=r"integrations\.jax\.ragged_dot"):
        gemmjit.grouped_mm(lhs, rhs, offs=np.cumsum(SIZES))
    with pytest.raises(InvalidDtypeError, match=r"integrations\.jax\.ragged_dot"):
        jax.jit(lambda a, b: gemmjit.grouped_mm(a, b, offs=[1]))(lhs, rhs)


@pytest.mark.parametrize(
    ("sizes", "dtype", "taken"),
    [
        ([2, 2**32 - 1, 3], "uint32", [2, 6, 0]),
        ([2, 200, 3], "uint8", [2, 6, 0]),
        ([2, -1, 3], "int8", [2, 0, 3]),
        ([2**31 - 1, 2**31 - 1, 2**31 - 1], "int32", [8, 0, 0]),
    ],
)
def test_sizes_count_in_their_own_type(sizes, dtype, taken):
    a, b = jnp.ones((8, 16), "bfloat16"), whole(3, 16, 8)
    got = ragged_dot(a, b, jnp.asarray(np.array(sizes, dtype)))
    assert (got == ragged_dot(a, b, jnp.asarray(taken))).all()


def test_sums_of_sizes_do_not_overflow():
    a, b = jnp.ones((70_000, 1), "float32"), jnp.ones((70_000, 1, 1), "float32")
    got = ragged_dot(a, b, jnp.full(70_000, 70_000), config="k0")
    assert (got == 1).all()


@pytest.mark.parametrize("config", ["k9", 5, {"kernel": "k1"}])
def test_a_config_that_is_none_is_an_error_of_the_call(config):
    a, b = jnp.ones((8, 16), "bfloat16"), whole(3, 16, 8)
    with pytest.raises(InvalidConfigError, match=r"(config|kernel): "):
        jax.jit(lambda a: ragged_dot(a, b, jnp.array([8, 0, 0]), config=config)).lower(a)


def test_the_operand_whose_type_is_wrong_is_named():
    with pytest.raises(InvalidDtypeError, match=r"^lhs: "):
        ragged_dot(jnp.ones((8, 16), "complex64"), whole(3, 16, 8), jnp.array([8, 0, 0]))

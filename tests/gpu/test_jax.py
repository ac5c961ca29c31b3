"""`gemmjit.integrations.jax` where JAX has a CUDA device."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402

from gemmjit.integrations.jax import ragged_dot, ragged_dot_transposed  # noqa: E402


def _cuda() -> list:
    try:
        return jax.devices("cuda")
    except RuntimeError:
        return []


@pytest.fixture(autouse=True)
def device():
    if not _cuda():
        pytest.skip(f"jax {jax.__version__} has no CUDA device: pip install 'jax[cuda13]'")


SIZES = [0, 100, 37, 0, 300, 1]
ROWS, K, N = 500, 256, 192


def whole(*shape, dtype, seed, device=0):
    made = np.random.default_rng(seed).integers(-3, 4, shape)
    return jax.device_put(jnp.asarray(made, dtype), _cuda()[device])


def operands(dtype="bfloat16", device=0):
    sizes = jax.device_put(jnp.array(SIZES, jnp.int32), _cuda()[device])
    x = whole(ROWS, K, dtype=dtype, seed=0, device=device)
    return x, whole(len(SIZES), K, N, dtype=dtype, seed=1, device=device), sizes


def expected(x, w):
    """The product in float64, on the host."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    y = np.zeros((len(x), w.shape[2]))
    start = 0
    for group, rows in enumerate(SIZES):
        y[start : start + rows] = x[start : start + rows] @ w[group]
        start += rows
    return y


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_values_and_tail(dtype):
    x, w, sizes = operands(dtype)
    poisoned = x.at[sum(SIZES) :].set(jnp.nan)
    y = jax.jit(lambda *a: ragged_dot(*a, preferred_element_type=jnp.float32))(poisoned, w, sizes)
    assert y.devices() == x.devices()
    assert np.array_equal(np.asarray(y), expected(x, w))


def test_gradients():
    x, w, sizes = operands()
    dy = whole(ROWS, N, dtype="bfloat16", seed=2)

    def loss(dot, x, w):
        return (dot(x, w, sizes) * dy).astype(jnp.float32).sum()

    got = jax.jit(jax.grad(lambda x, w: loss(ragged_dot, x, w), (0, 1)))(x, w)
    want = jax.grad(lambda x, w: loss(jax.lax.ragged_dot, x, w), (0, 1))(x, w)
    for one, other in zip(got, want, strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))
    assert ragged_dot_transposed(x, dy, sizes).shape == w.shape


def test_calls_stand_in_the_order_of_the_program():
    """Each call reads what the one before it wrote, with other work of XLA's between them."""
    x, _, sizes = operands("float32")
    square = jnp.asarray(np.eye(K), jnp.float32)[None].repeat(len(SIZES), 0)
    square = jax.device_put(square, _cuda()[0])

    @jax.jit
    def program(x):
        for _ in range(20):
            x = ragged_dot(x + 1, square, sizes)
        return x

    rows = sum(SIZES)
    got = np.asarray(program(x))
    assert np.array_equal(got[:rows], np.asarray(x)[:rows] + 20)
    assert not got[rows:].any()


def test_a_thousand_calls_give_the_same_bits():
    x, w, sizes = operands()
    call = jax.jit(ragged_dot)
    first = call(x, w, sizes)
    wrong = jnp.zeros((), jnp.int32)
    for _ in range(1000):
        wrong = wrong + (call(x, w, sizes) != first).any().astype(jnp.int32)
    assert int(wrong) == 0


def test_the_second_device():
    if len(_cuda()) < 2:
        pytest.skip("needs two CUDA devices")
    x, w, sizes = operands(device=1)
    y = jax.jit(lambda *a: ragged_dot(*a, preferred_element_type=jnp.float32))(x, w, sizes)
    assert y.devices() == {_cuda()[1]}
    assert np.array_equal(np.asarray(y), expected(x, w))

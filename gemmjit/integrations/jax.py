"""JAX arrays: `ragged_dot`, with the meaning of ``jax.lax.ragged_dot``, and its gradients.

A call is one operation in XLA's program, a custom call of its foreign function interface. It runs
under ``jax.jit``, ``jax.grad`` and ``jax.vmap`` (one element at a time).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from gemmjit.arrays import CPU, ArrayView, contiguous_strides
from gemmjit.config import Config
from gemmjit.dtypes import BF16, F16, F32, DType, dtype_of
from gemmjit.errors import InvalidConfigError, InvalidDtypeError, InvalidProblemError
from gemmjit.integrations.config_text import to_text
from gemmjit.integrations.jax_call import TARGET, operands_of
from gemmjit.kernels import kernel
from gemmjit.ops.validation import check_dtypes, form_of, result_shape

__all__ = ["ragged_dot", "ragged_dot_transposed"]


def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    *,
    transpose_rhs: bool = False,
    config: Config | str | None = None,
) -> Any:
    """Multiply the rows of each group with its matrix, as ``jax.lax.ragged_dot`` does.

    The first parameters are those of that function, in its order
    (https://docs.jax.dev/en/latest/_autosummary/jax.lax.ragged_dot.html).

    Parameters
    ----------
    lhs : jax.Array, shape (M, K)
        bfloat16, float16 or float32. Group g owns `group_sizes[g]` rows, after those of the groups
        before it.
    rhs : jax.Array, shape (G, K, N)
        Of the type of `lhs`.
    group_sizes : jax.Array of int, shape (G,)
        Rows of each group. Not read by the host on a GPU. No group reaches past the last row of
        `lhs`, whatever its size says, and a negative size counts as 0.
    precision : optional
        Taken and not looked at: products accumulate in FP32 and are rounded once, and float32
        operands are multiplied as such.
    preferred_element_type : dtype, optional
        Type of the result: bfloat16, float16 or float32; by default that of `lhs`.
    group_offset : optional
        Must be None, as in ``jax.lax.ragged_dot`` so far.
    transpose_rhs : bool
        `rhs` is stored as (G, N, K), and read as it lies. A transposed array would be copied by
        XLA first.
    config : Config or str, optional
        Tile to use instead of the default choice, or the name of a kernel. It holds for the product
        itself; gradients choose their own.

    Returns
    -------
    jax.Array, shape (M, N)
        Rows past the last group are zero.

    Raises
    ------
    InvalidProblemError
        Shapes that do not match; a `group_offset`.
    InvalidDtypeError
        Element types.
    InvalidConfigError
        A `config` that is none.

    Notes
    -----
    Gradients come from the grouped product with `rhs` the other way round, and from
    `ragged_dot_transposed`; the gradient of the result is rounded to the type of the operands
    first. A group without rows has a gradient of zeros.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from gemmjit.integrations.jax import ragged_dot
    >>> sizes = jnp.array([1, 2])
    >>> ragged_dot(jnp.ones((4, 8)), jnp.ones((2, 8, 2)), sizes)[:, 0].tolist()
    [8.0, 8.0, 8.0, 0.0]
    """
    if group_offset is not None:
        raise InvalidProblemError(
            "group_offset: expected None; got an array. Pass the sizes and matrices of the groups "
            "that are wanted, and their rows"
        )
    product = "rows_transposed" if transpose_rhs else "rows"
    return _product(lhs, rhs, group_sizes, preferred_element_type, product, config)


def ragged_dot_transposed(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    preferred_element_type: Any = None,
    *,
    config: Config | str | None = None,
) -> Any:
    """Multiply, for each group, its rows of `lhs`, transposed, with its rows of `rhs`.

    This is the gradient of a weight: ``jax.lax.ragged_dot_general`` with a ragged dimension that
    contracts.

    Parameters
    ----------
    lhs : jax.Array, shape (M, K)
    rhs : jax.Array, shape (M, N)
    group_sizes : jax.Array of int, shape (G,)
    preferred_element_type : dtype, optional
    config : Config or str, optional
        All as for `ragged_dot`.

    Returns
    -------
    jax.Array, shape (G, K, N)
        Zeros for a group without rows.

    Raises
    ------
    InvalidProblemError, InvalidDtypeError
        As `ragged_dot`.
    """
    return _product(lhs, rhs, group_sizes, preferred_element_type, "groups", config)


def _product(
    lhs: Any, rhs: Any, group_sizes: Any, dtype: Any, product: str, config: Config | str | None
) -> Any:
    lhs, rhs, sizes = jnp.asarray(lhs), jnp.asarray(rhs), jnp.asarray(group_sizes)
    if sizes.ndim != 1 or not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise InvalidProblemError(
            f"group_sizes: expected one dimension of whole numbers; got shape {sizes.shape} of "
            f"{sizes.dtype}. Pass the rows of each group, shape (G,)"
        )
    own = dtype_of(lhs.dtype, "lhs")
    if isinstance(config, str):
        kernel(config)  # an error now, and not when the program runs
    elif config is not None and not isinstance(config, Config):
        raise InvalidConfigError(
            f"config: expected a Config, or the name of a kernel; got {config!r}"
        )
    out_dtype = own if dtype is None else dtype_of(dtype, "preferred_element_type")
    _result_shape(product, lhs, rhs, sizes.shape[0], out_dtype)
    # As the kernel would clamp them; on the CPU, wrong offsets would be an error of the program.
    rows = lhs.shape[0]
    # In the type of the sizes, whose values may be others in 32 bits; and sums of two at most fit.
    most = min(rows, jnp.iinfo(sizes.dtype).max)
    held = jnp.clip(sizes, 0, most).astype(jnp.uint32)
    ends = jax.lax.cummax(jnp.minimum(jnp.cumsum(held), jnp.uint32(rows))).astype(jnp.int32)
    return _differentiable(product, out_dtype, to_text(config) or "", lhs, rhs, ends)


def _result_shape(
    product: str, lhs: Any, rhs: Any, num_groups: int, out_dtype: DType
) -> tuple[int, ...]:
    """Return the shape of a product, after the checks that need no values."""
    want = 2 if product == "groups" else 3
    if lhs.ndim != 2 or rhs.ndim != want:
        shapes = "(M, K) and (M, N)" if want == 2 else "(M, K) and (G, K, N)"
        raise InvalidProblemError(
            f"lhs, rhs: expected shapes {shapes}; got {lhs.shape} and {rhs.shape}. Reshape them; "
            "jax.vmap adds dimensions"
        )
    a, b = operands_of(product, _without_memory(lhs, "lhs"), _without_memory(rhs, "rhs"))
    try:
        form = form_of(a.shape, b.shape)
        check_dtypes(a, b, None)
    except (InvalidProblemError, InvalidDtypeError) as error:
        text = str(error).replace("mat_a.shape", "lhs.shape").replace("mat_a", "lhs")
        raise type(error)(text.replace("mat_b", "rhs")) from None
    if want == 3 and num_groups != b.shape[0]:
        raise InvalidProblemError(
            f"group_sizes: expected {b.shape[0]}, one for each matrix of rhs {rhs.shape}; got "
            f"{num_groups}. Pass the rows of each group"
        )
    if out_dtype not in (BF16, F16, F32):
        raise InvalidDtypeError(
            f"preferred_element_type: expected bfloat16, float16 or float32; got {out_dtype}. Take "
            "float32 and convert the result"
        )
    return result_shape(form, a.shape, b.shape, num_groups)


def _without_memory(array: Any, argument: str) -> ArrayView:
    shape = tuple(array.shape)
    return ArrayView(0, shape, contiguous_strides(shape), dtype_of(array.dtype, argument), CPU)


def _call(product: str, out_dtype: DType, config: str, lhs: Any, rhs: Any, ends: Any) -> Any:
    """Put one product into the program."""
    shape = _result_shape(product, lhs, rhs, ends.shape[0], out_dtype)
    result = jax.ShapeDtypeStruct(shape, out_dtype.numpy)
    call = jax.ffi.ffi_call(TARGET, result, vmap_method="sequential")
    return call(lhs, rhs, ends, product=product, config=config)


_differentiable = jax.custom_vjp(_call, nondiff_argnums=(0, 1, 2))


def _forward(
    product: str, out_dtype: DType, config: str, lhs: Any, rhs: Any, ends: Any
) -> tuple[Any, tuple[Any, Any, Any]]:
    return _differentiable(product, out_dtype, config, lhs, rhs, ends), (lhs, rhs, ends)


def _backward(
    product: str, out_dtype: DType, config: str, kept: tuple[Any, Any, Any], grad: Any
) -> tuple[Any, Any, None]:
    """Return the gradients: products of the same kinds, which have gradients themselves."""
    lhs, rhs, ends = kept
    run = partial(_gradient, dtype_of(lhs.dtype), ends)
    grad = grad.astype(lhs.dtype)
    if product == "rows":
        return run("rows_transposed", grad, rhs), run("groups", lhs, grad), None
    if product == "rows_transposed":
        return run("rows", grad, rhs), run("groups", grad, lhs), None
    return run("rows_transposed", rhs, grad), run("rows", lhs, grad), None


def _gradient(dtype: DType, ends: Any, product: str, lhs: Any, rhs: Any) -> Any:
    return _differentiable(product, dtype, "", lhs, rhs, ends)


_differentiable.defvjp(_forward, _backward)

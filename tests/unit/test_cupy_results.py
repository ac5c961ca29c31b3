"""How results are made for CuPy: quickly where its internals allow, by its public type else."""

from __future__ import annotations

import types

import numpy as np
import pytest
from fake_gpu import framework

from gemmjit.dtypes import BF16, F16, F32


@pytest.mark.parametrize("internals", ["there", "missing", "other"])
def test_what_allocates_for_cupy(monkeypatch, internals):
    """The quick way and the public one make the same arrays."""
    cupy = pytest.importorskip("cupy")
    from gemmjit.cuda import cupy_arrays

    class Other:
        def __new__(cls, kind):
            return cupy.ndarray((1,), np.float16)

        def _init(self, shape, dtype):
            pass

    with framework("cupy") as (_, maker):
        if internals != "there":
            core = types.SimpleNamespace(core=types.SimpleNamespace())
            if internals == "other":
                core.core._ndarray_base = Other
            monkeypatch.setattr(cupy, "_core", core)
        cupy_arrays._constructs_in_two_steps.cache_clear()
        try:
            assert cupy_arrays._constructs_in_two_steps() == (internals == "there")
            for dtype in (BF16, F16, F32):
                for shape in ((64, 48), (3, 5, 7), (0, 4), (1, 1)):
                    allocate = maker.frontend.allocator(shape, dtype, 0)
                    one, other = allocate(), allocate()
                    assert type(one) is cupy.ndarray
                    assert (one.shape, one.dtype, one.base) == (shape, dtype.numpy, None)
                    assert one.flags.c_contiguous
                    assert one.flags.owndata
                    assert one.data.ptr != other.data.ptr or 0 in shape
        finally:
            cupy_arrays._constructs_in_two_steps.cache_clear()

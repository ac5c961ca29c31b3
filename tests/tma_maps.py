"""TensorMaps that tests of TMA share."""

from __future__ import annotations

from gemmjit.tensormap import ElementType, Swizzle, TensorMap

MATRIX = TensorMap(
    element_type=ElementType.BFLOAT16,
    dims=(100, 50),
    strides=(208,),
    box=(64, 8),
    swizzle=Swizzle.BYTES_128,
)

"""TensorMaps as the driver encodes them."""

from __future__ import annotations

import ctypes
from typing import Any

from gemmjit.cuda.driver import check, driver
from gemmjit.tensormap import TensorMap

__all__ = ["TENSOR_MAP_BYTES", "encode"]

#: Size of a CUtensorMap; as a kernel argument it lies on 64 bytes.
TENSOR_MAP_BYTES = 128


def encode(tensor_map: TensorMap, address: int) -> bytes:
    """Return the 128 bytes of a CUtensorMap.

    Parameters
    ----------
    tensor_map : TensorMap
    address : int
        Device address of element 0.

    Raises
    ------
    LaunchError
        If the driver refuses the map; `gemmjit.tensormap.violations` says why beforehand.
    """
    api: Any = driver()
    t = tensor_map
    encoded = check(
        api.cuTensorMapEncodeTiled(
            api.CUtensorMapDataType(int(t.element_type)),
            t.rank,
            address,
            [api.cuuint64_t(d) for d in t.dims],
            [api.cuuint64_t(s) for s in t.strides],
            [api.cuuint32_t(b) for b in t.box],
            [api.cuuint32_t(s) for s in t.element_strides],
            api.CUtensorMapInterleave(int(t.interleave)),
            api.CUtensorMapSwizzle(int(t.swizzle)),
            api.CUtensorMapL2promotion(int(t.l2_promotion)),
            api.CUtensorMapFloatOOBfill(int(t.fill)),
        ),
        f"cuTensorMapEncodeTiled of {t} at {address:#x}",
    )
    return ctypes.string_at(encoded.getPtr(), TENSOR_MAP_BYTES)

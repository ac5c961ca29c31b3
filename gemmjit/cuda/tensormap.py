"""TensorMaps as the driver encodes them."""

from __future__ import annotations

import ctypes
from typing import Any

from gemmjit.cuda.driver import check, driver
from gemmjit.tensormap import TensorMap

__all__ = ["TENSOR_MAP_BYTES", "TensorMapEncoder"]

#: Size of a CUtensorMap; as a kernel argument it lies on 64 bytes.
TENSOR_MAP_BYTES = 128


class TensorMapEncoder:
    """Encodes one TensorMap for any address.

    All but the address is converted to what the driver takes once, since that costs more than
    encoding.

    Parameters
    ----------
    tensor_map : TensorMap
    """

    __slots__ = ("_after", "_before", "_encode", "_tensor_map")

    def __init__(self, tensor_map: TensorMap) -> None:
        api: Any = driver()
        t = tensor_map
        self._tensor_map = t
        self._encode = api.cuTensorMapEncodeTiled
        self._before = (api.CUtensorMapDataType(int(t.element_type)), t.rank)
        self._after = (
            [api.cuuint64_t(d) for d in t.dims],
            [api.cuuint64_t(s) for s in t.strides],
            [api.cuuint32_t(b) for b in t.box],
            [api.cuuint32_t(s) for s in t.element_strides],
            api.CUtensorMapInterleave(int(t.interleave)),
            api.CUtensorMapSwizzle(int(t.swizzle)),
            api.CUtensorMapL2promotion(int(t.l2_promotion)),
            api.CUtensorMapFloatOOBfill(int(t.fill)),
        )

    def write(self, place: int, address: int) -> None:
        """Write the `TENSOR_MAP_BYTES` of the map to host memory.

        Parameters
        ----------
        place : int
            Host address, on 64 bytes.
        address : int
            Device address of element 0.

        Raises
        ------
        LaunchError
            If the driver refuses the map; `gemmjit.tensormap.violations` says why beforehand.
        """
        answer = self._encode(*self._before, address, *self._after)
        if answer[0]:
            check(answer, f"cuTensorMapEncodeTiled of {self._tensor_map} at {address:#x}")
        ctypes.memmove(place, answer[1].getPtr(), TENSOR_MAP_BYTES)

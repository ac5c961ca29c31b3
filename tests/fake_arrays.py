"""Host arrays of torch and CuPy that pass for those of a GPU, for `fake_gpu`."""

from __future__ import annotations

import ctypes
import types
from typing import Any

import numpy as np
import pytest

from gemmjit import arrays


class TorchOnFake:
    """torch tensors in host memory that pass for tensors of cuda:0."""

    name = "torch"

    def __init__(self, patch: pytest.MonkeyPatch, num_devices: int) -> None:
        import torch

        from gemmjit.integrations.torch import TorchFrontend

        class Frontend(TorchFrontend):
            def view(self, array, argument="array"):
                return super().view(array, argument)._replace(device=0)

        self.torch = torch
        self.frontend = Frontend()
        self.stream = 0
        self.frontend._raw_stream = lambda device: self.stream
        self.frontend._devices = [torch.device("cpu")] * num_devices
        self.frontend._quick_empty = torch._C._dynamo.guards._empty_strided_cpu
        self.frontend._current_device = lambda: 0
        patch.setitem(arrays.FRONTENDS, torch.Tensor, self.frontend)
        patch.setitem(arrays.FRONTENDS, torch.nn.Parameter, self.frontend)

    def empty(self, *shape: int) -> Any:
        return self.torch.empty(shape, dtype=self.torch.bfloat16)

    def offsets(self, ends: Any) -> Any:
        return self.torch.tensor(ends, dtype=self.torch.int32)

    def swapped(self, array: Any) -> Any:
        return array.transpose(-1, -2)

    def pointer(self, array: Any) -> int:
        return array.data_ptr()


class CupyOnFake:
    """CuPy arrays over host memory that pass for arrays of device 0."""

    name = "cupy"

    def __init__(self, patch: pytest.MonkeyPatch, num_devices: int) -> None:
        import cupy
        from cupy.cuda import MemoryPointer, UnownedMemory

        from gemmjit.cuda.cupy_arrays import CupyFrontend

        patch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: num_devices)
        patch.setattr(cupy.cuda.runtime, "getDevice", lambda: 0)
        self.cupy = cupy
        self.stream = 0
        self.frontend = CupyFrontend()
        self.frontend._stream = lambda device: types.SimpleNamespace(ptr=self.stream)
        patch.setitem(arrays.FRONTENDS, cupy.ndarray, self.frontend)

        def allocate(nbytes: int) -> Any:
            host = np.zeros(nbytes + 256, np.uint8)
            address = -(-host.ctypes.data // 256) * 256
            return MemoryPointer(UnownedMemory(address, nbytes, host, 0), 0)

        self._before = cupy.cuda.get_allocator()
        cupy.cuda.set_allocator(allocate)

    def close(self) -> None:
        self.cupy.cuda.set_allocator(self._before)

    def empty(self, *shape: int) -> Any:
        return self.cupy.ndarray(shape, np.float16)

    def offsets(self, ends: Any) -> Any:
        made = self.cupy.ndarray((len(ends),), np.int32)
        host = np.asarray(ends, np.int32)
        ctypes.memmove(made.data.ptr, host.ctypes.data, host.nbytes)
        return made

    def swapped(self, array: Any) -> Any:
        return array.swapaxes(-1, -2)

    def pointer(self, array: Any) -> int:
        return array.data.ptr

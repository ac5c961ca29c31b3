"""torch tensors. Imported when the first one appears; the only module that imports torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch

from gemmjit.arrays import CPU, ArrayView, Frontend, contiguous_strides, register
from gemmjit.dtypes import BF16, F16, F32, F64, I32, I64, U8, DType
from gemmjit.errors import InvalidDtypeError, InvalidProblemError

__all__ = ["TorchFrontend"]

_FROM_TORCH: dict[Any, DType] = {
    torch.bfloat16: BF16,
    torch.float16: F16,
    torch.float32: F32,
    torch.float64: F64,
    torch.int32: I32,
    torch.int64: I64,
    torch.uint8: U8,
}
_TO_TORCH = {ours: theirs for theirs, ours in _FROM_TORCH.items()}


class TorchFrontend(Frontend):
    """torch tensors, on the GPU or the CPU, on torch's current stream."""

    name: ClassVar = "torch"

    def __init__(self) -> None:
        # The raw handle costs 0.1 us; building a Stream object for it costs more than a launch.
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._raw_stream = raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)
        self._devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
        self._cpu = torch.device("cpu")
        # What compiled graphs allocate with: 2 us less than torch.empty (H200 host, 2026-11-29).
        # It takes torch's current device, so that one must be the right one.
        guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        self._current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
        self._quick_empty: Any = None
        if self._current_device is not None:
            self._quick_empty = getattr(guards, "_empty_strided_cuda", None)

    def view(self, array: Any, argument: str = "array") -> ArrayView:
        """Return the view of a tensor."""
        dtype = _FROM_TORCH.get(array.dtype)
        if dtype is None:
            raise InvalidDtypeError(
                f"{argument}: expected one of {', '.join(str(t) for t in _FROM_TORCH)}; "
                f"got {array.dtype}. Cast it"
            )
        where = array.get_device() if array.is_cuda else CPU
        if where == CPU and array.device.type != "cpu":
            raise InvalidProblemError(
                f"{argument}: expected a tensor on a CUDA device or the CPU; got {array.device}. "
                "Move it with .to('cuda')"
            )
        return ArrayView(array.data_ptr(), tuple(array.shape), array.stride(), dtype, where)

    def signature(self, array: Any) -> tuple[Any, ...]:
        """Return shape, strides, type and device number (-1, which is `CPU`, for host memory)."""
        return array.shape, array.stride(), array.dtype, array.get_device()

    def identify(
        self, mat_a: Any, mat_b: Any, offs: Any
    ) -> tuple[tuple[Any, ...], tuple[int, int, int]] | None:
        """Return signatures and addresses; None for operands that ask for a gradient."""
        if (mat_a.requires_grad or mat_b.requires_grad) and torch.is_grad_enabled():
            return None
        pointer_a = mat_a.data_ptr()
        pointer_b = mat_b.data_ptr()
        return (
            mat_a.shape,
            mat_b.shape,
            offs.shape,
            mat_a.stride(),
            mat_b.stride(),
            offs.stride(),
            mat_a.dtype,
            mat_b.dtype,
            offs.dtype,
            mat_a.get_device(),
            mat_b.get_device(),
            offs.get_device(),
            pointer_a & 15,
            pointer_b & 15,
        ), (pointer_a, pointer_b, offs.data_ptr())

    #: The address of the first element; the method itself, since it runs in every call.
    pointer = staticmethod(torch.Tensor.data_ptr)

    def requires_grad(self, array: Any) -> bool:
        """Return the tensor's flag."""
        return array.requires_grad  # type: ignore[no-any-return]

    def empty(self, shape: tuple[int, ...], dtype: DType, device: int) -> Any:
        """Return a new tensor from torch's caching allocator."""
        if device >= 0 and self._quick_empty is not None and self._current_device() == device:
            return self._quick_empty(shape, contiguous_strides(shape), _TO_TORCH[dtype])
        where = self._cpu if device == CPU else self._devices[device]
        return torch.empty(shape, dtype=_TO_TORCH[dtype], device=where)

    def allocator(self, shape: tuple[int, ...], dtype: DType, device: int) -> Callable[[], Any]:
        """Return what makes tensors as `empty` does, always of one kind."""
        if device == 0 and len(self._devices) == 1 and self._quick_empty is not None:
            # The one device there is, is the current one.
            return partial(self._quick_empty, shape, contiguous_strides(shape), _TO_TORCH[dtype])
        return partial(self.empty, shape, dtype, device)

    def current_stream(self, device: int) -> int:
        """Return the handle of torch's current stream."""
        return int(self._raw_stream(device)) if device != CPU else 0

    def stream_reader(self, device: int) -> Callable[[], int]:
        """Return what reads the current stream as `current_stream` does, on one device."""
        return partial(self._raw_stream, device)

    def check_differentiable(self, array: Any, argument: str) -> None:
        """Raise for a tensor that asks for a gradient."""
        if array.requires_grad and torch.is_grad_enabled():
            raise InvalidProblemError(
                f"{argument}: expected a tensor without requires_grad; gradients of grouped_mm "
                f"are not recorded yet. Pass {argument}.detach(), or call under torch.no_grad(), "
                "and compute dgrad and wgrad with grouped_mm"
            )


register(torch.Tensor, TorchFrontend())

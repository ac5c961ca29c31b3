"""The backend on torch: needed as soon as a peer takes torch tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar

from gemmjit.bench.backend import Graph
from gemmjit.bench.cuda_backend import CudaBackend
from gemmjit.dtypes import BF16, DType

__all__ = ["TorchBackend", "missing"]


def missing() -> str | None:
    """Return why torch cannot be used on a GPU, or None."""
    try:
        torch = import_module("torch")
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    return None if torch.cuda.is_available() else "this torch sees no GPU"


class TorchBackend(CudaBackend):
    """torch tensors on a stream of their own, captured into torch's graphs."""

    framework: ClassVar = "torch"

    def __init__(self, ordinal: int = 0) -> None:
        self._torch = import_module("torch")
        self._device = self._torch.device("cuda", ordinal)
        self._torch.cuda.set_device(self._device)
        self._torch.zeros(1, device=self._device)  # makes torch create the context
        self._stream = self._torch.cuda.Stream(self._device)
        super().__init__(ordinal)

    @property
    def stream(self) -> int:
        """Handle of the stream."""
        return int(self._stream.cuda_stream)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the stream torch's current one, without autograd."""
        with self._torch.cuda.stream(self._stream), self._torch.no_grad():
            yield

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Return a new tensor."""
        with self.active():
            return self._torch.empty(shape, dtype=self._dtype(dtype), device=self._device)

    def draw(self, array: Any, scale: float, seed: int) -> None:
        """Draw from torch's generator."""
        generator = self._torch.Generator(self._device)
        generator.manual_seed(seed)
        with self.active():
            array.normal_(0.0, scale, generator=generator)

    def upload_ends(self, ends: Sequence[int]) -> Any:
        """Return an int32 tensor."""
        with self.active():
            return self._torch.tensor(list(ends), dtype=self._torch.int32, device=self._device)

    def fill(self, array: Any, value: float) -> None:
        """Fill a tensor."""
        with self.active():
            array.fill_(value)

    def upcast(self, array: Any) -> Any:
        """Return a float64 tensor."""
        return array.to(self._torch.float64)

    def sample(self, array: Any, count: int) -> Sequence[float]:
        """Return elements at random places, the same for equal sizes."""
        generator = self._torch.Generator()
        generator.manual_seed(0)
        with self.active():
            flat = array.reshape(-1)
            where = self._torch.randint(flat.numel(), (count,), generator=generator)
            values: list[float] = flat[where.to(self._device)].double().cpu().tolist()
        return values

    def swap_last(self, array: Any) -> Any:
        """Return the transposed view."""
        return array.transpose(-1, -2)

    def capture(self, calls: Sequence[Callable[[], Any]]) -> Graph:
        """Capture into a graph with a memory pool of its own."""
        with self.active():
            for call in calls:
                call()
            self.synchronize()
            graph = self._torch.cuda.CUDAGraph()
            with self._torch.cuda.graph(graph, stream=self._stream):
                outputs = tuple([call() for call in calls])
            graph.replay()
            self.synchronize()
        return Graph((graph, tuple(calls)), outputs)

    def _launch(self, graph: Graph) -> None:
        graph.handle[0].replay()

    def dense_call(self, size: int) -> tuple[Callable[[], Any], str]:
        """Return a product through cuBLAS."""
        a, b, out = (self.empty((size, size), BF16) for _ in range(3))
        self.draw(a, 1.0, 0)
        self.draw(b, size**-0.5, 1)
        return lambda: self._torch.mm(a, b, out=out), f"torch.mm {BF16}"

    def release(self) -> None:
        """Return what torch's allocator caches."""
        gc.collect()
        self._torch.cuda.empty_cache()

    def _address(self, array: Any) -> int:
        return int(array.data_ptr())

    def _capturing_stream(self) -> int:
        return int(self._torch.cuda.current_stream(self._device).cuda_stream)

    def _dtype(self, dtype: DType) -> Any:
        return getattr(self._torch, dtype.name)

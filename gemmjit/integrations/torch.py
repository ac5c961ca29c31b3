"""torch tensors. Imported when the first one appears.

A call on plain tensors runs as it does on any framework's arrays. One that autograd must record, or
that something traces or transforms, goes through what stands in `torch_autograd` and
`torch_operator` beside this module; they are imported then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, cast

import torch

from gemmjit.arrays import CPU, FRONTENDS, ArrayView, Frontend, contiguous_strides, register
from gemmjit.dtypes import BF16, F16, F32, F64, I32, I64, U8, DType, served_names
from gemmjit.errors import InvalidDtypeError, InvalidProblemError
from gemmjit.integrations.torch_guards import Known, check_for, works

__all__ = ["FROM_TORCH", "TO_TORCH", "TorchFrontend", "is_plain"]

FROM_TORCH: dict[Any, DType] = {
    torch.bfloat16: BF16,
    torch.float16: F16,
    torch.float32: F32,
    torch.float64: F64,
    torch.int32: I32,
    torch.int64: I64,
    torch.uint8: U8,
}
TO_TORCH = {ours: theirs for theirs, ours in FROM_TORCH.items()}

#: Kinds of operands, and pairs of addresses of theirs, that are remembered.
_MAX_KNOWN = 4096

_PLAIN = {torch.Tensor, torch.nn.Parameter}
#: Whether a mode or an argument's type overrides what torch functions do.
_is_overridden: Callable[..., bool] = torch.overrides.has_torch_function_variadic
#: How many modes look at every operator that runs: fake tensors, tracers, counters.
_num_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
#: The innermost of functorch's transforms, such as vmap, or None.
_functorch_level: Callable[[], int | None] = torch._C._functorch.maybe_current_level


def _never(*tensors: Any) -> bool:
    """Return False: no tensors are like these."""
    return False


def _keep(known: dict[Any, Known], key: Any, value: Known) -> Known:
    """Remember operands; when there are too many, all others are forgotten."""
    if len(known) >= _MAX_KNOWN:
        known.clear()
    known[key] = value
    return value


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor is of no subclass; a parameter is plain."""
    return type(tensor) in _PLAIN


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
        self._guarded = works()
        self._known: dict[tuple[Any, ...], Known] = {}
        self._known_at: dict[int, Known] = {}

    def view(self, array: Any, argument: str = "array") -> ArrayView:
        """Return the view of a tensor."""
        dtype = FROM_TORCH.get(array.dtype)
        if dtype is None:
            raise InvalidDtypeError(
                f"{argument}: expected one of {served_names(argument)}; got {array.dtype}. Cast it"
            )
        where = array.get_device() if array.is_cuda else CPU
        if where == CPU and array.device.type != "cpu":
            raise InvalidProblemError(
                f"{argument}: expected a tensor on a CUDA device or the CPU; got {array.device}. "
                "Move it with .to('cuda')"
            )
        self.check_memory(array, argument)
        return ArrayView(array.data_ptr(), tuple(array.shape), array.stride(), dtype, where)

    def signature(self, array: Any) -> tuple[Any, ...]:
        """Return shape, strides, type and device number (-1, which is `CPU`, for host memory)."""
        negated = array.is_neg()  # see `identify`; such a call is refused
        return array.shape, array.stride(), array.dtype, negated, array.get_device()

    def identify(
        self, mat_a: Any, mat_b: Any, offs: Any
    ) -> tuple[Any, tuple[int, int, int]] | None:
        """Return signatures and addresses; None for what only the operator can run."""
        if _is_overridden(mat_a, mat_b, offs) or _num_modes():
            return None
        try:
            pointer_a = mat_a.data_ptr()
            pointer_b = mat_b.data_ptr()
            # The addresses only say what to compare with.
            known = self._known_at.get(pointer_a ^ pointer_b)
            if known is not None:
                check, kind, wants_gradient = known
                if (
                    check(mat_a, mat_b, offs)
                    and not (pointer_a | pointer_b) & 15
                    and not (wants_gradient and torch.is_grad_enabled())
                ):
                    return kind, (pointer_a, pointer_b, offs.data_ptr())
            if FRONTENDS.get(type(mat_b)) is not self or FRONTENDS.get(type(offs)) is not self:
                return None
            if (mat_a.requires_grad or mat_b.requires_grad) and torch.is_grad_enabled():
                return None
            # bfloat16 and whole numbers, of which no complex type is made, have a pending sign of
            # torch._neg_view alone; but a wrong result would not show.
            if mat_a.is_neg() or mat_b.is_neg() or offs.is_neg():
                return None
            signature = (
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
            )
            inputs = pointer_a, pointer_b, offs.data_ptr()
        except (AttributeError, RuntimeError, TypeError):
            # Wrappers of functorch, sparse and nested tensors have no memory; what is no tensor is
            # refused later.
            return None
        known = self._known.get(signature)
        if known is None:
            known = _keep(self._known, signature, (_never, object(), False))
        if self._guarded is None:
            self._guarded = works()
        if self._guarded and not (pointer_a | pointer_b) & 15:
            self._expect(known, signature, mat_a, mat_b, offs)
        return known[1], inputs

    def _expect(self, known: Known, signature: Any, mat_a: Any, mat_b: Any, offs: Any) -> None:
        """Let `identify` know operands by a check, where these addresses come again."""
        if not known[0](mat_a, mat_b, offs):
            # Also where types of tensors, flags or modes differ that the signature leaves out.
            if mat_a is mat_b:
                return  # a check knows no tensor that is there twice
            wants_gradient = mat_a.requires_grad or mat_b.requires_grad
            known = check_for(mat_a, mat_b, offs), known[1], wants_gradient
            self._known[signature] = known
        _keep(self._known_at, mat_a.data_ptr() ^ mat_b.data_ptr(), known)

    #: The address of the first element; the method itself, since it runs in every call.
    pointer = staticmethod(torch.Tensor.data_ptr)

    def requires_grad(self, array: Any) -> bool:
        """Return the tensor's flag."""
        return array.requires_grad  # type: ignore[no-any-return]

    def empty(self, shape: tuple[int, ...], dtype: DType, device: int) -> Any:
        """Return a new tensor from torch's caching allocator."""
        if device >= 0 and self._quick_empty is not None and self._current_device() == device:
            return self._quick_empty(shape, contiguous_strides(shape), TO_TORCH[dtype])
        where = self._cpu if device == CPU else self._devices[device]
        return torch.empty(shape, dtype=TO_TORCH[dtype], device=where)

    def allocator(self, shape: tuple[int, ...], dtype: DType, device: int) -> Callable[[], Any]:
        """Return what makes tensors as `empty` does, always of one kind."""
        if device == 0 and len(self._devices) == 1 and self._quick_empty is not None:
            # The one device there is, is the current one.
            return partial(self._quick_empty, shape, contiguous_strides(shape), TO_TORCH[dtype])
        return partial(self.empty, shape, dtype, device)

    def current_stream(self, device: int) -> int:
        """Return the handle of torch's current stream."""
        return int(self._raw_stream(device)) if device != CPU else 0

    def stream_reader(self, device: int) -> Callable[[], int]:
        """Return what reads the current stream as `current_stream` does, on one device."""
        return partial(self._raw_stream, device)

    def check_memory(self, array: Any, argument: str) -> None:
        """Raise for a tensor whose elements are not what lies at its address and strides."""
        found = mend = ""
        if array.is_nested:
            found, mend = "a nested one", f"Join its parts, with torch.cat({argument}.unbind())"
        elif array.layout is not torch.strided:
            found, mend = f"one of layout {array.layout}", f"Pass {argument}.to_dense()"
        elif array.is_neg():
            found, mend = "one whose sign is pending", f"Pass {argument}.resolve_neg()"
        elif array.is_conj():
            found, mend = "one whose conjugation is pending", f"Pass {argument}.resolve_conj()"
        if found:
            raise InvalidProblemError(
                f"{argument}: expected a strided tensor whose memory holds its values; "
                f"got {found}. {mend}"
            )

    def check_differentiable(self, array: Any, argument: str) -> None:
        """Raise for a tensor that asks for a gradient, where none would be recorded."""
        if array.requires_grad and torch.is_grad_enabled():
            raise InvalidProblemError(
                f"{argument}: expected a tensor without requires_grad; a compiled kernel's launch "
                f"is not recorded. Pass {argument}.detach(), call under torch.no_grad(), or call "
                "gemmjit.grouped_mm"
            )

    def operator(self, arrays: tuple[Any, ...]) -> Callable[..., Any] | None:
        """Return what records gradients, or the operator, for tensors that need one of them."""
        tensors = [array for array in arrays if isinstance(array, torch.Tensor)]
        if (
            _num_modes()
            or _is_overridden(*tensors)
            or _functorch_level() is not None
            or not _PLAIN.issuperset(map(type, tensors))
            or tensors[0].is_meta
        ):
            found = import_module("gemmjit.integrations.torch_operator").call
        elif torch.is_grad_enabled() and any([t.requires_grad for t in tensors]):
            found = import_module("gemmjit.integrations.torch_autograd").record
        else:
            return None
        return cast("Callable[..., Any]", found)

    def for_subclass(self) -> Frontend:
        """Return a frontend that knows no tensor's address: a subclass may have none."""
        return _SubclassFrontend()


class _SubclassFrontend(TorchFrontend):
    """Subclasses of torch tensors, fake tensors among them."""

    def identify(self, mat_a: Any, mat_b: Any, offs: Any) -> None:
        """Return None: the operator decides what such tensors do."""


FRONTEND = TorchFrontend()
register(torch.Tensor, FRONTEND)
register(torch.nn.Parameter, FRONTEND)


def __getattr__(name: str) -> Any:
    # With the operator, which plain calls do without.
    if name in ("grouped_linear", "grouped_mm"):
        module = "torch_linear" if name == "grouped_linear" else "torch_replacement"
        return getattr(import_module(f"gemmjit.integrations.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Runs plans on a GPU: binds addresses to packed arguments and launches, in order, on a stream."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmjit.arrays import Frontend
from gemmjit.cuda.device import current, is_current, num_devices
from gemmjit.cuda.driver import check, driver
from gemmjit.cuda.launch import BoundLaunch, Runner, counters_of, is_capturing
from gemmjit.cuda.library import is_loaded
from gemmjit.dtypes import U8
from gemmjit.errors import CaptureError, InvalidProblemError
from gemmjit.plan import Plan, Workspace

__all__ = ["BoundPlan", "is_capturing", "order_streams", "ready", "stream_handle"]


class BoundPlan:
    """A plan made ready for one device: kernels loaded, arguments packed but for addresses.

    Parameters
    ----------
    plan : Plan
    operands : tuple of str
        Names of the operands, in the order in which `run` is given their addresses.
    ordinal : int
        Device of the operands.
    """

    def __init__(self, plan: Plan, operands: tuple[str, ...], ordinal: int) -> None:
        self.plan = plan
        self.ordinal = ordinal
        self._api = driver()
        names = operands + tuple(w.name for w in plan.workspaces)
        with current(ordinal):
            self._launches = [BoundLaunch(launch, names, ordinal) for launch in plan.launches]

    def runner(self) -> Runner:
        """Return `run`, or the shortest way to the same.

        With one device in the process, a context that is current is the right one; a thread that
        has none yet is seen when the driver refuses the launch.
        """
        if len(self._launches) == 1 and num_devices() == 1:
            if not self.plan.workspaces:
                return self._launches[0].runner(counters=0)
            *others, last = self.plan.workspaces
            if last.lasting and not others:
                return self._launches[0].runner(last.nbytes)
            if last.lasting and len(others) == 1 and _is_scratch(others[0]):
                return self._launches[0].runner(last.nbytes, others[0])
        return self.run

    def run(self, inputs: tuple[int, ...], out: int, stream: int, frontend: Frontend) -> None:
        """Launch everything, asynchronously.

        Parameters
        ----------
        inputs : tuple of int
            Device address of each operand but the last.
        out : int
            That of the last one, which is written.
        stream : int
            Stream handle.
        frontend : Frontend
            Whose pool the workspaces come from; it may reuse them in stream order right away.
        """
        if is_current(self.ordinal):
            self._run((*inputs, out), stream, frontend)
        else:
            with current(self.ordinal):
                self._run((*inputs, out), stream, frontend)

    def _run(self, pointers: tuple[int, ...], stream: int, frontend: Frontend) -> None:
        held = []  # workspaces live until the last launch has been given to the stream
        for workspace in self.plan.workspaces:
            if workspace.lasting:
                pointers = (*pointers, counters_of(stream, self.ordinal, workspace.nbytes))
                continue
            array = frontend.empty((workspace.nbytes + workspace.alignment,), U8, self.ordinal)
            held.append(array)
            base = frontend.pointer(array)
            aligned = -(-base // workspace.alignment) * workspace.alignment
            self._fill(workspace, aligned, stream)
            pointers = (*pointers, aligned)
        for launch in self._launches:
            launch.run(pointers, stream)

    def _fill(self, workspace: Workspace, address: int, stream: int) -> None:
        if workspace.contents is not None:
            if is_capturing(stream, self.ordinal):
                raise CaptureError(
                    "offs: offsets on the host cannot be captured into a CUDA graph, their values "
                    "would be frozen. Pass offs as an array on the device"
                )
            source = np.ascontiguousarray(workspace.contents)
            check(
                self._api.cuMemcpyHtoDAsync(address, source.ctypes.data, source.nbytes, stream),
                f"copy of workspace {workspace.name}",
            )
        elif workspace.zeroed:
            check(
                self._api.cuMemsetD8Async(address, 0, workspace.nbytes, stream),
                f"clearing of workspace {workspace.name}",
            )


def _is_scratch(workspace: Workspace) -> bool:
    """Return whether it is taken as it is."""
    return workspace.contents is None and not workspace.zeroed and not workspace.lasting


def ready(plan: Plan, ordinal: int) -> bool:
    """Return whether binding the plan would load nothing into the driver."""
    return all(is_loaded(launch.kernel, ordinal) for launch in plan.launches)


def stream_handle(stream: Any) -> int:
    """Return the handle behind an int, or an object that follows ``__cuda_stream__``.

    Raises
    ------
    InvalidProblemError
        If it is no stream.
    """
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise InvalidProblemError(
        "stream: expected a handle or an object with __cuda_stream__; "
        f"got {type(stream).__name__}. Pass a stream of torch, CuPy or cuda.core"
    )


def order_streams(first: int, then: int, ordinal: int) -> None:
    """Make a stream wait for what another has been given so far, without the host waiting."""
    api = driver()
    with current(ordinal):
        flags = api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = check(api.cuEventCreate(flags), "cuEventCreate")
        try:
            check(api.cuEventRecord(event, first), "cuEventRecord")
            check(api.cuStreamWaitEvent(then, event, 0), "cuStreamWaitEvent")
        finally:
            check(api.cuEventDestroy(event), "cuEventDestroy")

"""Programs of the emulator over memory."""

from __future__ import annotations

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate


def run(
    body,
    *,
    args=(),
    params="",
    block=(32,),
    grid=(1,),
    module="",
    target="sm_90a",
    memory=None,
    **options,
):
    ptx = f"""
.version 8.7
.target {target}
.address_size 64
{module}
.visible .entry k({params})
{{
{body}
}}
"""
    launch = KernelLaunch(
        ptx=ptx,
        entry="k",
        grid=grid,
        block=block,
        args=list(args),
        memory=memory or DeviceMemory(),
        **{k: options.pop(k) for k in ("smem_bytes", "cluster") if k in options},
    )
    return emulate([launch], **options)

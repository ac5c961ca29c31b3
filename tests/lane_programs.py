"""Tiny PTX programs that apply a few instructions to arrays, one element a thread."""

from __future__ import annotations

import numpy as np

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate

NAMES = "abcefghij"


def source(body, widths, results, *, declare="", target="sm_90a", threads=32, module=""):
    """PTX of a kernel: registers %a, %b, ... are loaded, `body` runs, %d (%d0, %d1 ...) stored."""
    names = NAMES[: len(widths)]
    outs = ["d"] if len(results) == 1 else [f"d{i}" for i in range(len(results))]
    params = ", ".join(f".param .u64 p{i}" for i in range(len(widths) + len(results)))
    lines = []
    for index, (name, width) in enumerate(zip(names, widths, strict=True)):
        lines += [
            f"ld.param.u64 %at, [p{index}]; mad.wide.u32 %at, %i, {width // 8}, %at;",
            f"ld.global.b{width} %{name}, [%at];",
        ]
    stores = []
    for index, (name, width) in enumerate(zip(outs, results, strict=True)):
        stores += [
            f"ld.param.u64 %at, [p{len(widths) + index}];",
            f"mad.wide.u32 %at, %i, {width // 8}, %at; st.global.b{width} [%at], %{name};",
        ]
    registers = "".join(
        f".reg .b{max(w, 16)} %{n}; "
        for n, w in zip([*names, *outs], [*widths, *results], strict=True)
    )
    newline = "\n"
    return f"""
.version 8.7
.target {target}
.address_size 64
{module}
.visible .entry k({params})
{{
.reg .b64 %at; .reg .b32 %i; .reg .pred %p, %q; {registers}
{declare}
mov.u32 %i, %ctaid.x; mad.lo.u32 %i, %i, {threads}, %tid.x;
mov.u32 %i, %tid.x; mad.lo.u32 %i, %ctaid.x, {threads}, %i;
{newline.join(lines)}
{body}
{newline.join(stores)}
ret;
}}
"""


def evaluate(body, args, results, *, declare="", target="sm_90a", policy="eager", module="", **run):
    """Run `body` on arrays of equal length (a multiple of 32); the result arrays.

    `results` is one NumPy type or a list of them.
    """
    several = isinstance(results, list)
    kinds = [np.dtype(r) for r in (results if several else [results])]
    arrays = [np.ascontiguousarray(a) for a in args]
    count = len(arrays[0]) if arrays else 32
    threads = 32 if count % 128 else 128
    memory = DeviceMemory()
    pointers = [memory.allocate(a.nbytes, a) for a in arrays]
    outs = [memory.allocate(count * k.itemsize) for k in kinds]
    ptx = source(
        body, [8 * a.itemsize for a in arrays], [8 * k.itemsize for k in kinds],
        declare=declare, target=target, threads=threads, module=module,
    )  # fmt: skip
    launch = KernelLaunch(
        ptx=ptx, entry="k", grid=(count // threads,), block=(threads,), args=pointers + outs,
        memory=memory,
    )  # fmt: skip
    emulate([launch], policy=policy, **run)
    found = [memory.read(p, k, count) for p, k in zip(outs, kinds, strict=True)]
    return found if several else found[0]


def integers(dtype, count=256, seed=0):
    """Random integers of a type with its edge values among them."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    values = rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    small = rng.integers(max(info.min, -9), 10, count).astype(dtype)
    values = np.where(rng.random(count) < 0.4, small, values)
    edges = [info.min, info.max, 0, 1, info.max // 2, info.min // 2, 31, 32, 33, 64]
    values[: len(edges)] = edges
    return rng.permutation(values).astype(dtype)


def floats(dtype, count=256, seed=0, specials=True):
    """Random floats over many magnitudes, with zeros, infinities, NaN and subnormals among them."""
    rng = np.random.default_rng(seed)
    spread = 30 if np.dtype(dtype).itemsize > 2 else 6
    values = rng.standard_normal(count) * np.exp2(rng.integers(-spread, spread, count))
    if specials:
        tiny = float(np.finfo(dtype).tiny)
        edges = [0.0, -0.0, np.inf, -np.inf, np.nan, tiny / 4, -tiny / 4, 1.0, -1.0, 0.5, 2.5, 1e3]
        values[: len(edges)] = edges
        values = rng.permutation(values)
    with np.errstate(over="ignore"):
        return values.astype(dtype)

"""A small matrix of calls to run under compute-sanitizer; a plain script on CuPy.

    compute-sanitizer --tool TOOL --error-exitcode 1 python tests/gpu/sanitizer_matrix.py

TOOL is memcheck (with ``--report-api-errors no``: the bindings ask the driver for functions of
newer versions), racecheck, synccheck or initcheck. The last does not see that bulk tensor stores
initialise memory, so that it reports the read of every result of k3.

Parts, of which ``--only PART`` runs one: ``plain`` products by every tile; and by k3, from
``sanitizer_cases``, ``epilogues``, ``results`` of FP32 or stored from registers, ``sums`` (added to
what is there), ``split`` (groups in pieces) and ``claims`` (many groups).

Every array is an allocation of its own, exactly as long as its elements need, so that a single
byte read or written beside it is an error of memcheck. ``--cells N`` takes N cells of each tile or
kind (6; 0 takes all), ``--kernel K`` one kernel. Values are compared as well, every one exactly but
those of SwiGLU (`epilogue_cases.exact` says how far those may be off); a wrong one exits with 1.

``--numpy`` runs the same calls without a GPU, by the emulator of an sm_90a with two
multiprocessors, where it can be seen that each is right; but those with offsets that fall, which
are refused on the host.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]
os.environ.setdefault("GEMMJIT_CACHE_DIR", tempfile.mkdtemp(prefix="gemmjit-sanitizer-"))

import numpy as np  # noqa: E402
import references  # noqa: E402
from cases import ends_of, integers  # noqa: E402
from makers import CupyMaker, Maker, NumpyMaker  # noqa: E402
from references import assert_same, rounded  # noqa: E402
from sanitizer_cases import Cell, parts  # noqa: E402

import gemmjit  # noqa: E402
from gemmjit import SimtConfig, Sm80MmaConfig  # noqa: E402
from gemmjit.emulator import emulating  # noqa: E402
from gemmjit.errors import GemmjitError  # noqa: E402
from gemmjit.kernels import KERNELS  # noqa: E402

SIZES = (5, 0, 40, 130)
SHAPES = ((40, 72), (33, 31))
BAD = ([100, 40, 400, -1], [-5, 2**31 - 1, 0, 7])


def configs() -> list[tuple[str, object]]:
    """Return a label and a config for each way to run a kernel."""
    found: list[tuple[str, object]] = [("auto", None)]
    found += [(k.name, config) for k in KERNELS.values() for config in k.shipped_configs()]
    found.append(("k0", SimtConfig(schedule="compact")))
    found.append(("k1", Sm80MmaConfig(schedule="compact")))
    found.append(("k1", Sm80MmaConfig(schedule="bounded")))
    return found


def cupy_maker() -> Maker:
    """Return CuPy's arrays, whose allocations end where their last elements do."""
    import cupy

    cupy.cuda.set_allocator(None)  # no pool: one allocation an array, of its true size
    return CupyMaker()


def place(maker: Maker, values: np.ndarray, dtype: str, swapped: bool):
    """Return an array, its last two axes swapped in memory or not."""
    if not swapped:
        return maker.array(values, dtype)
    stored = maker.array(np.ascontiguousarray(values.swapaxes(-1, -2)), dtype)
    return stored.swapaxes(-1, -2)


def takes(label: str, case: tuple) -> bool:
    """Return whether a kernel takes a problem."""
    form, (n, k), swapped, _, _ = case
    kernel = KERNELS.get(label)
    if kernel is None or not kernel.loads_by_tma:
        return kernel is None or form in kernel.forms
    if form not in kernel.forms or n % 8 or k % 8 or swapped == "both":
        return False  # its operands must lie on the grid of TMA, A K-major
    # And in wgrad the ragged dimension must not be the contiguous one.
    return form == "ragged_m" or swapped == "none"


def run(maker: Maker, config: object, case: tuple) -> None:
    """Run one problem."""
    form, (n, k), swapped, fresh, offs_kind = case
    dtype = "bfloat16"
    ends, rows = ends_of(SIZES), sum(SIZES) + 7
    if offs_kind == "bad":
        given, ends = BAD[n % 2], references.clamp(BAD[n % 2], rows)
    else:
        given = ends
    offs = given if offs_kind == "list" else maker.array(np.asarray(given), "int32")
    if form == "ragged_m":
        a, b = integers((rows, k), seed=1), integers((len(SIZES), k, n), seed=2)
        want, shape = references.fprop(a, b, ends), (rows, n)
        swap_a = swapped == "both"
    else:
        a, b = integers((k, rows), seed=1), integers((rows, n), seed=2)
        want, shape = references.wgrad(a, b, ends), (len(SIZES), k, n)
        swap_a = swapped != "both"
    device_a = place(maker, a, dtype, swap_a)
    device_b = place(maker, b, dtype, swapped != "none")
    if fresh:
        got = gemmjit.grouped_mm(device_a, device_b, offs=offs, config=config)
    else:
        got = maker.full(shape, 0.0, dtype)
        gemmjit.grouped_mm(device_a, device_b, offs=offs, out=got, config=config)
    assert_same(maker.read(got), rounded(want, dtype))


def plain(limit: int, only: str | None, on_gpu: bool) -> Iterator[Cell]:
    """Yield the products by every tile, ``limit`` (0: all) of each."""
    cases = list(
        itertools.product(
            ("ragged_m", "ragged_k"),
            SHAPES,
            ("none", "b", "both"),
            (True, False),
            ("list", "int32", "bad") if on_gpu else ("list", "int32"),
        )
    )
    for number, (label, config) in enumerate(configs()):
        if only not in (None, label):
            continue
        # Each config takes every fourth case, the default choice more.
        own = cases if label == "auto" else cases[number % 4 :: 4]
        own = [case for case in own if takes(label, case)]
        random.Random(number).shuffle(own)  # a few are of both forms, and of all else
        few = limit * 3 if label == "auto" else limit
        for case in own[: few or None]:
            name = f"{label} {config} {case}"
            yield Cell(label, name, partial(run, config=config, case=case))


def cells(only: str | None, limit: int, kernel: str | None, on_gpu: bool) -> Iterator[Cell]:
    """Yield what to run: of one part or all, ``limit`` (0: all) of each kind."""
    if only in (None, "plain"):
        yield from plain(limit, kernel, on_gpu)
    if kernel not in (None, "k3"):
        return
    for name, part in parts().items():
        seen: Counter[str] = Counter()
        for cell in part if only in (None, name) else ():
            seen[cell.kind] += 1
            if not limit or seen[cell.kind] <= limit:
                yield cell


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=6, help="so many of each kind (0: all)")
    parser.add_argument("--kernel", help="only this kernel (k0, k1, ..., auto)")
    parser.add_argument("--only", choices=("plain", *parts()), help="only this part")
    parser.add_argument("--numpy", action="store_true", help="without a GPU, by the emulator")
    arguments = parser.parse_args(given)
    settings: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    maker: Maker
    if arguments.numpy:
        os.environ |= {"GEMMJIT_EXECUTOR": "emulator", "GEMMJIT_ARCH": "sm_90a"}
        settings = emulating("random", 1, unwaited_stores="error", num_sms=2)
        maker = NumpyMaker()
    else:
        maker = cupy_maker()
    maker.guard = 0
    started, count, failed = time.monotonic(), 0, 0
    with settings:
        for cell in cells(arguments.only, arguments.cells, arguments.kernel, maker.on_gpu):
            count += 1
            try:
                cell.run(maker)
            except (AssertionError, GemmjitError) as error:
                failed += 1
                print(f"WRONG {cell.name}: {error}")
    seconds = time.monotonic() - started
    print(f"sanitizer matrix: {count} calls, {failed} wrong, {seconds:.0f} s")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main())

"""A small matrix of calls to run under compute-sanitizer; a plain script on CuPy.

    compute-sanitizer --tool TOOL --error-exitcode 1 python tests/gpu/sanitizer_matrix.py

TOOL is memcheck (with ``--report-api-errors no``: the bindings ask the driver for functions of
newer versions), racecheck, synccheck or initcheck. The last does not see that bulk tensor stores
initialise memory, so that it reports the read of every result of k3.

Every array is an allocation of its own, exactly as long as its elements need, so that a single
byte read or written beside it is an error of memcheck. ``--cells N`` limits the cells of each tile,
``--kernel K`` takes one kernel. Values are compared as well; a wrong one exits with 1.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]
os.environ.setdefault("GEMMJIT_CACHE_DIR", tempfile.mkdtemp(prefix="gemmjit-sanitizer-"))

import numpy as np  # noqa: E402
import references  # noqa: E402
from cases import ends_of, integers  # noqa: E402
from makers import CupyMaker  # noqa: E402
from references import assert_same, rounded  # noqa: E402

import gemmjit  # noqa: E402
from gemmjit import SimtConfig, Sm80MmaConfig  # noqa: E402
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


class Exact:
    """Arrays whose allocation ends where their last element does."""

    def __init__(self) -> None:
        import cupy

        cupy.cuda.set_allocator(None)  # no pool: one allocation an array, of its true size
        self.maker = CupyMaker()

    def array(self, values: np.ndarray, dtype: str, swapped: bool = False):
        if not swapped:
            return self.maker.array(values, dtype)
        stored = self.maker.array(np.ascontiguousarray(values.swapaxes(-1, -2)), dtype)
        return stored.swapaxes(-1, -2)

    def read(self, array) -> np.ndarray:
        return self.maker.read(array)


def run(exact: Exact, label: str, config: object, case: tuple) -> bool:
    """Run one problem; return whether the kernel takes it."""
    form, (n, k), swapped, fresh, offs_kind = case
    dtype = "bfloat16"
    kernel = KERNELS.get(label)
    if kernel is not None and form not in kernel.forms:
        return False
    if kernel is not None and kernel.loads_by_tma and (n % 8 or k % 8 or swapped == "both"):
        return False  # its operands must lie on the grid of TMA, A K-major
    if kernel is not None and kernel.loads_by_tma and form == "ragged_k" and swapped != "none":
        return False  # and in wgrad the ragged dimension must not be the contiguous one
    ends, rows = ends_of(SIZES), sum(SIZES) + 7
    if offs_kind == "bad":
        given, ends = BAD[n % 2], references.clamp(BAD[n % 2], rows)
    else:
        given = ends
    offs = given if offs_kind == "list" else exact.maker.array(np.asarray(given), "int32")
    if form == "ragged_m":
        a, b = integers((rows, k), seed=1), integers((len(SIZES), k, n), seed=2)
        want, shape = references.fprop(a, b, ends), (rows, n)
        swap_a = swapped == "both"
    else:
        a, b = integers((k, rows), seed=1), integers((rows, n), seed=2)
        want, shape = references.wgrad(a, b, ends), (len(SIZES), k, n)
        swap_a = swapped != "both"
    device_a = exact.array(a, dtype, swap_a)
    device_b = exact.array(b, dtype, swapped != "none")
    if fresh:
        got = gemmjit.grouped_mm(device_a, device_b, offs=offs, config=config)
    else:
        got = exact.array(np.zeros(shape), dtype)
        gemmjit.grouped_mm(device_a, device_b, offs=offs, out=got, config=config)
    assert_same(exact.read(got), rounded(want, dtype))
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=0, help="no more than so many of each tile")
    parser.add_argument("--kernel", help="only this kernel (k0, k1, ..., auto)")
    arguments = parser.parse_args()
    exact = Exact()
    cases = list(
        itertools.product(
            ("ragged_m", "ragged_k"),
            SHAPES,
            ("none", "b", "both"),
            (True, False),
            ("list", "int32", "bad"),
        )
    )
    started, count, failed = time.monotonic(), 0, 0
    for number, (label, config) in enumerate(configs()):
        if arguments.kernel not in (None, label):
            continue
        before = count
        # Each config takes every fourth case, the default choice all of them.
        for case in cases if label == "auto" else cases[number % 4 :: 4]:
            if arguments.cells and count - before >= arguments.cells:
                break
            try:
                count += run(exact, label, config, case)
            except AssertionError as error:
                failed += 1
                print(f"WRONG {label} {config} {case}: {error}")
    seconds = time.monotonic() - started
    print(f"sanitizer matrix: {count} calls, {failed} wrong, {seconds:.0f} s")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main())

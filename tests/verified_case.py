"""The case that contenders are verified on."""

import ml_dtypes
import numpy as np

from gemmjit.bench.cases import Case, Workload
from gemmjit.bench.entrant import enter, verify_all
from gemmjit.bench.inputs import Inputs
from gemmjit.bench.peers import Contender, Prepared
from gemmjit.bench.simulated import SimulatedBackend

CASE = Case("ragged", (5, 0, 19, 8), 64, 48)


def product(operands, layout="nn"):
    """Compute the workload in float32, with one rounding: independent of the package."""
    a = np.asarray(operands.mat_a, np.float32)
    b = np.asarray(operands.mat_b(layout), np.float32)
    out = np.zeros(operands.workload.result_shape, np.float32)
    start = 0
    for group, size in enumerate(operands.group_sizes):
        rows = slice(start, start + size)
        start += size
        if operands.workload.form == "wgrad":
            out[group] = a[:, rows] @ b[rows]
        else:
            out[rows] = a[rows] @ b[group]
    return out.astype(ml_dtypes.bfloat16)


def verified(make, form="fprop", case=CASE, copies=2, layout="nn", **fields):
    """Enter one contender whose call is ``make(operands, number)``; return (check, reason)."""
    backend = SimulatedBackend()
    inputs = Inputs(backend, Workload(case, form), copies=copies, seed=1)
    inputs.require_random()
    numbers = iter(range(copies))

    def prepare(operands):
        return Prepared(make(operands, next(numbers)), **fields)

    contender = Contender("x", "x", prepare, layout=layout)
    entrants, rejected = enter(backend, inputs, [contender], graph_seconds=1e-3)
    if rejected:
        return None, rejected[0].reason
    good, bad = verify_all(backend, entrants, seed=2)
    return (good[0].check, "") if good else (None, bad[0].reason)

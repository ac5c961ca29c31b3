"""The documentation's generator, and result files of a simulated device whose times are known."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from gemmjit.bench.cases import Case, Workload
from gemmjit.bench.epilogues import run_epilogues
from gemmjit.bench.grouped import run_grouped
from gemmjit.bench.host_run import run_host
from gemmjit.bench.ladder import LADDER_CASES, run_ladder
from gemmjit.bench.peers import PEERS
from gemmjit.bench.peers.own import own_contender
from gemmjit.bench.peers.peer import Peer
from gemmjit.bench.protocol import Protocol
from gemmjit.bench.provenance import provenance
from gemmjit.bench.scheduling import Sizes, run_scheduling, scheduling_cases
from gemmjit.bench.setup import open_bench
from gemmjit.bench.simulated import ClockModel, SimulatedBackend
from gemmjit.config import Sm90TmaMmaConfig
from gemmjit.tuning import Task, Tuner, checked
from gemmjit.workloads import power_law

CHECKOUT = Path(__file__).resolve().parents[1]
DOCS = CHECKOUT / "docs"
BENCHMARKS = DOCS / "benchmarks"


def load_generate():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generate()
figures = generate._figures()
findings = sys.modules["figures.findings"]
records = sys.modules["figures.records"]


class Slow(Peer):
    """The baseline: gemmjit, said to take twice as long."""

    name = "torch"
    title = "a baseline"

    def available(self, backend):
        return None

    def contenders(self, workload, backend):
        from dataclasses import replace

        own = own_contender("torch nn", workload, backend, config="k0")

        def prepare(operands):
            prepared = own.prepare(operands)

            def call():
                return prepared.call()

            call.simulated_seconds = 2 * backend.model.default_seconds
            return replace(prepared, call=call)

        return [replace(own, name="torch nn", peer="torch", prepare=prepare, details={})]


def simulate(cache):
    """Return result files of every kind: small problems under the published ones' names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMJIT_EXECUTOR", "reference")
        patch.setenv("GEMMJIT_CACHE_DIR", str(cache))
        backend = SimulatedBackend(ClockModel(noise=0.001), l2_bytes=1 << 12)
        protocol = Protocol(warmup_seconds=0.01, slot_seconds=0.0002, graph_seconds=0.0001)
        bench = open_bench(backend, protocol, ("cool", "hot"), 4, None, lambda text: None)
        head = provenance(backend, None, ["gemmjit", "bench"])
        head["source"] |= {"commit": "0123456789abcdef", "dirty": False}
        shapes = {"even": power_law(256, 4, 0.0), "skewed": power_law(256, 4, 1.2)}
        few = power_law(32, 4, 0.0)
        cases = [
            Case(name, tuple(sizes.tolist()), 64, 64)
            for name, sizes in zip(LADDER_CASES, (*shapes.values(), few), strict=True)
        ]
        sizes = Sizes(groups=(4, 8), few=2, many=8, k=64, n=64)
        extra = (Sm90TmaMmaConfig(swizzle=64),)
        works = [Workload(case, form) for case in cases[:2] for form in ("fprop", "wgrad")]
        torch = Slow()
        found = {
            "ladder": run_ladder(bench, cases, torch, kernels=("k0", "k1", "k2")),
            "scheduling": {
                "results": run_scheduling(
                    bench, scheduling_cases(sizes), lambda r: None, capacity=4, kernel="k1"
                )
            },
            "tiles": {
                "results": run_scheduling(
                    bench, cases[:1], lambda r: None, kernel="k2", extra=extra
                )
            },
            "grouped": {
                "baseline": "torch",
                "missing": [],
                "peers": {n: {"title": n, "version": None} for n in ("gemmjit", "torch")},
                "results": run_grouped(
                    bench, works, [PEERS["gemmjit"], torch], "torch", lambda r: None
                ),
            },
            "host": run_host(
                backend,
                cases[2],
                ("fprop",),
                calls=20,
                batch=10,
                first=False,
                device=0,
                say=lambda text: None,
            ),
        }
        swept = [
            Case(
                f"rows={rows}:groups=4:k=64:n=64:skew={skew}",
                tuple(power_law(rows, 4, skew).tolist()),
                64,
                64,
            )
            for rows, skew in ((8, 0.0), (64, 0.0), (64, 1.2))
        ]
        works_of = [Workload(case, "fprop") for case in swept]
        found["sweep"] = {
            **found["grouped"],
            "results": run_grouped(
                bench, works_of, [PEERS["gemmjit"], torch], "torch", lambda r: None, layouts=["nn"]
            ),
        }
        found["epilogues"] = {
            "results": run_epilogues(
                bench, works[:1], lambda r: None, epilogues=("bias",), layouts=("nn",), config="k1"
            )
        }
        tuner = Tuner(bench, None, within=20.0, kernels=("k1",))
        tasks = [Task(work, drawn=work.form == "wgrad") for work in works]
        measured = [tuner.measure(task) for task in tasks]
        found["tune"] = {"results": [{"check": checked(one), **one} for one in measured]}
        kinds = {name: kind for name, (_, kind) in records.FILES.items()}
        results = {name: {**head, "kind": kinds[name], **found[name]} for name in found}
        entry = results["ladder"]["states"]["hot"]["rows"][f"{LADDER_CASES[0]}: k1/64"]
        results["counters"] = {
            "kind": "counters",
            "launches": [
                {"kernel": entry["details"]["entry"], "issue_rate": 0.4567, "instructions": 2.5e6}
                | {"stalls": {"barrier": 3.21, "wait": 1.0}},
                {"kernel": "Kernel Name", "stalls": {}},  # the head of a second table
            ],
        }
        results["k3_counters"] = {
            **head,
            "kind": "counters",
            "launches": [
                {**results["counters"]["launches"][0], "workload": "one case fprop"},
            ],
        }
        results["training"] = {**head, "kind": "training", **trained()}
        return json.loads(json.dumps(results))


def trained(noise=1):
    """Return what the training example reports, of losses that are known."""
    curve = [2.0 - step / 40 for step in range(40)]
    shift = {"torch": [0.0, 0.0], "gemmjit": [0.01, -0.05]}
    shift |= {"torch, perturbed": [-0.02, 0.03], "torch, perturbed 2": [0.0, 0.06]}
    runs = {
        name: {
            "loss": [x + by[step // 20] for step, x in enumerate(curve)],
            "step_ms": 10.0 if name != "gemmjit" else 9.0,
            "tokens_per_s": 8192 / 0.01,
            "peak_memory_mib": None,
            "parameters": 2_000_000,
        }
        for name, by in list(shift.items())[: 2 + noise]
    }
    sizes = ("layers", "model", "heads", "experts", "hidden", "top_k", "steps", "batch", "length")
    return {"settings": {**dict.fromkeys(sizes, 4), "dtype": "bfloat16"}, "runs": runs}


def block(name, results):
    return figures.BLOCKS[name](results)


def slow_down(record, rung, factor, cases=LADDER_CASES, states=("hot", "cool")):
    """Make a rung of the ladder slower than it was."""
    for state in states:
        for case in cases:
            row = record["states"][state]["rows"][f"{case}: {rung}"]
            row["samples_us"] = [factor * value for value in row["samples_us"]]
            row["us"]["median"] *= factor
            row["tflop_per_s"] /= factor


def verdicts(results):
    lines = block("ladder-findings", results).splitlines()[2:]
    return {cells[1].strip(): cells[4].strip() for cells in (line.split("|") for line in lines)}

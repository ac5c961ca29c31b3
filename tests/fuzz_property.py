"""What must hold for every drawn problem: the right values, nothing else touched, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import fuzz_faults
import numpy as np
import references
from fuzz_float64 import Matmul, expected
from fuzz_problems import Problem, layout_of
from fuzz_seen import Seen
from makers import NUMPY_DTYPES, Maker, Placed
from references import assert_same, rounded

import gemmjit
from gemmjit.arch import Arch
from gemmjit.arrays import frontend_of
from gemmjit.emulator import emulating, plan_executor
from gemmjit.epilogue import chain_of
from gemmjit.errors import GemmjitError, InvalidProblemError
from gemmjit.ops import cpu_call, gpu_call
from gemmjit.ops.dispatch import plan_for, spec_for
from gemmjit.ops.validation import problem_of

#: Half a unit in the last place, over the value; a float32 result is what was summed.
_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 0.0}
#: Half of the smallest step of a type, where values have lost bits to underflow.
_SMALLEST = {"bfloat16": 2.0**-126, "float16": 2.0**-25, "float32": 2.0**-126}


def check(
    maker: Maker, problem: Problem, seen: Seen | None = None, matmul: Matmul = np.matmul
) -> None:
    """Run a problem and compare.

    Parameters
    ----------
    maker : Maker
        Array framework; NumPy's is run by the executor that ``GEMMJIT_EXECUTOR`` names.
    problem : Problem
    seen : Seen, optional
        What was run, added to.
    matmul : callable
        Product of float64 matrices of which both are on the host.

    Raises
    ------
    AssertionError
        If a value is wrong, memory was touched, or the call was not refused as it must be.
    """
    seen = seen if seen is not None else Seen()
    launched: list[Any] = []
    settings = nullcontext() if maker.on_gpu else _emulating(problem)
    with settings, _recording(launched):
        _Run(maker, problem, seen, matmul).check()
    seen.add(problem, launched)


def _emulating(problem: Problem) -> Any:
    """Emulate with the problem's order of warps, unless the reference is asked for."""
    if gemmjit.env.get("GEMMJIT_EXECUTOR") == "reference":
        return nullcontext()
    return emulating(problem.policy, problem.seed, numerics=problem.numerics)


@contextmanager
def _recording(launched: list[Any]) -> Iterator[None]:
    """Note which kernels calls resolve to."""
    originals = [(module, module.spec_for) for module in (cpu_call, gpu_call)]

    def recording(*arguments: Any, **keywords: Any) -> Any:
        spec = spec_for(*arguments, **keywords)
        launched.append(spec)
        return spec

    for module, _ in originals:
        module.spec_for = recording
    try:
        yield
    finally:
        for module, original in originals:
            module.spec_for = original


class _Run:
    """One problem with its arrays."""

    def __init__(self, maker: Maker, problem: Problem, seen: Seen, matmul: Matmul) -> None:
        self.maker, self.problem, self.seen, self.matmul = maker, problem, seen, matmul
        cell = problem.cell
        self.ragged_m = cell.form == "ragged_m"
        right = problem.wrong_ends is None
        ends = problem.ends if right else references.clamp(problem.wrong_ends or (), problem.rows)
        self.ends = list(ends)
        self.used = self.ends[-1] if self.ends else 0
        self.rng = np.random.default_rng(problem.seed)
        self.chain = chain_of(cell.chain)
        self.exact = problem.values == "integers"
        columns = problem.n // self.chain.folds
        self.shape: tuple[int, ...] = (problem.rows, columns)
        if not self.ragged_m:
            self.shape = (len(problem.sizes), problem.k, columns)
        self.inputs: list[Placed] = []
        self.a, self.b = self._operands()
        self.bias, self.scale = self._epilogue_operands()

    # -- operands

    def _draw(self, shape: tuple[int, ...], spread: float = 1.0) -> np.ndarray:
        if self.exact:
            limit = 2 if self.chain.gate else 3
            return self.rng.integers(-limit, limit + 1, shape).astype(np.float64)
        return self.rng.standard_normal(shape, np.float32).astype(np.float64) * spread

    def _operands(self) -> tuple[Placed, Placed]:
        p = self.problem
        spread = max(p.k, 1) ** -0.5 if self.chain.gate else 1.0  # gates as in a model
        a_shape, b_shape = (p.rows, p.k), (len(p.sizes), p.k, p.n)
        if not self.ragged_m:
            a_shape, b_shape = (p.k, p.rows), (p.rows, p.n)  # type: ignore[assignment]
        a, b = self._draw(a_shape, spread), self._draw(b_shape)
        bad = [(self.used, p.rows, np.nan)]
        if p.values == "foreign" and self.ends:
            group = int(self.rng.integers(len(self.ends)))
            # A gate of infinity is the business of tests of SwiGLU.
            value = np.nan if self.chain.gate else self.rng.choice([np.nan, np.inf, -np.inf])
            first = self.ends[group - 1] if group else 0
            bad.append((first, self.ends[group], value))
        for first, last, value in bad:
            if self.ragged_m:
                a[first:last] = value
            else:
                a[:, first:last] = value
                b[first:last] = value
        return self._place(a, p.cell.a), self._place(b, p.cell.b)

    def _place(self, values: np.ndarray, layout: str, dtype: str = "") -> Placed:
        dtype = dtype or self.problem.cell.dtype
        lies = layout_of(layout, values.shape[-1], NUMPY_DTYPES[dtype].itemsize)
        with np.errstate(over="ignore", invalid="ignore"):
            placed = self.maker.place(values, dtype, lies)
        self.inputs.append(placed)
        return placed

    def _epilogue_operands(self) -> tuple[Placed | None, Placed | None]:
        p = self.problem
        found: dict[str, Placed] = {}
        for step in self.chain.operands:
            dtype = "float32" if step.option == "f32" else p.cell.dtype
            if step.kind.keyword == "bias":
                found["bias"] = self._place(self._draw((len(p.sizes), p.n)), p.cell.bias, dtype)
            else:
                values = self._draw((p.rows,))
                values[self.used :] = np.nan
                found["scale"] = self._place(values, "plain", dtype)
        return found.get("bias"), found.get("scale")

    def _offsets(self, ends: Sequence[int]) -> Any:
        if self.problem.offs == "list":
            return list(ends)
        return self.maker.array(np.asarray(ends, self.problem.offs), self.problem.offs)

    def _call(self) -> dict[str, Any]:
        p = self.problem
        steps: list[Any] = [gemmjit.SwiGLU(self.chain.gate)] if self.chain.gate else []
        if self.scale is not None:
            steps.append(gemmjit.RowScale(self.scale.array))
        call: dict[str, Any] = {
            "mat_a": self.a.array,
            "mat_b": self.b.array,
            "offs": self._offsets(p.wrong_ends or p.ends),
            "config": p.cell.config,
        }
        if self.bias is not None:
            call["bias"] = self.bias.array
        if steps:
            call["epilogue"] = steps[0] if len(steps) == 1 else tuple(steps)
        if p.cell.accumulate:
            call["accumulate"] = True
        return call

    # -- the property

    def check(self) -> None:
        call, cell = self._call(), self.problem.cell
        out = start = None
        if cell.out or (self.problem.wrong_ends and not self.maker.on_gpu):
            start = self.rng.integers(-3, 4, self.shape).astype(np.float64)
            if not cell.accumulate:  # so that what is not written shows
                start[: self.used if self.ragged_m else len(start)] = np.nan
            lies = layout_of(
                cell.out or "plain", self.shape[-1], NUMPY_DTYPES[cell.out_dtype].itemsize
            )
            out = self.maker.place(start, cell.out_dtype, lies, poison=7.0)
            call["out"] = out.array
        else:
            call["out_dtype"] = cell.out_dtype
        refusal = fuzz_faults.refusal(self.problem)
        if refusal is not None:
            self._check_refusal(call, *refusal)
            if out is not None:
                out.assert_unchanged()
        elif self.problem.wrong_ends and not self.maker.on_gpu:
            self._check_refusal(call, InvalidProblemError, ("offs:",))
            assert out is not None
            out.assert_unchanged()
            if gemmjit.env.get("GEMMJIT_EXECUTOR") != "reference":
                self._run_unchecked(call, out)
                self._compare(out.read(), start)
                out.assert_only_elements_changed()
        else:
            self._check_result(call, out, start)
        for placed in self.inputs:
            placed.assert_unchanged()

    def _check_refusal(
        self, call: dict[str, Any], error: type[GemmjitError], names: tuple[str, ...]
    ) -> None:
        if self.problem.fault:
            fuzz_faults.FAULTS[self.problem.fault].spoil(self.problem, self.maker, call)
        try:
            gemmjit.grouped_mm(**call)
        except error as caught:
            text = str(caught)
            assert text.startswith(names), f"the message begins with none of {names}: {text}"
            return
        except GemmjitError as caught:
            raise AssertionError(
                f"expected {error.__name__} of {names}; got {type(caught).__name__}: {caught}"
            ) from caught
        raise AssertionError(f"expected {error.__name__} of {names}; the call was run")

    def _check_result(
        self, call: dict[str, Any], out: Placed | None, start: np.ndarray | None
    ) -> None:
        cell = self.problem.cell
        if out is None:
            self.maker.poison_pool(self.shape, cell.out_dtype)
        result = gemmjit.grouped_mm(**call)
        if out is None:
            assert self.maker.owns(result)
            assert self.maker.dtype_name(result) == cell.out_dtype
            self._compare(self.maker.read(result), None)
        else:
            assert result is out.array
            self._compare(out.read(), start)
            out.assert_only_elements_changed()
        if self.problem.repeat and not cell.accumulate:
            again = gemmjit.grouped_mm(**call)
            first = self.maker.download(result).view(np.uint8) if out is None else out.raw()
            second = self.maker.download(again).view(np.uint8) if out is None else out.raw()
            assert np.array_equal(first, second), "a repeated call gave other bits"

    def _run_unchecked(self, call: dict[str, Any], out: Placed) -> None:
        """Run the plan of a call whose offsets nobody has looked at, in the emulator."""
        offs = call["offs"]
        numpy = frontend_of(offs, "offs")
        views = {
            "mat_a": numpy.view(call["mat_a"]),
            "mat_b": numpy.view(call["mat_b"]),
            "out": numpy.view(out.array),
            "offs": numpy.view(offs),
        }
        problem = problem_of(
            views["mat_a"], views["mat_b"], views["offs"], len(offs), views["out"], None,
            self.problem.cell.accumulate,
        )  # fmt: skip
        if problem.is_empty:
            return
        spec = cpu_call.spec_for(problem, Arch(90, "a"), call["config"])  # the noted one
        plan = plan_for(
            problem, spec, num_sms=4, offs_is_int64=self.problem.offs == "int64", group_sizes=None
        )
        plan_executor.run(plan, views)

    def _compare(self, got: np.ndarray, start: np.ndarray | None) -> None:
        cell = self.problem.cell
        want, off = expected(
            self.problem, self.ends, self.a, self.b, self.bias, self.scale, self.matmul
        )
        exact = self.exact and not self.chain.gate
        with np.errstate(all="ignore"):
            if cell.accumulate:
                assert start is not None
                want = want + start
                off = off + (0.0 if exact else 2.0**-24) * abs(want)
            if self.ragged_m:
                want[self.used :] = 0.0 if start is None else start[self.used :]
                off[self.used :] = 0.0
        assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
        if exact:
            finite = np.isfinite(want)
            assert_same(got, np.where(finite, rounded(np.where(finite, want, 0), cell.out_dtype),
                                      want))  # fmt: skip
            return
        self._within(got, want, off)

    def _within(self, got: np.ndarray, want: np.ndarray, off: np.ndarray) -> None:
        cell = self.problem.cell
        roundoff = _ROUNDOFF[cell.out_dtype] or (2.0**-24 if self.chain.gate else 0.0)
        finite = np.isfinite(want)
        with np.errstate(all="ignore"):
            limit = np.where(off > 0, off + roundoff * (abs(want) + off), 0.0)
            limit = np.where(limit > 0, limit + _SMALLEST[cell.out_dtype], 0.0)
            error = np.where(finite, abs(got - want), 0.0)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        wrong = ~np.where(finite, error <= limit, same)
        positive = finite & (limit > 0)
        if positive.any():
            ratio = float((error[positive] / limit[positive]).max())
            key = f"{cell.kernel} {cell.form} {cell.out_dtype}"
            if np.isfinite(ratio):
                self.seen.worst[key] = max(self.seen.worst.get(key, 0.0), ratio)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{int(wrong.sum())} of {wrong.size} elements are wrong; first {at}: got {got[at]},"
                f" expected {want[at]} within {limit[at]}"
            )

"""What must hold for every drawn problem: the right values, nothing else touched, or a refusal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import fuzz_faults
import numpy as np
import references
from fuzz_problems import Problem, layout_of
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

Matmul = Callable[[np.ndarray, np.ndarray], np.ndarray]

#: Half a unit in the last place, over the value; a float32 result is what was summed.
_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 0.0}
#: Half of the smallest step of a type, where values have lost bits to underflow.
_SMALLEST = {"bfloat16": 2.0**-126, "float16": 2.0**-25, "float32": 2.0**-126}


#: Below, the reciprocal of 1 + exp(-g) is no normal number any more, and is zero.
_GATE_OF_ZERO = -126 * np.log(2)


@dataclass
class Seen:
    """What was run.

    Attributes
    ----------
    counts : dict of Counter
        Problems by what they were.
    worst : dict
        Largest error over what is allowed, by kernel.
    kernels : set of str
        Entries of the kernels that were launched.
    """

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    kernels: set[str] = field(default_factory=set)

    def count(self, what: str, value: object) -> None:
        """Count a problem under one of its properties."""
        self.counts.setdefault(what, Counter())[str(value)] += 1


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
    _count(problem, seen, launched)


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


def _count(problem: Problem, seen: Seen, launched: list[Any]) -> None:
    cell = problem.cell
    expected = fuzz_faults.refusal(problem)
    if expected is not None:
        seen.count("refused", problem.fault or "operands that TMA cannot load")
        seen.count("refused_error", expected[0].__name__)
        return
    spec = launched[0] if launched else None
    kernel = spec.name if spec else f"{cell.kernel}: nothing to do, or remembered"
    seen.count("kernel_form", f"{kernel} {cell.form}")
    seen.count("asked", f"{cell.kernel} {cell.form}")
    seen.count("dtype", f"{cell.dtype} -> {cell.out_dtype}")
    seen.count("epilogue", cell.chain + ("+accumulate" if cell.accumulate else ""))
    seen.count("offs", "wrong " + problem.offs if problem.wrong_ends else problem.offs)
    seen.count("values", problem.values)
    for name in ("a", "b"):
        seen.count(f"layout_{name}", getattr(cell, name))
    seen.count("layout_out", cell.out or "fresh")
    groups = len(problem.sizes)
    for limit in (0, 1, 8, 64, 10**9):
        if groups <= limit:
            seen.count("groups", f"up to {limit}" if limit < 10**9 else "more")
            break
    if spec is not None:
        seen.kernels.add(spec.entry)


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
        expected = fuzz_faults.refusal(self.problem)
        if expected is not None:
            self._check_refusal(call, *expected)
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
        spec = spec_for(problem, Arch(90, "a"), call["config"])
        plan = plan_for(
            problem, spec, num_sms=4, offs_is_int64=self.problem.offs == "int64", group_sizes=None
        )
        plan_executor.run(plan, views)

    # -- float64

    def _products(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the product in float64, and how far sums of FP32 may be off it.

        A sum of k products: k * 2^-24 * sum |a||b| in any order of FP32 additions (Higham, Accuracy
        and Stability of Numerical Algorithms, section 3.1). An adder of a tensor core takes 16
        products at a time, cuts each at 2^-25 of the largest and the sum at 2^-23
        (`gemmjit.emulator.accumulate`); for contractions of a few products that is more.
        """
        p = self.problem
        a, b = self.a.read(), self.b.read()
        want = np.zeros((p.rows, p.n) if self.ragged_m else (len(p.sizes), p.k, p.n))
        off = np.zeros_like(want)
        first = 0
        with np.errstate(all="ignore"):
            for group, end in enumerate(self.ends):
                rows, first = slice(first, end), end
                if rows.start == rows.stop or 0 in (p.k, p.n):
                    continue
                at = rows if self.ragged_m else group
                x, y = (a[rows], b[group]) if self.ragged_m else (a[:, rows], b[rows])
                want[at] = self.matmul(x, y)
                if not self.exact:
                    k = x.shape[1]
                    unit = max(k * 2.0**-24, k * 2.0**-25 + (k // 16 + 2) * 1.25 * 2.0**-23)
                    off[at] = self.matmul(abs(x), abs(y)) * unit
        return want, off

    def _expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the result in float64, before it is added or rounded, and the error allowed."""
        x, off = self._products()
        sizes = np.diff(np.asarray(self.ends, np.int64), prepend=0)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        used, half = self.used, self.shape[-1]
        cut = 0.0 if self.exact else 2.0**-24
        with np.errstate(all="ignore"):
            if self.bias is not None:
                x[:used] += self.bias.read()[owner]
                off += cut * abs(x)
            if self.chain.gate:
                split = self.chain.gate == "split"
                pairs = [(z[:, :half], z[:, half:]) if split else (z[:, 0::2], z[:, 1::2])
                         for z in (x, off)]  # fmt: skip
                (g, u), (off_g, off_u) = pairs
                silu = g / (1 + np.exp(-g))
                x = silu * u
                # ex2.approx and rcp.approx: 2^-22 and 2^-23; the sum and three products: 2^-24
                # each; the exponent: |g| (2^-24 + 1.4e-8). SiLU is nowhere steeper than 1.1.
                off = abs(x) * (2**-22 + 2**-23 + 4 * 2**-24 + abs(g) * 7.4e-8)
                off = off + 1.1 * off_g * (abs(u) + off_u) + abs(silu) * off_u
                off = np.where(g < _GATE_OF_ZERO, off + abs(x), off)
                cut = 2.0**-24
            if self.scale is not None:
                scale = self.scale.read()[:used, None]
                x[:used] *= scale
                off[:used] = off[:used] * abs(scale) + cut * abs(x[:used])
        return x, off

    def _compare(self, got: np.ndarray, start: np.ndarray | None) -> None:
        cell = self.problem.cell
        want, off = self._expected()
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

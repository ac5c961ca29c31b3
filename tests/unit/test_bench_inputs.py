"""Inputs and cases of the measurements."""

import numpy as np
import pytest
from verified_case import CASE

from gemmjit.bench.cases import CASES, Case, Workload, case_of, passes_of
from gemmjit.bench.inputs import Inputs, copies_for, require_random
from gemmjit.bench.simulated import SimulatedBackend
from gemmjit.dtypes import BF16
from gemmjit.errors import InvalidProblemError


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.zeros(9000), "zeros"),
        (np.ones(9000), "distinct"),
        (np.tile([1.0, -1.0, 0.5], 3000), "distinct"),
        (np.where(np.arange(9000) % 2, 1.0, 0.0) * np.arange(9000), "zeros"),
        (np.full(9000, np.nan), "finite"),
    ],
)
def test_inputs_that_are_not_random_are_refused(values, reason):
    backend = SimulatedBackend()
    with pytest.raises(InvalidProblemError, match=f"mat_a: expected random data.*{reason}"):
        require_random(backend, values.astype(BF16.numpy), "mat_a")


def test_drawn_inputs_are_accepted_even_when_they_are_small():
    backend = SimulatedBackend()
    for shape in ((64, 64), (4, 4), (2, 3)):
        array = backend.empty(shape, BF16)
        backend.draw(array, 1.0, seed=3)
        require_random(backend, array, "mat_a")


def test_a_backend_that_draws_zeros_cannot_be_measured():
    class Lazy(SimulatedBackend):
        def draw(self, array, scale, seed):
            array.fill(0)

    backend = Lazy()
    inputs = Inputs(backend, Workload(CASE, "fprop"))
    with pytest.raises(InvalidProblemError, match="zeros"):
        inputs.require_random()


def test_copies_differ_and_exceed_the_cache():
    backend = SimulatedBackend(l2_bytes=1 << 16)
    inputs = Inputs(backend, Workload(CASE, "fprop"))
    assert inputs.exceed_l2
    assert inputs.nbytes >= 3 * (1 << 16)
    first, second = inputs.copies[:2]
    assert not np.array_equal(first.mat_a, second.mat_a)
    assert not np.array_equal(first.mat_b(), second.mat_b())
    before = np.array(first.mat_b("nt"))
    inputs.redraw(9)
    assert not np.array_equal(first.mat_b("nt"), before)


def test_copies_needed_for_a_cache():
    assert copies_for(500 << 20, 50 << 20) == 2  # larger than the cache, but never one alone
    assert copies_for(10 << 20, 50 << 20) == 15
    assert copies_for(1, 50 << 20) == 64


def test_only_true_rows_are_work():
    sizes = (1, 300, 0, 129)
    case = Case("x", sizes, 32, 16, spare_rows=1000)
    for form in ("fprop", "dgrad", "wgrad"):
        assert Workload(case, form).flops == 2 * 430 * 32 * 16
    work = Workload(case, "fprop")
    assert work.min_bytes == 2 * (430 * (32 + 16) + 3 * 32 * 16)  # no weights of the empty group
    assert Workload(case, "wgrad").min_bytes == 2 * (430 * (32 + 16) + 4 * 32 * 16)
    assert work.result_shape == (1430, 16)


def test_published_cases():
    skewed = CASES["seed1-16k-s1.2"]
    assert (skewed.group_sizes[0], skewed.group_sizes[-1], skewed.rows) == (4793, 32, 16384)
    assert set(CASES["seed1-2k-s0"].group_sizes) == {32}
    assert Workload(CASES["seed1-16k-s0"], "fprop").flops == pytest.approx(90.2e9, rel=1e-3)
    assert {name: (c.rows, c.num_groups, c.k, c.n) for name, c in CASES.items()} == {
        "seed1-16k-s0": (16384, 64, 1024, 2688),
        "seed1-16k-s1.2": (16384, 64, 1024, 2688),
        "seed1-2k-s0": (2048, 64, 1024, 2688),
        "olmo-1k": (1024, 16, 4096, 4096),
        "olmo-8k": (8192, 16, 4096, 4096),
        "olmo-64k": (65536, 16, 4096, 4096),
        "dsv3-32k": (32768, 8, 7168, 4096),
        "qwen3-up-64k": (65536, 128, 2048, 1536),
        "decode-256": (256, 128, 2048, 1536),
    }


def test_cases_from_sizes():
    case = case_of("rows=4096:groups=32:k=64:n=128:skew=1.2:spare=100")
    assert (case.rows, case.num_groups, case.k, case.n, case.spare_rows) == (4096, 32, 64, 128, 100)
    assert case_of("sizes=4/0/17:k=8:n=16").group_sizes == (4, 0, 17)
    for wrong in ("olmo", "rows=4:k=8:n=8", "sizes=0/0:k=8:n=8", "sizes=4:k=8:n=8:m=3"):
        with pytest.raises(InvalidProblemError, match="case: expected one of"):
            case_of(wrong)
    with pytest.raises(InvalidProblemError, match="form: expected"):
        passes_of(["fprop", "backward"])

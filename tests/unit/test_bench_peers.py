"""Adapters of the peers, on torch's CPU tensors: right results, padding, reasons for absence.

Libraries that need a GPU are replaced by a few lines of torch with the same interface, so that what
is tested is what the adapter hands over and takes back.
"""

import math
import sys
from types import ModuleType

import pytest

from gemmjit.bench import cupy_backend, torch_backend
from gemmjit.bench.cases import Case, Workload
from gemmjit.bench.entrant import enter, verify_all
from gemmjit.bench.inputs import Inputs
from gemmjit.bench.peers import PEERS, Contender, Peer, Prepared, peers_of, register
from gemmjit.bench.peers.padded_bmm import capacity_of
from gemmjit.bench.setup import choose_backend
from gemmjit.bench.simulated import SimulatedBackend
from gemmjit.cuda.driver import is_available
from gemmjit.dtypes import F16
from gemmjit.errors import DriverNotFoundError, InvalidProblemError

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _reference(monkeypatch):
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")  # the emulator is tested elsewhere


FORMS = ("fprop", "dgrad", "wgrad")
RAGGED = Case("ragged", (5, 0, 190, 8), 64, 48)
NEARLY_EVEN = Case("nearly even", (30, 32, 36, 30), 64, 48)


class TorchCpu(SimulatedBackend):
    """The simulated clock with torch's tensors in host memory."""

    framework = "torch"

    def empty(self, shape, dtype):
        return torch.full(shape, 77.0, dtype=getattr(torch, dtype.name))

    def draw(self, array, scale, seed):
        array.normal_(0.0, scale, generator=torch.Generator().manual_seed(seed))

    def upload_ends(self, ends):
        return torch.tensor(list(ends), dtype=torch.int32)

    def fill(self, array, value):
        array.fill_(value)

    def upcast(self, array):
        return array.to(torch.float64)

    def sample(self, array, count):
        where = torch.randint(array.numel(), (count,), generator=torch.Generator().manual_seed(0))
        return array.reshape(-1)[where].double().tolist()

    def swap_last(self, array):
        return array.transpose(-1, -2)

    def replay(self, graph):
        for call, output in zip(graph.handle, graph.outputs, strict=True):
            result = call()
            if result is not output:
                output.copy_(result)


def verify(peer, case, form):
    backend = TorchCpu()
    work = Workload(case, form)
    contenders = PEERS[peer].contenders(work, backend)
    inputs = Inputs(backend, work, copies=2, seed=1)
    entrants, rejected = enter(backend, inputs, contenders, graph_seconds=5e-4)
    good, bad = verify_all(backend, entrants, seed=2)
    return {e.name: e.check for e in good}, [r.reason for r in rejected + bad]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", [RAGGED, NEARLY_EVEN], ids=lambda case: case.name)
def test_the_loop_is_right_for_every_group_size(form, case):
    good, bad = verify("cublas", case, form)
    assert not bad
    assert list(good) == ["cublas"]


@pytest.mark.parametrize("form", FORMS)
def test_the_padded_batch_is_right_and_counts_no_padding(form):
    good, bad = verify("padded", NEARLY_EVEN, form)
    assert not bad
    assert list(good) == ["padded"]
    assert capacity_of(NEARLY_EVEN) == math.ceil(1.25 * 128 / 4) == 40
    # 160 rows are multiplied, 128 count.
    assert Workload(NEARLY_EVEN, form).flops == 2 * 128 * 64 * 48


def test_a_routing_that_exceeds_the_capacity_is_not_measured_padded():
    assert not PEERS["padded"].contenders(Workload(RAGGED, "fprop"), TorchCpu())


@pytest.mark.parametrize("form", FORMS)
def test_gemmjit_is_right_on_torch_tensors(form):
    good, bad = verify("gemmjit", RAGGED, form)
    assert not bad
    assert list(good) == (["gemmjit nn"] if form == "wgrad" else ["gemmjit nn", "gemmjit nt"])


def fake_grouped_mm(a, b, *, offs):
    ends = offs.tolist()
    starts = [0, *ends[:-1]]
    if b.dim() == 3:
        out = torch.zeros(a.shape[0], b.shape[2], dtype=a.dtype)
        for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
            out[start:end] = a[start:end] @ b[group]
        return out
    return torch.stack([a[:, s:e] @ b[s:e] for s, e in zip(starts, ends, strict=True)])


@pytest.mark.parametrize("form", FORMS)
def test_torch_gets_both_layouts_of_the_same_shape(form, monkeypatch):
    strides = []

    def spy(a, b, *, offs):
        strides.append((tuple(b.shape), b.stride()[-1]))
        return fake_grouped_mm(a, b, offs=offs)

    monkeypatch.setattr(torch.nn.functional, "grouped_mm", spy, raising=False)
    good, bad = verify("torch", RAGGED, form)
    assert not bad
    if form == "wgrad":
        assert list(good) == ["torch nn"]
        return
    assert list(good) == ["torch nn", "torch nt"]
    shapes = {shape for shape, _ in strides}
    assert shapes == {(4, 64, 48) if form == "fprop" else (4, 48, 64)}
    assert {stride for _, stride in strides} == {1, 48 if form == "dgrad" else 64}


def fake_deep_gemm(calls):
    module = ModuleType("deep_gemm")

    def grouped(layout):
        def run(a, b, d, indices):
            assert a.shape[0] % 128 == 0
            assert indices.dtype == torch.int32
            calls.append((a.shape[0], b.is_contiguous()))
            for group in range(b.shape[0]):
                rows = indices == group
                weights = b[group].T if layout == "nt" else b[group]
                d[rows] = a[rows] @ weights

        return run

    def k_grouped(a, b, d, sizes, sizes_on_device, c):
        assert all(size % 128 == 0 for size in sizes)
        assert sizes_on_device.tolist() == sizes
        assert c is d
        start = 0
        for group, size in enumerate(sizes):
            rows = slice(start, start + size)
            start += size
            d[group] += a[rows].T.float() @ b[rows].float()

    module.m_grouped_bf16_gemm_nt_contiguous = grouped("nt")
    module.m_grouped_bf16_gemm_nn_contiguous = grouped("nn")
    module.k_grouped_bf16_gemm_tn_contiguous = k_grouped
    return module


@pytest.mark.parametrize("form", FORMS)
def test_deepgemm_gets_padded_groups_and_gives_true_rows(form, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "deep_gemm", fake_deep_gemm(calls))
    good, bad = verify("deepgemm", RAGGED, form)
    assert not bad
    assert list(good) == (["deepgemm"] if form == "wgrad" else ["deepgemm nt", "deepgemm nn"])
    if form != "wgrad":
        assert set(calls) == {(128 + 256 + 128, True)}


def test_deepgemm_has_no_float16():
    assert not PEERS["deepgemm"].contenders(Workload(RAGGED, "fprop", F16), TorchCpu())


@pytest.mark.parametrize("form", FORMS)
def test_quack_gets_offsets_from_zero(form, monkeypatch):
    module = ModuleType("quack.gemm_interface")
    seen = []

    def gemm(a, b, out=None, cu_seqlens_m=None, cu_seqlens_k=None):
        offsets = cu_seqlens_k if form == "wgrad" else cu_seqlens_m
        seen.append(offsets.tolist())
        out.copy_(fake_grouped_mm(a, b, offs=offsets[1:]))

    module.gemm = gemm
    monkeypatch.setitem(sys.modules, "quack", ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", module)
    good, bad = verify("quack", RAGGED, form)
    assert not bad
    assert len(good) == (1 if form == "wgrad" else 2)
    assert seen[0] == [0, 5, 5, 195, 203]


def test_a_missing_peer_says_why():
    on_numpy, on_torch = SimulatedBackend(), TorchCpu()
    for name in ("torch", "cublas", "padded", "deepgemm", "quack"):
        assert "torch tensors" in PEERS[name].available(on_numpy)
    if "deep_gemm" not in sys.modules:
        assert PEERS["deepgemm"].available(on_torch) == "module deep_gemm is not installed"
    assert PEERS["gemmjit"].available(on_numpy) is None
    assert PEERS["cublas"].available(on_torch) is None


def test_peers_by_name():
    assert [p.name for p in peers_of(["torch", "gemmjit", "torch"])] == ["torch", "gemmjit"]
    assert [p.name for p in peers_of(["bmm", "padded"])] == ["padded"]
    with pytest.raises(InvalidProblemError, match="vs: expected some of gemmjit, torch"):
        peers_of(["cutlass"])


def test_a_peer_of_ones_own_can_be_registered(monkeypatch):
    monkeypatch.setattr("gemmjit.bench.peers.registry.PEERS", dict(PEERS))

    class Mine(Peer):
        name = "mine"
        title = "a plug-in"

        def available(self, backend):
            return None

        def contenders(self, workload, backend):
            return [Contender("mine", self.name, lambda operands: Prepared(lambda: None))]

    register(Mine())
    (found,) = peers_of(["mine"])
    assert found.contenders(Workload(RAGGED, "fprop"), TorchCpu())[0].name == "mine"


@pytest.mark.skipif(is_available(), reason="there is a GPU")
def test_without_a_gpu_the_error_says_so():
    for name in ("auto", "torch", "cupy"):
        with pytest.raises(DriverNotFoundError, match="driver"):
            choose_backend(name)
    assert torch_backend.missing() is not None
    assert cupy_backend.missing() is not None


def test_backends_by_name():
    assert choose_backend("simulated").facts.simulated
    with pytest.raises(InvalidProblemError, match="backend: expected one of"):
        choose_backend("jax")

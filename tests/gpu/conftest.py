"""Fixtures of the GPU tests. Every test here is marked gpu, and skipped with the reason printed."""

from __future__ import annotations

import pytest

from gemmjit.arch import targets_for
from gemmjit.constraints import violations
from gemmjit.kernels import KERNELS, Variant


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test below this folder."""
    for item in items:
        if "/tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def _config_runs_here(request: pytest.FixtureRequest) -> None:
    """Skip a test whose parameter `config` names a kernel that this GPU has not."""
    given = getattr(request.node, "callspec", None)
    name = str(given.params.get("config")).partition("-")[0] if given else ""
    if name not in KERNELS:
        return
    from gemmjit.cuda.device import device

    kernel, arch = KERNELS[name], device(0).arch
    targets = targets_for(arch, kernel.accelerated)
    if not targets or violations(kernel, kernel.default_config, Variant(), targets[0]):
        pytest.skip(f"{name} does not run on {arch}")


@pytest.fixture(scope="session")
def torch_maker():
    """torch on the GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(f"this torch ({torch.__version__}) sees no GPU")
    from makers import TorchMaker

    return TorchMaker("cuda")


@pytest.fixture(scope="session")
def torch(torch_maker):
    """The torch module, with a GPU behind it."""
    return torch_maker.torch


@pytest.fixture(scope="session")
def cupy_maker():
    """CuPy on the GPU."""
    pytest.importorskip("cupy")
    from makers import CupyMaker

    return CupyMaker()


@pytest.fixture(scope="session")
def cupy(cupy_maker):
    """The cupy module, with a GPU behind it."""
    return cupy_maker.cupy


@pytest.fixture(params=["torch", "cupy"])
def maker(request):
    """Both frameworks in turn."""
    return request.getfixturevalue(f"{request.param}_maker")

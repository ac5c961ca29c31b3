"""Fixtures of the GPU tests. Every test here is marked gpu, and skipped with the reason printed."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test below this folder."""
    for item in items:
        if "/tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)


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

"""A wheel that carries kernels, built as the documentation says, is a layer that is only read."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import gemmjit
from gemmjit import build, cli

CHECKOUT = Path(gemmjit.__file__).parents[1]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "prewarm.md"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("build") is None or importlib.util.find_spec("hatchling") is None,
    reason="needs the packages build and hatchling",
)

PROGRAM = """
import numpy as np
import gemmjit
from gemmjit.cache import stats
x = np.arange(5 * 8, dtype=np.float32).reshape(5, 8) % 7
w = np.arange(2 * 8 * 4, dtype=np.float32).reshape(2, 8, 4) % 5
y = gemmjit.grouped_mm(x, w, offs=[3, 5], config="k0")
assert np.array_equal(y, np.concatenate([x[:3] @ w[0], x[3:] @ w[1]]))
print(stats().hits, stats().misses, stats().compiles)
"""


def block(language: str, start: str) -> str:
    """Return a code block of the page by its first words."""
    text = re.sub(r"^  ", "", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (found,) = re.findall(rf"^```{language}\n({re.escape(start)}.*?)^```$", text, re.M | re.S)
    return found


def run(*argv: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GEMMJIT_")}
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder into which pip has installed the wheel."""
    source = tmp_path_factory.mktemp("wheel")
    package = source / "my_model_kernels"
    package.mkdir()
    (source / "pyproject.toml").write_text(block("toml", "[build-system]"))
    (package / "__init__.py").write_text(block("python", "from pathlib import Path\n\npath"))
    variant = '{"in_dtype":"float32","out_dtype":"float32","schedule":"list"}'
    argv = ("prewarm", "--kernel", "k0", "--arch", "sm_90a", "--variant", variant)
    build.clear_memory()
    assert cli.main([*argv, "--cache-dir", str(package / "kernels")]) == 0
    done = run("-m", "build", "--wheel", "--no-isolation", str(source))
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (source / "dist").glob("*.whl")
    assert wheel.name in block("sh", "gemmjit prewarm --shapes model.toml --cache-dir my_")
    target = tmp_path_factory.mktemp("installed")
    options = ("--no-index", "--no-deps", "--no-compile", "--quiet", "--target", str(target))
    done = run("-m", "pip", "install", *options, str(wheel))
    assert done.returncode == 0, done.stderr
    return target


def named(place: Path) -> str:
    """Return what the command of the page prints for GEMMJIT_CACHE_PATH."""
    program = re.search(r'GEMMJIT_CACHE_PATH=\$\(python -c "([^"]+)"\)', PAGE.read_text())
    assert program is not None
    done = run("-c", program[1], PYTHONPATH=str(place))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def call(place: Path, tmp_path: Path) -> subprocess.CompletedProcess:
    """Run the program where nothing may be compiled and the user has no kernels."""
    return run(
        "-c",
        PROGRAM,
        cwd=tmp_path,
        PYTHONPATH=str(CHECKOUT),
        GEMMJIT_CACHE_PATH=named(place),
        GEMMJIT_CACHE_DIR=str(tmp_path / "none"),
        GEMMJIT_DISABLE_JIT="1",
        GEMMJIT_EXECUTOR="emulator",
    )


def contents(place: Path) -> dict[str, tuple[int, bytes]]:
    found = (path for path in sorted(place.rglob("*")) if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def test_a_wheel_serves_where_nothing_may_be_compiled(installed, tmp_path):
    before = contents(installed / "my_model_kernels" / "kernels")
    assert len([name for name in before if name.endswith(".cubin")]) == 1
    assert len([name for name in before if "/memos/" in name]) == 1
    done = call(installed, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "0", "0"]
    assert contents(installed / "my_model_kernels" / "kernels") == before
    assert not (tmp_path / "none").exists()


def test_pip_leaves_permissions_that_are_accepted(installed):
    kernels = installed / "my_model_kernels" / "kernels"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (kernels, *kernels.rglob("*"))]
    assert not any(mode & stat.S_IWOTH for mode in modes)
    assert not any(".locks" in path.parts or ".tmp" in path.parts for path in kernels.rglob("*"))
    assert cli.main(["cache", "verify", "--cache-dir", str(kernels)]) == 0


def test_a_wheel_that_others_can_write_is_named_with_the_reason(installed, tmp_path):
    kernels = installed / "my_model_kernels" / "kernels"
    mode = stat.S_IMODE(kernels.stat().st_mode)
    kernels.chmod(0o777)
    try:
        done = call(installed, tmp_path)
    finally:
        kernels.chmod(mode)
    assert done.returncode != 0
    assert f"{kernels} (refused, everybody can write to it)" in done.stderr
    assert "MissingKernelError" in done.stderr
    assert "gemmjit prewarm --arch sm_90a --kernel k0" in done.stderr

"""What all tests share: their own cache, a clean environment, GPU tests that say why they skip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # cases, makers, references, contract_*

pytest.register_assert_rewrite("cases", "integer_oracles", "makers", "references")
for module in HERE.glob("contract_*.py"):
    pytest.register_assert_rewrite(module.stem)


try:
    from hypothesis import settings
except ImportError:  # a GPU machine may lack it; no GPU test needs it
    pass
else:
    settings.register_profile("gemmjit", deadline=None, derandomize=True, print_blob=False)
    settings.load_profile("gemmjit")


@cache
def reason_without_gpu() -> str | None:
    """Return why no GPU can be used, or None if one can."""
    from gemmjit.cuda.driver import check, driver
    from gemmjit.errors import GemmjitError

    try:
        count = int(check(driver().cuDeviceGetCount(), "cuDeviceGetCount"))
    except GemmjitError as error:
        return str(error)
    return None if count else "the driver sees no CUDA device"


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a cache of its own, and no settings of the person who starts it."""
    for name in [n for n in os.environ if n.startswith("GEMMJIT_")]:
        del os.environ[name]
    # Workers of pytest-xdist inherit the controller's, so that a kernel is compiled once a run.
    inherited = os.environ.get("PYTEST_GEMMJIT_CACHE")
    if inherited is None:
        inherited = os.environ["PYTEST_GEMMJIT_CACHE"] = tempfile.mkdtemp(prefix="gemmjit-tests-")
        config.add_cleanup(lambda: shutil.rmtree(inherited, ignore_errors=True))
        config.add_cleanup(lambda: os.environ.pop("PYTEST_GEMMJIT_CACHE", None))
    os.environ["GEMMJIT_CACHE_DIR"] = inherited
    # JAX would take three quarters of a GPU's memory for itself when it first looks at it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # A pre-warmed directory, and the proof that it is complete: see docs/how-to/prewarm.md.
    for name in ("CACHE_PATH", "DISABLE_JIT"):
        if value := os.environ.get(f"PYTEST_GEMMJIT_{name}"):
            os.environ[f"GEMMJIT_{name}"] = value


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip GPU tests where there is no GPU, and slow tests unless they are asked for."""
    if item.get_closest_marker("gpu") and (reason := reason_without_gpu()):
        pytest.skip(reason)
    if item.get_closest_marker("slow") and "slow" not in (item.config.option.markexpr or ""):
        pytest.skip("long form of a sampled test: pytest -m slow")
    if item.get_closest_marker("fuzz") and "fuzz" not in (item.config.option.markexpr or ""):
        pytest.skip("100,000 drawn problems: pytest -m fuzz")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the GPU tests of this run did, and on what."""
    counts = {
        outcome: sum(
            "gpu" in getattr(report, "keywords", ())  # a module that was skipped has none
            and (report.when == "call" or outcome != "passed")
            for report in terminalreporter.getreports(outcome)
        )
        for outcome in ("passed", "failed", "error", "skipped")
    }
    if not any(counts.values()):
        return
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    terminalreporter.write_sep("-", "gpu tests")
    terminalreporter.write_line(f"gpu: {text}; {describe_gpu()}; commit {commit()}")


def describe_gpu() -> str:
    """Return GPU and driver in words."""
    if reason := reason_without_gpu():
        return f"no GPU ({reason})"
    from gemmjit.cuda.device import device, num_devices
    from gemmjit.cuda.driver import driver_version

    names = ", ".join(sorted({device(i).name for i in range(num_devices())}))
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
        release = done.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        release = "release unknown"
    return f"{num_devices()} x {names}; driver {release} (CUDA {driver_version()})"


def commit() -> str:
    """Return the commit under test: from git, else from the variable COMMIT."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=HERE, capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout.strip()

    try:
        dirty = "+changes" if git("status", "--porcelain", "--untracked-files=no") else ""
        return git("rev-parse", "--short", "HEAD") + dirty
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("COMMIT", "unknown (no git here)")

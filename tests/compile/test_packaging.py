"""Wheel and sdist carry the templates, and what is installed compiles from anywhere (BR-137)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("build") is None or importlib.util.find_spec("hatchling") is None,
        reason="needs the packages build and hatchling",
    ),
    pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs a checkout"),
]

PROGRAM = """
import sys
import gemmjit
from gemmjit.arch import Arch
from gemmjit.build import build
from gemmjit.kernels import KERNELS, KernelSpec, Variant
from gemmjit.templating import templates_root
kernel = KERNELS['k0']
spec = KernelSpec(kernel, kernel.shipped_configs()[0], Variant(), Arch.parse('sm_90a'))
print(gemmjit.__file__)
print(templates_root())
print(build(spec).registers)
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> tuple[Path, Path]:
    """The sdist of the checkout, and the wheel built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def templates_of_checkout() -> set[str]:
    folder = ROOT / "templates"
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def run(place: Path, tmp_path: Path) -> list[str]:
    """Run the program with the package in a place, from a directory that is none of its own."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "templates" / "kernels").mkdir(parents=True)  # a stranger's, not to be taken
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GEMMJIT_")}
    environment |= {"PYTHONPATH": str(place), "GEMMJIT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_wheel_and_sdist_carry_every_template(archives):
    sdist, wheel = archives
    wanted = templates_of_checkout()
    assert len(wanted) > 5
    names = zipfile.ZipFile(wheel).namelist()
    prefix = "gemmjit/_templates/"
    assert {n.removeprefix(prefix) for n in names if n.startswith(prefix)} == wanted
    assert "gemmjit/py.typed" in names
    with tarfile.open(sdist) as archive:
        inside = [name.split("/", 1)[1] for name in archive.getnames() if "/" in name]
    assert {n.removeprefix("templates/") for n in inside if n.startswith("templates/")} >= wanted


def test_an_installed_wheel_compiles_from_anywhere(archives, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(archives[1]).extractall(site)
    package, templates, registers = run(site, tmp_path)
    assert Path(package).is_relative_to(site)
    assert templates == str(site / "gemmjit" / "_templates")
    assert int(registers) > 30


def test_a_read_only_installation_compiles(archives, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(archives[1]).extractall(site)
    folders = [site, *(path for path in site.rglob("*") if path.is_dir())]
    before = sorted(site.rglob("*"))
    for folder in folders:
        folder.chmod(0o555)
    try:
        run(site, tmp_path)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert [p for p in sorted(site.rglob("*")) if "__pycache__" not in p.parts] == before


def test_a_wheel_that_stays_a_zip_file_compiles(archives, tmp_path):
    package, templates, registers = run(archives[1], tmp_path)
    assert str(archives[1]) in package
    assert templates.rstrip("/").endswith("gemmjit/_templates")
    assert int(registers) > 30


def test_a_checkout_uses_its_live_templates(tmp_path):
    package, templates, _ = run(ROOT, tmp_path)
    assert package == str(ROOT / "gemmjit" / "__init__.py")
    assert templates == str(ROOT / "templates")

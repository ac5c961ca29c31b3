"""What is shipped: wheel, sdist and editable installs work outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted(
    path.relative_to(CHECKOUT / "templates").as_posix()
    for path in (CHECKOUT / "templates").rglob("*")
    if path.suffix in (".cuh", ".j2")
)

#: Run by an installation, far from the checkout.
PROBE = """
import json, sys
import gemmjit
from gemmjit.kernels import KERNELS
from gemmjit.templating import templates_root

def names(place, below=""):
    for item in place.iterdir():
        if item.is_dir():
            yield from names(item, below + item.name + "/")
        elif item.name.endswith((".cuh", ".j2")):
            yield below + item.name

print(json.dumps({
    "file": gemmjit.__file__,
    "root": str(templates_root()),
    "templates": sorted(names(templates_root())),
    "rendered": {name: len(gemmjit.render(name)) for name in KERNELS},
}))
"""


def python(interpreter: Path | str, *argv: str, where: Path, **environment: str) -> str:
    """Run an interpreter outside the checkout, with nothing of it on its path."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV") and not name.startswith("GEMM")
    }
    done = subprocess.run(
        [str(interpreter), *argv],
        cwd=where,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The sdist of the checkout, and the wheel built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    argv = ("-m", "build", "--no-isolation", "--outdir", str(out), str(CHECKOUT))
    python(sys.executable, *argv, where=out)
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def environment_with(tmp_path: Path, *what: str) -> Path:
    """Return the interpreter of a new environment that has gemmjit, and our dependencies."""
    home = tmp_path / "env"
    venv.create(home, with_pip=False)
    interpreter = home / "bin" / "python"
    (site,) = home.glob("lib/python*/site-packages")
    # A path in a .pth file does not bring the .pth files there with it: our own editable install
    # stays out of sight.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = ("-m", "pip", "--python", str(interpreter), "install", "--quiet", "--no-deps")
    options = ("--no-index", "--no-build-isolation", "--ignore-installed")
    python(sys.executable, *pip, *options, *what, where=tmp_path)
    return interpreter


def probe(interpreter: Path | str, where: Path, **environment: str) -> dict:
    import json

    facts = json.loads(python(interpreter, "-c", PROBE, where=where, **environment))
    assert facts["templates"] == TEMPLATES
    assert all(length > 5000 for length in facts["rendered"].values())
    return facts


@pytest.mark.parametrize("kind", ["wheel", "sdist", "editable"])
def test_an_installation_finds_its_templates(kind, built, tmp_path):
    what = ("--editable", str(CHECKOUT)) if kind == "editable" else (str(built[kind]),)
    interpreter = environment_with(tmp_path, *what)
    away = tmp_path / "elsewhere"
    away.mkdir()
    # Directories of these names, here and beside the packages, belong to somebody else.
    (away / "templates").mkdir()
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "templates").mkdir()
    facts = probe(interpreter, away)
    home = CHECKOUT if kind == "editable" else tmp_path / "env"
    assert Path(facts["file"]).is_relative_to(home)
    assert Path(facts["root"]).is_relative_to(home)
    assert Path(facts["root"]).name == ("templates" if kind == "editable" else "_templates")

    script = interpreter.with_name("gemmjit")
    assert python(script, "--version", where=away) == "gemmjit 0.1.0\n"
    assert "mma.sync" in python(script, "inspect", "k1", "--source", where=away)


def test_an_editable_installation_sees_edits(tmp_path):
    """The template that is rendered is the one of the checkout, not a copy of it."""
    interpreter = environment_with(tmp_path, "--editable", str(CHECKOUT))
    code = "import gemmjit.templates as t; print(t.templates_root())"
    assert python(interpreter, "-c", code, where=tmp_path).strip() == str(CHECKOUT / "templates")


def test_a_zipped_wheel_can_be_imported(built, tmp_path):
    code = f"import sys; sys.path.insert(0, {str(built['wheel'])!r})\n" + PROBE
    import json

    facts = json.loads(python(sys.executable, "-c", code, where=tmp_path))
    assert facts["file"].startswith(str(built["wheel"]))
    assert facts["root"].startswith(str(built["wheel"]))
    assert facts["templates"] == TEMPLATES


def test_the_wheel_holds_the_package_and_its_templates(built):
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = wheel.namelist()
        for name in TEMPLATES:
            shipped = wheel.read(f"gemmjit/_templates/{name}")
            assert shipped == (CHECKOUT / "templates" / name).read_bytes()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        told = wheel.read(metadata).decode()
    assert "gemmjit/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    top = {name.split("/")[0] for name in names}
    assert top == {"gemmjit", "gemmjit-0.1.0.dist-info"}
    assert "License-Expression: Apache-2.0" in told
    assert "Requires-Python: >=3.11" in told


def test_the_sdist_holds_what_its_readme_speaks_of(built):
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = ("README.md", "LICENSE", "Makefile", "CONTRIBUTING.md", "pyproject.toml")
    assert set(wanted) <= names
    for folder in ("gemmjit/", "templates/", "tests/unit/", "examples/", "docs/reference/"):
        assert any(name.startswith(folder) for name in names), folder


def test_doctor_knows_the_dependencies_of_the_package():
    import tomllib

    from gemmjit.cli.environment import REQUIRED

    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert sorted(name + wanted for name, wanted, _ in REQUIRED) == sorted(project["dependencies"])

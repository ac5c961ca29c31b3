"""The documentation as a site: it builds without a warning, and a wrong link is one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed")

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path):
    """The pages, to be changed."""
    for folder in ("docs", "templates"):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "mkdocs.yml"):
        shutil.copy(CHECKOUT / name, tmp_path)
    (tmp_path / "examples").mkdir()
    return tmp_path


def build(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(root / "site")]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_the_site_builds_and_its_links_lead_across_folders(copy):
    done = build(copy)
    assert done.returncode == 0, done.stderr
    front = (copy / "site" / "project" / "index.html").read_text()
    assert 'href="../how-to/torch/"' in front
    assert 'href="templates/"' in front
    contract = (copy / "site" / "explanation" / "contract" / "index.html").read_text()
    assert 'href="../../project/#the-contract"' in contract


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[x](no/such.md)", "no/such.md"),
        ("[x](tune.md#no-such-anchor)", "no-such-anchor"),
        ("[x](../../README.md#no-such-anchor)", "no-such-anchor"),
        ("[x](/tune.md)", "absolute"),
    ],
)
def test_a_wrong_link_is_an_error(copy, text, told):
    with (copy / "docs" / "how-to" / "cupy.md").open("a") as page:
        page.write(f"\n{text}\n")
    done = build(copy)
    assert done.returncode != 0
    assert told in done.stderr


def test_a_page_that_is_not_in_the_navigation_is_an_error(copy):
    (copy / "docs" / "how-to" / "orphan.md").write_text("# Nobody finds it\n")
    done = build(copy)
    assert done.returncode != 0
    assert "orphan.md" in done.stderr

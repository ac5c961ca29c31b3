"""Templates: search order, overrides, and what their text may depend on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from gemmjit import templating
from gemmjit.errors import TemplateError
from gemmjit.templating import override, render


def test_edits_are_seen_at_once(folder):
    assert "int a;" in render(folder("m", "int a;"), {})
    assert "int b;" in render(folder("m", "int b;"), {})


def test_overrides_stack_and_end(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m").write_text(name)
    with override(tmp_path / "one"):
        with override(tmp_path / "two"):
            assert "two" in render("m", {})
        assert "one" in render("m", {})
    with pytest.raises(TemplateError):
        render("m", {})


def test_plain_call_holds_until_restored(tmp_path):
    (tmp_path / "m").write_text("here")
    standing = override(tmp_path)
    try:
        assert "here" in render("m", {})
    finally:
        standing.restore()
    assert templating.overlays() == ()


def test_override_stays_in_its_thread(tmp_path):
    seen = []
    for enter in (override(tmp_path).__enter__, lambda: override(tmp_path)):
        held = enter()
        worker = threading.Thread(target=lambda: seen.append(templating.overlays()))
        worker.start()
        worker.join()
        held.restore()
    assert seen == [(), ()]


def test_override_of_something_else_than_a_directory_is_an_error(tmp_path):
    with pytest.raises(TemplateError, match="expected a directory"):
        override(tmp_path / "none")


def test_template_path_variable_comes_after_overrides(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m").write_text(name)
    monkeypatch.setenv("GEMMJIT_TEMPLATE_PATH", f"{tmp_path / 'a'}{os.pathsep} ")
    assert templating.overlays() == (tmp_path / "a",)
    assert render("m", {}).endswith("a\n")
    with override(tmp_path / "b"):
        assert render("m", {}).endswith("b\n")


def test_template_path_that_is_no_directory_is_told_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("GEMMJIT_TEMPLATE_PATH", str(tmp_path / "typo"))
    for _ in range(2):
        assert templating.overlays() == (tmp_path / "typo",)
    assert [r.getMessage() for r in caplog.records] == [
        f"GEMMJIT_TEMPLATE_PATH: expected directories of templates; got {tmp_path / 'typo'}"
    ]


def test_br111_source_does_not_depend_on_the_process(tmp_path):
    (tmp_path / "m").write_text(
        "//% for k, v in table.items()\n${ k }=${ v }\n//% endfor\n${ x }\n"
    )
    (tmp_path / "other").write_text("${ y }")
    program = (
        "import sys\nfrom gemmjit.templating import override, render\n"
        "with override(sys.argv[1]):\n"
        "    if sys.argv[2] == 'busy':\n"
        "        for i in range(5): render('other', {'y': i})\n"
        "    sys.stdout.write(render('m', {'x': 1, 'table': {'b': 1, 'a': 2, 'c': 3}}))\n"
    )
    outputs = set()
    for seed, history in (("0", "busy"), ("1", "idle"), ("random", "busy")):
        outputs.add(
            subprocess.run(
                [sys.executable, "-c", program, str(tmp_path), history],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
            ).stdout
        )
    assert len(outputs) == 1


def test_br106_an_edit_of_one_character_changes_the_source_whatever_its_time(folder, tmp_path):
    before = render(folder("m", "int a = 1;"), {})
    times = os.stat(tmp_path / "m")
    after = render(folder("m", "int a = 2;"), {})
    os.utime(tmp_path / "m", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert render("m", {}) == after != before

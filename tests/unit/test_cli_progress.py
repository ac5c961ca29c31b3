"""The bar of long commands: redrawn on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest

from gemmjit.cli import progress as module
from gemmjit.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(monkeypatch, stream, total=3):
    monkeypatch.setattr(sys, "stderr", stream)
    with progress(total, "kernels") as step:
        for number in range(total):
            step(f"k{number} for sm_90a")
    return stream.getvalue()


def test_a_terminal_sees_one_line(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    text = run(monkeypatch, Terminal())
    assert "\n" not in text
    assert "[##########                    ] 1/3 kernels k0 for sm_90a" in text
    assert f"[{'#' * 30}] 3/3 kernels" in text
    assert text.endswith("\r\x1b[K")  # nothing is left of it


def test_a_terminal_with_rich(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", run(monkeypatch, Terminal()))
    assert "3/3 kernels" in text


def test_a_file_gets_a_line_at_the_end_and_every_ten_seconds(monkeypatch):
    assert run(monkeypatch, io.StringIO()) == "3/3 kernels\n"
    now = iter(range(0, 1000, 11))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(now)))
    assert run(monkeypatch, io.StringIO()) == "1/3 kernels\n2/3 kernels\n3/3 kernels\n"


def test_nothing_to_do_shows_nothing(monkeypatch):
    assert run(monkeypatch, io.StringIO(), total=0) == ""

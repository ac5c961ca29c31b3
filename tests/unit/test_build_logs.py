"""What build() logs."""

from __future__ import annotations

import logging
import shutil

import pytest
from tiny_kernel import Tiny, fresh_process, messages

from gemmjit.build import build, clear_memory

pytestmark = pytest.mark.usefixtures("place")


def test_one_line_for_a_compile_and_one_at_debug_for_a_hit(caplog):
    caplog.set_level(logging.DEBUG, "gemmjit")
    kernel = build(Tiny())
    (line,) = messages(caplog, logging.INFO)
    assert line.startswith("compiled tiny (tiny_times_2) for sm_90a in ")
    told = f" ms: {kernel.registers} registers, 0 bytes spilled; {Tiny().prewarm_command}"
    assert line.endswith(told)
    clear_memory()
    build(Tiny())
    assert len(messages(caplog, logging.INFO)) == 1
    (hit,) = (m for m in messages(caplog, logging.DEBUG) if "comes from the cache" in m)
    assert hit.endswith(f"; {Tiny().prewarm_command}")


def test_silent_unless_asked(place):
    assert fresh_process()[1] == ""
    assert fresh_process(GEMMJIT_LOG_LEVEL="info")[1] == ""
    told = fresh_process(GEMMJIT_LOG_LEVEL="debug")[1]
    assert told.count("comes from the cache") == 1
    shutil.rmtree(place / "cache")
    told = fresh_process(GEMMJIT_LOG_LEVEL="INFO")[1]
    assert told.count("\n") == 1
    assert "compiled tiny (tiny_times_2) for sm_90a" in told


def test_an_unknown_log_level_is_told(place):
    told = fresh_process(GEMMJIT_LOG_LEVEL="loud")[1]
    assert "GEMMJIT_LOG_LEVEL: expected one of debug, info, warning, error; got 'loud'" in told

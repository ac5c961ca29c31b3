"""The documentation of Blackwell's instructions says what the tests execute, and from where."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from blackwell_evidence import (
    KNOWN_GOOD,
    TRITON,
    WRITTEN_DOWN,
    canonical,
    executed,
    known_good,
    triton_record,
)

from gemmjit.emulator.dispatch import known_opcodes


def script():
    path = Path(__file__).resolve().parents[2] / "docs" / "instructions.py"
    spec = importlib.util.spec_from_file_location("instructions", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_tables_are_those_of_the_page():
    instructions = script()
    found = executed()
    assert instructions.written(instructions.BLACKWELL) == instructions.blackwell_table(found), (
        "run docs/instructions.py"
    )
    questions = instructions.written(instructions.QUESTIONS)
    assert questions == instructions.questions_table(), "run docs/instructions.py"
    # Everything that Blackwell adds is among what the tests execute.
    for opcode in known_opcodes():
        if opcode.startswith("tcgen05"):
            assert any(name.startswith(opcode) for name in found), opcode


def test_evidence_is_claimed_for_whole_names_only():
    assert known_good("tcgen05.mma.cta_group::1.kind::f16")
    assert not known_good("tcgen05.mma.cta_group::1.kind::f16.ashift")
    assert not known_good("tcgen05.mma.cta_group::1.kind::i8")
    assert not known_good("tcgen05.ld.sync.aligned.16x64b.x1.b32")
    for pattern, sources in KNOWN_GOOD:
        assert re.compile(pattern)
        assert sources


def test_triton_is_named_for_what_its_kernels_execute_alone():
    named = {name for name in executed() if TRITON in known_good(name)}
    aliases = {canonical(name) for name in triton_record()}
    assert named
    assert {canonical(name) for name in named} <= aliases
    assert canonical("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X") in aliases
    assert "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block32" not in aliases
    assert not any(TRITON in sources for _, sources in KNOWN_GOOD)  # these are by hand


def test_the_tests_that_compare_with_written_layouts_exist():
    for _, test in WRITTEN_DOWN:
        text = Path(__file__).with_name(f"{test}.py").read_text(encoding="utf-8")
        assert "CUTLASS's" in text

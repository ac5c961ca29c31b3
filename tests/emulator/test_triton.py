"""Kernels that Triton compiles, without a GPU, compute exactly here: another reading of the manual.

Their layouts, descriptors and synchronisation are Triton's own. ``make test-triton`` installs it
and runs them; elsewhere they are skipped without it (``pip install gemmjit[triton]``).
"""

from __future__ import annotations

import os

import numpy as np
import pytest

if not os.environ.get("REQUIRE_TRITON"):  # where it is set, a Triton that is missing is an error
    pytest.importorskip("triton", reason="Triton is not installed")

from blackwell_evidence import triton_record
from triton_programs import PROGRAMS, instructions

POLICIES = ["eager", "lazy", "random"]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_kernel_is_exact(name):
    program = PROGRAMS[name]
    for policy in POLICIES:
        got, report = program.run(policy)
        np.testing.assert_array_equal(got, program.exact)
        assert any(program.opcode in each for each in report.instructions)
        assert not any("undecided" in text for text in report.warnings)


def test_the_record_of_their_instructions():
    assert triton_record() == instructions(), "run tests/triton_programs.py"

"""A simulated device whose times are known, for tests of the tuner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmjit.bench.simulated import ClockModel, SimulatedBackend
from gemmjit.selection import records
from gemmjit.tuning import measure

GPU = "simulated device"
SMALL = "rows=64:groups=4:k=64:n=64"


@pytest.fixture(name="backend")
def tuned_backend(monkeypatch, tmp_path):
    """A device on which 64 x 128 tiles of k1 with block_k 32 are the fastest."""
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "reference")
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    records.forget()
    own = measure.own_contender

    def timed(name, *arguments, **keywords):
        contender = own(name, *arguments, **keywords)
        prepare = contender.prepare

        def prepared(operands):
            found = prepare(operands)

            def call():
                return found.call()

            call.simulated_seconds = 50e-6 if name == "k1 64x128x32_s2" else 60e-6
            return replace(found, call=call)

        return replace(contender, prepare=prepared)

    monkeypatch.setattr(measure, "own_contender", timed)
    yield SimulatedBackend(ClockModel(noise=0.001), l2_bytes=1 << 12)
    records.forget()

"""What is undecided: modes, readings, and that a kernel is told once."""

from __future__ import annotations

import pytest
from lane_programs import source
from tcgen05_products import Product
from tcgen05_programs import execute, program

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate, emulating
from gemmjit.emulator.assumptions import ASSUMPTIONS
from gemmjit.emulator.faults import Fault
from gemmjit.emulator.settings import current


def run(**options):
    memory = DeviceMemory()
    to = memory.allocate(128)
    launch = KernelLaunch(
        ptx=source("mov.u32 %d, 1;", [], [32]), entry="k", grid=(1,), block=(32,), args=[to],
        memory=memory,
    )  # fmt: skip
    return emulate([launch], **options)


@pytest.mark.parametrize(("options", "reason"), [
    ({"undecided": "ignore"}, "undecided: expected one of warn, error, accept"),
    ({"readings": {"scales": "own"}}, "readings: expected names of"),
    ({"readings": {"scale_quadrant": "second"}}, "expected one of first, own; got 'second'"),
])  # fmt: skip
def test_unknown_choices_are_refused(options, reason):
    with pytest.raises(Fault, match=reason):
        run(**options)


def test_every_question_has_a_default_and_a_reason():
    for each in ASSUMPTIONS.values():
        assert each.question
        assert each.why
        assert len(set(each.readings)) == len(each.readings) >= 1
    run(readings={name: each.readings[-1] for name, each in ASSUMPTIONS.items()})


def warned(**options):
    """Two loads through addresses that name warp 0's lanes in every warp."""
    p = Product(n=32)
    load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%tm]; tcgen05.wait::ld.sync.aligned;"
    return execute(program(p.mma(), read=load * 2), p.smem, **options)[1].warnings


def test_a_kernel_is_told_once():
    (text,) = warned()
    assert "undecided (tmem_quadrant)" in text
    assert "PTX line" in text
    assert warned(undecided="accept") == []
    with pytest.raises(Fault, match="tmem_quadrant"):
        warned(undecided="error")


def test_the_kernels_of_the_project_may_depend_on_nothing_undecided():
    with emulating():
        settings = current()
    assert settings is not None
    assert (settings.undecided, settings.unfenced_tmem) == ("error", "error")
    assert settings.readings == {"ld_registers": "poison"}
    with emulating(undecided="warn", unfenced_tmem="warn", readings={}):
        settings = current()
    assert settings is not None
    assert (settings.undecided, settings.unfenced_tmem) == ("warn", "warn")
    assert settings.readings == {}

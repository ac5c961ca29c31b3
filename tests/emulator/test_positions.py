"""Positions in templates, for kernels whose PTX has none."""

from __future__ import annotations

import re

import numpy as np
import pytest
from compiling import compilations_of

import gemmjit
from gemmjit.build import clear_memory
from gemmjit.emulator import Trace, emulating
from gemmjit.emulator.faults import Deadlock
from gemmjit.emulator.positions import add_positions, located
from gemmjit.emulator.program import link
from gemmjit.kernels import KERNELS
from gemmjit.templating import templates_root

#: A line of PTX, and the position of a template.
POSITION = re.compile(r" at PTX line (\d+): (.*?)  \[mbarrier\.cuh:\d+ in mbarrier\.cuh:\d+\]")

HANDS_BACK = "if (lane == 0) mbarrier_arrive(empty_barrier(base + STAGE_BARRIERS, stages));"

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
PLAIN = (
    HEAD
    + """
.visible .entry k()
{
.reg .b32 %a;
mov.u32 %a, 1;
add.u32 %a, %a, 2;
add.u32 %a, %a, 2;
ret;
}
"""
)
LINED = (
    HEAD
    + """
.visible .entry k()
{
.reg .b32 %a;
.loc 1 11 1
mov.u32 %a, 1;
.loc 1 12 1
add.u32 %a, %a, 2;
.loc 2 13 1
add.u32 %a, %a, 2;
ret;
}
.file 1 "kernels/kernel.cu.j2"
.file 2 "core/part.cuh"
"""
)


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """The architecture of each compilation, in order; a cache of one's own, and no memory."""
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("GEMMJIT_EXECUTOR", "emulator")
    clear_memory()
    link.cache_clear()  # whose programs may have been given positions
    yield compilations_of(monkeypatch)
    clear_memory()


@pytest.fixture
def broken(tmp_path):
    """The folder of a k2 whose consumers do not hand their stages back."""
    name = "kernels/sm90_tma_mma_grouped_mm.cu.j2"
    text = templates_root().joinpath(name).read_text()
    assert HANDS_BACK in text
    path = tmp_path / "broken" / name
    path.parent.mkdir(parents=True)
    path.write_text(text.replace(HANDS_BACK, ";"))
    return path.parents[1]


def product(config="k1", **settings):
    """Run a kernel in the emulator and return the reports."""
    a, b = np.ones((40, 512), np.float16), np.ones((2, 512, 64), np.float16)
    with emulating(**settings) as reports:
        result = gemmjit.grouped_mm(a, b, offs=[30, 40], config=config)
    assert (result == 512).all()
    return reports


def fault(broken) -> str:
    with gemmjit.templates.override(broken), pytest.raises(Deadlock) as caught:
        product("k2")
    return str(caught.value)


def test_a_call_that_runs_through_compiles_once(runs):
    product()
    assert len(runs) == 1
    assert runs[0].startswith("sm_")


def test_a_fault_names_the_template_without_and_with_a_cache(runs, broken):
    first = fault(broken)
    assert POSITION.search(first), first
    assert [name.split("_")[0] for name in runs] == ["sm", "compute"]
    assert fault(broken) == first
    assert len(runs) == 2  # the program keeps them
    clear_memory()
    link.cache_clear()
    assert fault(broken) == first
    assert [name.split("_")[0] for name in runs[2:]] == ["compute"]


def test_a_fault_without_a_compiler_names_the_ptx(runs, broken, monkeypatch):
    told = fault(broken)
    clear_memory()
    link.cache_clear()
    del runs[:]
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    bare = fault(broken)
    assert "PTX line" in bare
    assert "  [" not in bare
    assert re.sub(r"  \[[^\]]*\]", "", told) == bare
    assert not runs


def test_a_timeline_names_the_template(runs, monkeypatch):
    trace = Trace()
    product(trace=trace)
    assert [name.split("_")[0] for name in runs] == ["sm", "compute"]
    names = {span.name for span in trace.spans if span.kind == "run"}
    assert any(re.match(r"sm80_mma_grouped_mm\.cu\.j2:\d+", name) for name in names)
    clear_memory()
    link.cache_clear()
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    bare = Trace()
    product(trace=bare)
    spans = {span.name for span in bare.spans if span.kind == "run"}
    assert all(name.startswith("PTX line ") for name in spans)
    assert len(bare.spans) == len(trace.spans)


def test_the_line_of_a_message_is_that_of_the_kernels_ptx(runs, broken, tmp_path):
    match = POSITION.search(fault(broken))
    (path,) = tmp_path.rglob("kernel.ptx")
    line = path.read_text().splitlines()[int(match[1]) - 1]
    assert match[2] in " ".join(line.split())


@pytest.mark.parametrize("name", KERNELS)
def test_lines_leave_the_instructions_of_a_kernel_as_they_are(name):
    kernel = gemmjit.compile(name, None, "sm_90a")
    program = link.__wrapped__(kernel.ptx, kernel.entry)
    assert not any(instruction.source for instruction in program.instructions)
    assert add_positions(program, kernel.ptx_with_lines)
    placed = sum(instruction.source is not None for instruction in program.instructions)
    assert placed > 0.9 * len(program.instructions)


def test_positions_go_to_the_same_instructions():
    program = link.__wrapped__(PLAIN, "k")
    assert program.describe(1) == "PTX line 9: add.u32 %a, %a, 2"
    assert add_positions(program, lambda: LINED)
    assert program.describe(1) == "PTX line 9: add.u32 %a, %a, 2  [kernel.cu.j2:12]"
    assert program.describe(2) == "PTX line 10: add.u32 %a, %a, 2  [part.cuh:13]"


def test_ptx_with_lines_is_asked_for_once():
    program = link.__wrapped__(PLAIN, "k")
    asked = []
    for _ in range(2):
        assert add_positions(program, lambda: asked.append(1) or LINED)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "other",
    [
        PLAIN,
        "no PTX at all",
        LINED.replace("add.u32 %a, %a, 2", "add.u32 %a, %a, 3", 1),
        LINED.replace("ret;", "ret; ret;"),
        LINED.replace(".entry k", ".entry other"),
    ],
)
def test_ptx_of_other_instructions_gives_no_positions(other):
    program = link.__wrapped__(PLAIN, "k")
    assert not add_positions(program, lambda: other)
    assert program.describe(1) == "PTX line 9: add.u32 %a, %a, 2"


def test_every_instruction_of_a_message_gets_its_position_once():
    program = link.__wrapped__(PLAIN, "k")
    first, end = program.describe(1), program.describe(len(program.instructions) - 1)
    assert end.endswith("ret (end of body)")
    messages = [f"a at {first}; b\n  at {first}", f"after {end}", "nothing of the kernel"]
    wanted = f"{first}  [kernel.cu.j2:12]"
    once = located(messages, program, lambda: LINED)
    assert once == [f"a at {wanted}; b\n  at {wanted}", messages[1], messages[2]]
    assert located(once, program, lambda: LINED) == once


def test_lines_are_not_asked_for_if_no_instruction_is_shown():
    program = link.__wrapped__(PLAIN, "k")
    assert located(["no position"], program, lambda: pytest.fail("asked")) == ["no position"]

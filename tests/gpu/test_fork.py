"""Forked processes on a GPU machine. CUDA does not survive a fork; what must hold is said here.

Each test is a program of its own: the test runner has used CUDA itself.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import multiprocessing, sys
import numpy as np
import gemmjit

context = multiprocessing.get_context("fork")
ENDS = [5, 5, 40]

def in_child(function):
    ours, theirs = context.Pipe()
    def body():
        try:
            theirs.send(function())
        except BaseException as error:
            theirs.send(f"raised {type(error).__name__}")
    process = context.Process(target=body)
    process.start()
    process.join(90)
    if process.is_alive():
        process.kill()
        return "hangs"
    return ours.recv() if ours.poll() else f"died with {process.exitcode}"

def on_gpu():
    import torch
    a = torch.ones(40, 64, device="cuda").bfloat16()
    b = torch.ones(3, 64, 48, device="cuda").bfloat16()
    offs = torch.tensor(ENDS, device="cuda", dtype=torch.int32)
    got = gemmjit.grouped_mm(a, b, offs=offs)
    return bool((got == 64).all().item())

def on_cpu():
    a, b = np.ones((40, 64), np.float16), np.ones((3, 64, 48), np.float16)
    return bool((gemmjit.grouped_mm(a, b, offs=ENDS) == 64).all())
"""


def run(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.fixture(autouse=True)
def _torch(torch_maker):
    """Skip where torch sees no GPU."""


def test_br089_children_of_a_process_that_has_only_imported_use_the_gpu():
    assert run("print(in_child(on_gpu)); print(in_child(on_gpu)); print(on_gpu())") == ["True"] * 3


def test_after_the_parent_used_the_gpu_its_children_compute_on_the_cpu():
    assert run("print(on_gpu()); print(in_child(on_cpu)); print(on_gpu())") == ["True"] * 3


def test_after_the_parent_used_the_gpu_a_child_that_tries_is_told_so():
    """No crash, no hang, no wrong result; and the parent goes on."""
    arrays = """
import torch
a = torch.ones(40, 64, device="cuda").bfloat16()
b = torch.ones(3, 64, 48, device="cuda").bfloat16()
offs = torch.tensor(ENDS, device="cuda", dtype=torch.int32)
out = torch.zeros(40, 48, device="cuda").bfloat16()
gemmjit.grouped_mm(a, b, offs=offs, out=out)
torch.cuda.synchronize()
print(in_child(lambda: gemmjit.grouped_mm(a, b, offs=offs, out=out) is not None))
gemmjit.grouped_mm(a, b, offs=offs, out=out)
print(bool((out == 64).all().item()))
"""
    told, parent = run(arrays)
    assert told.startswith("raised "), told
    assert parent == "True"

"""Programs that pre-warm."""

from __future__ import annotations

import os
import subprocess
import sys

import gemmjit

CHECKOUT = os.path.dirname(os.path.dirname(gemmjit.__file__))

SHAPES = """
targets = ["sm_80", "sm_90a"]

[[problems]]
n = 24
k = 32
dtype = "float32"
offsets = ["device", "host"]

[[kernels]]
kernel = "tile_list"
"""


def program(*argv: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GEMMJIT_")}
    return subprocess.run(
        [sys.executable, "-m", "gemmjit", *argv],
        env={**environment, "PYTHONPATH": CHECKOUT, **variables},
        capture_output=True,
        text=True,
        check=False,
    )

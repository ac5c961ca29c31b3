"""Operands of wgmma that tests share."""

from __future__ import annotations

import itertools

import numpy as np

from gemmjit.tensormap import Swizzle

PLAIN = (Swizzle.NONE, Swizzle.BYTES_32, Swizzle.BYTES_64, Swizzle.BYTES_128)
K_OF = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}


def accumulator_registers(name, matrices):
    """D (groups, 64, n) in registers, by the formula of the manual's figures."""
    groups, _, n = matrices.shape
    out = np.zeros((groups, 128, n // 4 if name == "f16" else n // 2), np.uint32)
    for thread, i in itertools.product(range(128), range(n // 2)):
        row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
        column = 8 * (i // 4) + 2 * (thread % 4) + i % 2
        value = matrices[:, row, column]
        if name == "f16":
            bits = value.astype(np.float16).view(np.uint16).astype(np.uint32)
            out[:, thread, i // 2] |= bits << np.uint32(16 * (i % 2))
        elif name == "s32":
            out[:, thread, i] = value.astype(np.int32).view(np.uint32)
        else:
            out[:, thread, i] = value.astype(np.float32).view(np.uint32)
    return out

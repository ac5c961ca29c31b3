"""TMA stores and reductions, as the emulator runs them."""

from __future__ import annotations

import numpy as np
import pytest
from tma_programs import (
    BASE,
    FILL,
    MATRIX,
    POLICIES,
    SMEM,
    STORE,
    program,
    run,
    store,
    tensor_bytes,
)

from gemmjit.emulator.faults import (
    RaceError,
)
from gemmjit.emulator.tma import store_box
from gemmjit.tensormap import ElementType, Swizzle, TensorMap

FILLED = np.stack([np.arange(512) + 1000 * i for i in range(4)], 1).astype(np.uint32)


def stored(tensor_map, tensor, coordinates):
    smem = np.zeros(BASE + SMEM, np.uint8)
    smem[BASE:] = FILLED.view(np.uint8).reshape(-1)
    box = store_box(tensor_map, 0, coordinates, BASE)
    out = tensor.copy()
    out[box.runs[:, None] + np.arange(box.run_bytes)] = box.read_shared(smem)
    return out


COMMIT = "cp.async.bulk.commit_group;\n"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("coordinates", [(0, 0), (64, 30), (96, 39)], ids=str)
def test_a_store(coordinates, policy):
    tensor = tensor_bytes(4)
    ptx = program(FILL + store() + COMMIT + "cp.async.bulk.wait_group 0;")
    _, after = run(ptx, MATRIX, tensor, coordinates, policy=policy)
    np.testing.assert_array_equal(after, stored(MATRIX, tensor, coordinates))


@pytest.mark.parametrize("policy", POLICIES)
def test_stores_pending_at_the_end_are_drained(policy):
    tensor = tensor_bytes(5)
    for tail in (COMMIT, "", COMMIT + "cp.async.bulk.wait_group.read 0;"):
        _, after = run(program(FILL + store() + tail), MATRIX, tensor, (0, 0), policy=policy)
        np.testing.assert_array_equal(after, stored(MATRIX, tensor, (0, 0)))


def test_a_source_reused_without_a_wait_is_a_race():
    reuse = "@%p0 st.shared.v4.b32 [%s], {%c0, %c0, %c0, %c0};\n"
    tensor = tensor_bytes(6)
    good = program(FILL + store() + COMMIT + "cp.async.bulk.wait_group.read 0;\n" + reuse)
    _, after = run(good, MATRIX, tensor, (0, 0), policy=("lazy", 0))
    np.testing.assert_array_equal(after, stored(MATRIX, tensor, (0, 0)))
    for wait in ("", "cp.async.bulk.wait_group.read 1;\n"):
        bad = program(FILL + store() + COMMIT + wait + reuse)
        with pytest.raises(RaceError, match="asynchronous operation reads it"):
            run(bad, MATRIX, tensor, (0, 0), policy=("lazy", 0))


@pytest.mark.parametrize("policy", POLICIES)
def test_reductions_add_to_memory(policy):
    matrix = np.arange(30 * 24, dtype=np.float32).reshape(30, 24)
    single = TensorMap(
        element_type=ElementType.FLOAT32, dims=(24, 30), strides=(96,), box=(32, 8),
        swizzle=Swizzle.BYTES_128,
    )  # fmt: skip
    add = STORE.replace("cp.", "cp.reduce.", 1).replace("shared::cta", "shared::cta.add")
    convert = FILL.replace("st.shared", "\n".join(
        f"cvt.rn.f32.u32 %v{i}, %v{i};" for i in range(4)) + "\nst.shared")  # fmt: skip
    ptx = program(convert + store(add) + store(add) + COMMIT + "cp.async.bulk.wait_group 0;")
    _, after = run(ptx, single, matrix.reshape(-1), (0, 24), policy=policy)
    values = FILLED.astype(np.float32).reshape(-1)
    expected = matrix.copy()
    for row in range(6):
        for column in range(24):
            chunk, within = divmod(column, 4)
            expected[24 + row, column] += 2 * values[row * 32 + (chunk ^ row % 8) * 4 + within]
    np.testing.assert_array_equal(after.view(np.float32).reshape(30, 24), expected)

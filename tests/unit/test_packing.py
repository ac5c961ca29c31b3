"""Kernel arguments as bytes, against ctypes and against the templates' own structs."""

from __future__ import annotations

import struct

import pytest
from structs import struct_of

from gemmjit.cuda.packing import PACKING_ALIGNMENT, pack
from gemmjit.dtypes import F32, F64, I32, I64
from gemmjit.errors import LaunchError
from gemmjit.plan import Pointer, PointerTable, Scalar, Struct, WorkspacePointer


def test_scalars_on_their_natural_alignment():
    packed = pack(
        [Struct((Scalar(I32, -5), Scalar(I64, 1 << 40), Scalar(F32, 1.5), Scalar(F64, 2)))]
    )
    assert packed.image == struct.pack("<i4xqf4xd", -5, 1 << 40, 1.5, 2)
    assert packed.starts == (0,)
    assert packed.slots == ()


def test_a_struct_is_padded_to_its_alignment():
    packed = pack([Struct((Pointer("a"), Scalar(I32, 7)))])
    assert packed.image == struct.pack("<qi4x", 0, 7)


def test_parameters_start_apart():
    packed = pack([Scalar(I32, 1), Pointer("mat_a"), Scalar(F64, 3.0)])
    assert packed.starts == (0, PACKING_ALIGNMENT, 2 * PACKING_ALIGNMENT)
    assert struct.unpack_from("<i", packed.image, packed.starts[0]) == (1,)
    assert struct.unpack_from("<d", packed.image, packed.starts[2]) == (3.0,)
    (slot,) = packed.slots
    assert (slot.offset, slot.name, slot.is_workspace) == (PACKING_ALIGNMENT, "mat_a", False)


def test_br082_an_absent_pointer_is_null():
    packed = pack([Pointer("bias")])
    assert packed.image == bytes(8)
    assert packed.slots[0].displacement == 0


def test_workspaces_keep_their_displacement():
    (slot,) = pack([WorkspacePointer("scratch", 256)]).slots
    assert (slot.name, slot.is_workspace, slot.displacement) == ("scratch", True, 256)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_numbers_that_do_not_fit_are_refused(value):
    with pytest.raises(struct.error):
        pack([Scalar(I32, value)])


def test_arguments_of_another_kind():
    with pytest.raises(LaunchError, match="PointerTable cannot be packed"):
        pack([PointerTable(("a", "b"))])


def test_no_arguments():
    assert pack([]).image == b""


def test_structs_of_the_templates_are_read():
    grouping = struct_of("Grouping", "core/grouping.cuh")
    assert next(name for name, _ in grouping._fields_) == "offs"
    arguments = struct_of("Arguments", "core/arguments.cuh.j2", "core/grouping.cuh")
    assert {"a", "b", "d", "grouping", "stride_am", "dim_n"} <= {n for n, _ in arguments._fields_}

"""The handler that XLA calls on CUDA, down to what the driver is given. The driver is fake."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from fake_gpu import OK, forget, install

from gemmjit.errors import LaunchError

jax = pytest.importorskip("jax", reason="jax is not installed")

from xla_frames import Frame  # noqa: E402

from gemmjit.integrations import jax_call, xla_ffi  # noqa: E402
from gemmjit.integrations.config_text import to_text  # noqa: E402
from gemmjit.kernels import kernel  # noqa: E402

ENDS = [3, 3, 40, 64]
STREAM = 0x5EED


@pytest.fixture
def fake():
    with pytest.MonkeyPatch.context() as patch:
        yield install(patch, num_devices=2)
    forget()


def aligned(shape, dtype=ml_dtypes.bfloat16, offset=0):
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 512, np.uint8)
    start = -raw.ctypes.data % 256 + offset
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def arrays(product="rows"):
    m, k, n, groups = 64, 64, 128, len(ENDS)
    x, w, dy = aligned((m, k)), aligned((groups, k, n)), aligned((m, n))
    ends = aligned((groups,), np.int32)
    ends[:] = ENDS
    return {
        "rows": ([x, w, ends], aligned((m, n))),
        "rows_transposed": ([dy, w, ends], aligned((m, k))),
        "groups": ([x, dy, ends], aligned((groups, k, n))),
    }[product]


@pytest.mark.parametrize("product", jax_call.PRODUCTS)
def test_kernels_go_to_the_stream_and_the_arrays_of_xla(fake, product):
    inputs, result = arrays(product)
    for _ in range(2):  # the second call finds what the first one made
        frame = Frame(inputs, result, {"product": product, "config": ""}, stream=STREAM, ordinal=1)
        assert frame.run(jax_call.on_cuda) == 0
        assert frame.errors == []
    first, second = fake.launches
    assert first == second
    assert (first.stream, first.device) == (STREAM, 1)
    # Nothing is copied: the kernel has the addresses that XLA gave.
    want = dict(zip(("mat_a", "mat_b", "offs"), (x.ctypes.data for x in inputs), strict=True))
    want["out"] = result.ctypes.data
    assert first.operands == want
    form = "_rk_" if product == "groups" else "_rm_"
    order = {"rows": "kn", "rows_transposed": "kk", "groups": "m"}[product]
    assert f"{form}bf16_{order}" in fake.entry_of(first)


def test_calls_after_each_other_do_not_mix_their_results(fake):
    inputs, result = arrays()
    other = aligned(result.shape)
    attributes = {"product": "rows", "config": ""}
    assert Frame(inputs, result, attributes).run(jax_call.on_cuda) == 0
    assert Frame(inputs, other, attributes, stream=STREAM).run(jax_call.on_cuda) == 0
    assert [seen.operands["out"] for seen in fake.launches] == [
        result.ctypes.data, other.ctypes.data
    ]  # fmt: skip
    assert [seen.stream for seen in fake.launches] == [0, STREAM]


def test_a_config_is_obeyed(fake):
    inputs, result = arrays()
    frame = Frame(inputs, result, {"product": "rows", "config": "k1"})
    assert frame.run(jax_call.on_cuda) == 0
    assert "_k1_" in fake.entry_of(fake.launches[0])


def test_workspaces_come_from_xla_and_go_back(fake):
    inputs, result = arrays()
    config = to_text(kernel("k1").config_type(schedule="compact"))
    frame = Frame(inputs, result, {"product": "rows", "config": config}, stream=STREAM)
    assert frame.run(jax_call.on_cuda) == 0, frame.errors
    assert frame.allocated >= 1
    assert frame.held == {}
    assert len(fake.launches) == 2  # one builds the list of tiles
    assert {seen.stream for seen in fake.launches} == {STREAM}
    refused = Frame(
        inputs, result, {"product": "rows", "config": config}, refuses="memory_allocate"
    )
    assert refused.run(jax_call.on_cuda) == 1
    assert "memory_allocate" in refused.errors[0][1]
    assert len(fake.launches) == 2


def test_an_error_of_xla_is_told(fake):
    inputs, result = arrays()
    frame = Frame(inputs, result, {"product": "rows", "config": ""}, refuses="stream_get")
    assert frame.run(jax_call.on_cuda) == 1
    ((code, text),) = frame.errors
    assert code == 3
    assert "stream_get: there is none left" in text
    assert fake.launches == []


def test_an_error_of_ours_is_told(fake):
    inputs, result = arrays()
    frame = Frame(inputs, result, {"product": "rows", "config": "k9"})
    assert frame.run(jax_call.on_cuda) == 1
    assert "InvalidConfigError" in frame.errors[0][1]
    assert fake.launches == []


def test_offsets_are_checked_where_that_is_asked_for(fake, monkeypatch):
    monkeypatch.setenv("GEMMJIT_CHECK", "1")
    waited = []
    fake.cuStreamSynchronize = lambda stream: (waited.append(stream), (OK,))[1]

    def copy(destination, source, nbytes):
        ctypes.memmove(destination, source, nbytes)
        return (OK,)

    fake.cuMemcpyDtoH = copy
    inputs, result = arrays()
    attributes = {"product": "rows", "config": ""}
    assert Frame(inputs, result, attributes, stream=STREAM).run(jax_call.on_cuda) == 0
    assert len(fake.launches) == 1
    inputs[2][1] = 1  # falls
    frame = Frame(inputs, result, attributes, stream=STREAM)
    assert frame.run(jax_call.on_cuda) == 1
    assert "never fall" in frame.errors[0][1]
    assert waited == [STREAM] * 2
    assert len(fake.launches) == 1


def test_an_older_interface_is_told_apart(fake):
    inputs, result = arrays()
    frame = Frame(inputs, result, {"product": "rows", "config": ""})
    frame._api.struct_size = xla_ffi._Api.device_ordinal_get.offset
    assert frame.run(jax_call.on_cuda) == 1
    assert "Install a newer jax" in frame.errors[0][1]


def test_other_stages_do_nothing(fake):
    inputs, result = arrays()
    frame = Frame(inputs, result, {"product": "rows", "config": ""})
    frame._frame.stage = 2
    assert frame.run(jax_call.on_cuda) == 0
    assert fake.launches == []


# The structures, against the header that jaxlib ships

HEADER = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
_SCALARS = {
    "size_t": ctypes.c_size_t, "int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32,
    "int": ctypes.c_int, "uint32_t": ctypes.c_uint32, "XLA_FFI_Handler_Traits": ctypes.c_uint32,
}  # fmt: skip


def layout(name: str) -> type[ctypes.Structure]:
    """Return a structure of the header."""
    text = re.sub(r"//[^\n]*", "", HEADER)
    body = re.search(rf"struct {name} \{{(.*?)\n\}}", text, re.DOTALL).group(1)
    fields = []
    for kind, function, member in re.findall(
        r"([\w ]+\**)\s(\w+)?;|_XLA_FFI_API_STRUCT_FIELD\((\w+)\);", body
    ):
        if member:
            fields.append((member, ctypes.c_void_p))
        elif "*" in kind:
            fields.append((function, ctypes.c_void_p))
        elif kind.strip() in _SCALARS:
            fields.append((function, _SCALARS[kind.strip()]))
        elif re.search(rf"enum \{{[^}}]*\}} {kind.strip()};", text):
            fields.append((function, ctypes.c_int))
        else:
            fields.append((function, layout(kind.strip())))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("XLA_FFI_Api_Version", xla_ffi._Version),
        ("XLA_FFI_Buffer", xla_ffi._Buffer),
        ("XLA_FFI_Args", xla_ffi._Arrays),
        ("XLA_FFI_Rets", xla_ffi._Arrays),
        ("XLA_FFI_ByteSpan", xla_ffi._Span),
        ("XLA_FFI_Attrs", xla_ffi._Attributes),
        ("XLA_FFI_Api", xla_ffi._Api),
        ("XLA_FFI_CallFrame", xla_ffi._Frame),
        ("XLA_FFI_Metadata", xla_ffi._Metadata),
        ("XLA_FFI_Metadata_Extension", xla_ffi._Extension),
        ("XLA_FFI_Error_Create_Args", xla_ffi._ErrorCreate),
        ("XLA_FFI_Error_GetMessage_Args", xla_ffi._ErrorMessage),
        ("XLA_FFI_Error_Destroy_Args", xla_ffi._ErrorDestroy),
        ("XLA_FFI_Stream_Get_Args", xla_ffi._StreamGet),
        ("XLA_FFI_DeviceOrdinal_Get_Args", xla_ffi._DeviceGet),
        ("XLA_FFI_DeviceMemory_Allocate_Args", xla_ffi._MemoryAllocate),
        ("XLA_FFI_DeviceMemory_Free_Args", xla_ffi._MemoryFree),
    ],
)
def test_structures_are_those_of_the_header(name, ours):
    """Fields that a newer header adds behind ours change nothing."""
    flat = [(o, s) for o, s in places(layout(name)) if o < ctypes.sizeof(ours)]
    assert places(ours) == flat


def places(structure: type[ctypes.Structure], start: int = 0) -> list[tuple[int, int]]:
    """Return where the plain fields of a structure lie, and how long they are."""
    found = []
    kinds = [k for base in reversed(structure.__mro__) for k in vars(base).get("_fields_", ())]
    for name, kind in kinds:
        offset = start + getattr(structure, name).offset
        if issubclass(kind, ctypes.Structure):
            found += places(kind, offset)
        else:
            found.append((offset, ctypes.sizeof(kind)))
    return found


def test_functions_are_where_the_header_has_them():
    theirs = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\(XLA_FFI_(\w+)\);", HEADER)
    used = {
        "error_create": "Error_Create",
        "error_get_message": "Error_GetMessage",
        "error_destroy": "Error_Destroy",
        "stream_get": "Stream_Get",
        "memory_allocate": "DeviceMemory_Allocate",
        "memory_free": "DeviceMemory_Free",
        "device_ordinal_get": "DeviceOrdinal_Get",
    }
    for ours, name in used.items():
        assert xla_ffi._FUNCTIONS.index(ours) == theirs.index(name)
    source = Path(xla_ffi.__file__).read_text()
    assert set(re.findall(r'_(?:ask|call)\(\s*"(\w+)"', source)) == set(used)


def test_numbers_of_types_are_those_of_the_header():
    numbers = {
        int(number): name for name, number in re.findall(r"XLA_FFI_DataType_(\w+) = (\d+)", HEADER)
    }
    assert {numbers[n]: dtype.name for n, dtype in xla_ffi._DTYPES.items()} == {
        "F16": "float16", "F32": "float32", "BF16": "bfloat16", "S32": "int32", "S64": "int64"
    }  # fmt: skip


def test_another_major_version_is_refused(monkeypatch, tmp_path):
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 1\n#define XLA_FFI_API_MINOR 0\n")
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    with pytest.raises(LaunchError, match="version 0"):
        xla_ffi.handler(lambda call: None)

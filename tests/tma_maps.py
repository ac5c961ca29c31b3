"""TensorMaps that tests of TMA share, and what a copy does, byte by byte."""

from __future__ import annotations

import itertools

from gemmjit.tensormap import ElementType, Fill, Swizzle, TensorMap

MATRIX = TensorMap(
    element_type=ElementType.BFLOAT16,
    dims=(100, 50),
    strides=(208,),
    box=(64, 8),
    swizzle=Swizzle.BYTES_128,
)

# PTX ISA 5.5.7: rows are 128-byte lines, entries are 16-byte chunks, patterns repeat.
TABLES = {
    Swizzle.NONE: ["01234567"],
    Swizzle.BYTES_32: ["01234567", "10325476"],
    Swizzle.BYTES_64: ["01234567", "10325476", "23016745", "32107654"],
    Swizzle.BYTES_128: [
        "01234567", "10325476", "23016745", "32107654",
        "45670123", "54761032", "67452301", "76543210",
    ],
    Swizzle.BYTES_128_ATOM_32: ["01234567", "23016745", "45670123", "67452301"],
    Swizzle.BYTES_128_ATOM_32_FLIP_8: ["01234567", "23016745", "45670123", "67452301"],
    Swizzle.BYTES_128_ATOM_64: ["01234567", "45670123"],
}  # fmt: skip


def place(linear, swizzle):
    """Shared address of a byte by the tables: where its chunk stands in its line."""
    line, within = divmod(linear, 128)
    chunk, byte = divmod(within, 16)
    row = TABLES[swizzle][line % len(TABLES[swizzle])]
    if swizzle is Swizzle.BYTES_128_ATOM_32_FLIP_8 and line % 2:
        byte = (byte + 8) % 16
    return line * 128 + row.index(str(chunk)) * 16 + byte


def copy_by_element(t, memory, base, coordinates, smem, smem_address, store=False):
    """Move one box, one byte at a time; rows lie no closer than the swizzle is wide."""
    size = t.element_type.bits // 8
    counts = [-(-b // s) for b, s in zip(t.box, (1, *t.element_strides[1:]), strict=True)]
    ends = list(t.dims)
    if store:  # the chunk of 16 bytes in which the tensor ends is written as a whole
        ends[0] = -(-t.dims[0] * size // 16) * 16 // size
    fill = bytes(size)
    if t.fill is Fill.NAN:
        fill = {2: b"\xff\x7f", 4: b"\xff\xff\xff\x7f", 8: b"\xff" * 7 + b"\x7f"}[size]
    for index in itertools.product(*(range(n) for n in reversed(counts))):
        index = index[::-1]
        where, linear, scale, inside = base, 0, size, True
        for i, position in enumerate(index):
            step = 1 if i == 0 else t.element_strides[i]
            x = coordinates[i] + position * step
            inside &= 0 <= x < ends[i]
            where += x * (size if i == 0 else t.strides[i - 1])
            linear += position * scale
            scale = scale * counts[i] if i else max(scale * counts[i], t.swizzle.span)
        for byte in range(size):
            there = place(smem_address + linear + byte, t.swizzle)
            if store:
                if inside:
                    memory[where + byte] = smem[there]
            else:
                smem[there] = memory[where + byte] if inside else fill[byte]


def random_map(rng, element_type, rank, swizzle, row=None):
    size = element_type.bits // 8
    inner = (row or swizzle.span) // size or 16 // size * int(rng.integers(1, 5))
    dims = [
        int(rng.integers(1, 2 * inner + 2)),
        *(int(rng.integers(1, 6)) for _ in range(rank - 1)),
    ]
    stride, strides = (dims[0] * size + 15) // 16 * 16, []
    for i in range(1, rank):
        strides.append(stride + 16 * int(rng.integers(0, 3)))
        stride = strides[-1] * dims[i]
    return TensorMap(
        element_type=element_type,
        dims=tuple(dims),
        strides=tuple(strides),
        box=(inner, *(int(rng.integers(1, 8 - rank)) for _ in range(rank - 1))),
        element_strides=(1, *(int(rng.choice([1, 1, 2, 3])) for _ in range(rank - 1))),
        swizzle=swizzle,
        fill=Fill(int(rng.integers(0, 2))) if element_type.is_float else Fill.ZERO,
    )

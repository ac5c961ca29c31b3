"""Bugs in how k3 stores its results and adds to them, one edit of its templates each."""

from __future__ import annotations

from planted import BEFORE_STORE, BOX_FREE, K3_FILES, LOCK, RACE, VALUES, bugs_of

_LOADED = "      mbarrier_wait(loaded_barrier(base, consumer, boxes.place), boxes.parity);\n"
_READ = "  bulk_wait_read<1>();\n"

STORE_BUGS = bugs_of(K3_FILES, "k3 wide", {
    "a box is overwritten while its store reads it": (
        "      if (leader) bulk_wait_read<PLACES - 1>();\n", "", (VALUES, RACE),
    ),
    "no barrier behind that wait": (
        "      sync_consumer(consumer);\n    }\n", "    }\n", (VALUES, RACE),
    ),
}) | bugs_of(K3_FILES, "k3 tall", {
    "two boxes, and a wait for one": (
        "bulk_wait_read<PLACES - 1>();", "bulk_wait_read<PLACES>();", (VALUES, RACE),
    ),
}) | bugs_of(K3_FILES, "k3 boxes", {
    "one barrier a box, and the next box is not waited for": (BOX_FREE, "", (VALUES, RACE)),
    "one barrier a box, and a wait for one store too few": (
        "PLACES - 2, 0)", "PLACES - 1, 0)", (VALUES, RACE),
    ),
    "no barrier a box": (BEFORE_STORE, BOX_FREE, (VALUES, RACE)),
}) | bugs_of(K3_FILES, "k3 boxes", case="sum", rows={
    "no wait for what D holds": (_LOADED, "", (VALUES, RACE)),
    "wrong parity of what D holds": (
        _LOADED, _LOADED.replace("parity)", "parity ^ 1)"), (VALUES, RACE, LOCK),
    ),
    "boxes of the tile before are not waited for": (
        "  bulk_wait_read<0>();\n#pragma unroll\n", "#pragma unroll\n", (VALUES, RACE),
    ),
    "the box that was stored last is loaded over": (
        "(place + STORE_BOXES - 1) % STORE_BOXES, tile, next,", "place, tile, next,",
        (VALUES, RACE, LOCK),
    ),
    "a store that still reads is not waited for": (_READ, "", (VALUES, RACE)),
    "a wait for one store too few": (_READ, _READ.replace("<1>", "<2>"), (VALUES, RACE)),
    "the wrong box of D": ("number - 1 + STORE_BOXES;", "number + STORE_BOXES;", (VALUES, LOCK)),
    "announces too few bytes of D": (
        "mbarrier_arrive_expect_tx(loaded, BOX_BYTES);",
        "mbarrier_arrive_expect_tx(loaded, BOX_BYTES - 128);", (VALUES, RACE, LOCK),
    ),
    "no barrier for one of the boxes": (
        "i < CONSUMERS * STORE_BOXES; ++i) mbarrier_init",
        "i < CONSUMERS * STORE_BOXES - 1; ++i) mbarrier_init", (LOCK, "BarrierFault"),
    ),
    "sums without what D holds": ("y[half * 2] + d.x,", "y[half * 2],", (VALUES,)),
    "no barrier before the sum is stored": (BEFORE_STORE, BOX_FREE, (VALUES, RACE)),
    "no fence before the sum is stored": (
        "    fence_async_smem();\n    if (!READS", "    if (!READS", (VALUES, RACE),
    ),
}) | bugs_of(K3_FILES, "k3 pingpong", case="sum", rows={
    "one box, which replaces what it should be added to": (
        "tma_add_3d(map, box,", "tma_store_3d(map, box,", (VALUES,),
    ),
})  # fmt: skip

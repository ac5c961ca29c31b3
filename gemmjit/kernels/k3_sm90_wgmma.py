"""k3: wgmma fed by TMA, with a scheduling warp, sm_90a."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from gemmjit.arch import Arch
from gemmjit.config import Config, Sm90WgmmaConfig
from gemmjit.dtypes import BF16, F16, F32, DType
from gemmjit.kernels.halves import halves_map
from gemmjit.kernels.kernel import Kernel, OperandMap, tma_stride
from gemmjit.kernels.split import Split
from gemmjit.occupancy import registers_at_entry
from gemmjit.problem import Problem
from gemmjit.tensormap import L2Promotion, Swizzle, TensorMap, element_type_of
from gemmjit.variant import Form, Variant

__all__ = ["K3"]

_CONSUMERS = 2
_ROWS = 64  # of one wgmma, of a box of A, of a store box
_BOX_BYTES = _ROWS * 128
_RING_PLACE_BYTES = 16  # a full and an empty barrier
_TILE_SLOTS = 4
_SLOT_BYTES = 32
_PIECE_BYTES = 16  # more of a slot where groups are split
_PRODUCER_REGISTERS = 40
_WALK_REGISTERS = 56  # likewise, where the scheduling warp walks pieces
_MAX_SORTED = 512  # groups that core/by_rows.cuh sorts


class K3(Kernel):
    """Asynchronous tensor cores of Hopper, fed by TMA."""

    name: ClassVar = "k3"
    title: ClassVar = "wgmma fed by TMA"
    template: ClassVar = "kernels/sm90_wgmma_grouped_mm.cu.j2"
    config_type: ClassVar[type[Config]] = Sm90WgmmaConfig
    min_arch: ClassVar = Arch(90)
    max_arch: ClassVar = Arch(90)
    accelerated: ClassVar = True
    in_dtypes: ClassVar = (BF16, F16)
    out_dtypes: ClassVar = (BF16, F16, F32)
    forms: ClassVar[tuple[Form, ...]] = ("ragged_m", "ragged_k")
    loads_by_tma: ClassVar = True
    trait_names: ClassVar = ("a_blocked", "b_blocked", "d_by_tma")
    persistent: ClassVar = True

    def vector_elements(self, dtype: DType) -> int:
        """Return the elements of 16 bytes, the grid of TMA."""
        return 16 // dtype.itemsize

    def threads(self, config: Config) -> int:
        """Return the threads of the producer and the two consumer warpgroups."""
        return 128 * (1 + _CONSUMERS)

    def smem_bytes(self, config: Config, variant: Variant) -> int:
        """Return the bytes of stages, store boxes, barriers, tile slots and epilogue columns."""
        assert isinstance(config, Sm90WgmmaConfig)
        stage = (config.block_m + config.block_n) * config.block_k * variant.in_dtype.itemsize
        stages = config.num_stages * (stage + _RING_PLACE_BYTES)
        slot = _SLOT_BYTES + (_PIECE_BYTES if _splits(config, variant) else 0)
        slots = _TILE_SLOTS * (slot + _RING_PLACE_BYTES)
        order = 8 * _CONSUMERS + 16  # and the taken barrier
        columns = _CONSUMERS * config.block_n * 4 * variant.chain.column_operands
        sorts = variant.form == "ragged_k" and config.order == "claimed"
        by_rows = 2 * _MAX_SORTED if sorts else 0
        boxes = _CONSUMERS * config.store_boxes
        reads_d = variant.d_by_tma and variant.chain.accumulates and variant.form == "ragged_k"
        loaded = 8 * boxes if reads_d and config.store_boxes > 1 else 0
        return stages + boxes * _BOX_BYTES + slots + order + loaded + columns + by_rows

    def static_smem_bytes(self, config: Config, variant: Variant) -> int:
        """Return 0: all shared memory is dynamic."""
        return 0

    def tile_variables(self, config: Config, variant: Variant) -> dict[str, object]:
        """Return the template's variables that only k3 has."""
        assert isinstance(config, Sm90WgmmaConfig)
        producer, consumer = self._registers(config, variant)
        return {
            "num_stages": config.num_stages,
            "store_boxes": config.store_boxes,
            "pingpong": "true" if config.pingpong else "false",
            "b_evict_first": "true" if config.b_evict_first else "false",
            "raster_m": config.raster_m,
            "order": f"ORDER_{config.order.upper()}",
            "splits": "true" if _splits(config, variant) else "false",
            "producer_registers": producer,
            "consumer_registers": consumer,
            "a_blocked": "true" if variant.a_blocked else "false",
            "b_blocked": "true" if variant.b_blocked else "false",
            "d_by_tma": "true" if variant.d_by_tma else "false",
            "a_transposed": 0 if variant.a_k_major else 1,
            "b_transposed": 0 if variant.b_k_major else 1,
            "smem_bytes": self.smem_bytes(config, variant),
            "mma_type": variant.in_dtype.short,
        }

    def _registers(self, config: Sm90WgmmaConfig, variant: Variant) -> tuple[int, int]:
        """Return what a producer's and a consumer's thread have of the block's registers.

        A consumer that asked for more than the block has left would wait forever.
        """
        threads = self.threads(config)
        entry = registers_at_entry(threads, config.min_blocks_per_sm, self.max_arch)
        producer = _WALK_REGISTERS if _splits(config, variant) else _PRODUCER_REGISTERS
        producer = min(producer, entry)
        consumer = (entry * (1 + _CONSUMERS) - producer) // _CONSUMERS // 8 * 8
        return producer, consumer

    def ships(self, config: Config) -> bool:
        """Return whether it is a shipped tile, whatever the rows of its pieces."""
        assert isinstance(config, Sm90WgmmaConfig)
        return replace(config, split_rows=0) in self.shipped_configs()

    def claims_tiles(self, config: Config) -> bool:
        """Return whether the order says so."""
        return isinstance(config, Sm90WgmmaConfig) and config.order == "claimed"

    def split_of(self, problem: Problem, config: Config) -> Split | None:
        """Return the pieces of `split_rows` rows of the ragged-K form."""
        assert isinstance(config, Sm90WgmmaConfig)
        if problem.form != "ragged_k" or not 0 < config.split_rows < problem.rows:
            return None
        return Split(
            rows=config.split_rows,
            total_rows=problem.rows,
            tiles=-(-problem.m // config.block_m) * -(-problem.n // config.block_n),
            tile_elements=config.block_m * config.block_n,
            sharers=1 if config.pingpong else _CONSUMERS,
        )

    def traits(self, problem: Problem, config: Config) -> dict[str, bool]:
        """Return which operands come in blocks of 64 columns, and whether D is stored by TMA."""
        s = problem.strides
        itemsize = problem.out_dtype.itemsize
        # A store by TMA ends with a chunk of 16 bytes: in a padded D it would write past N.
        row_bytes = problem.n // problem.chain.folds * itemsize
        return {
            "a_blocked": s.ak != 1 and problem.form == "ragged_k" and problem.m % 64 == 0,
            "b_blocked": s.bk != 1
            and problem.n // _regions(problem) % _b_chunk(problem, config) == 0,
            "d_by_tma": (
                s.dn == 1
                and row_bytes % 16 == 0
                and s.dm >= 0
                and s.dm * itemsize % 16 == 0
                and s.dg >= 0
                and s.dg * itemsize % 16 == 0
                and problem.d_alignment == 16
            ),
        }

    def tensor_maps(
        self, problem: Problem, config: Config, variant: Variant
    ) -> tuple[OperandMap, ...]:
        """Return the maps of A, B and D; what a dimension appears twice for, the template says.

        Ragged M: A ``(K, M)`` in boxes of 64 rows. B ``(K, N, G)`` if K-major; else
        ``(64, K, N / 64, G)`` in one box a stage, or ``(N, K, G)`` in chunks of 64 columns; of
        gates, and behind them their factors, ``(64, K, N / 128, 2, G)``, and 32 instead of 64
        where half a tile is an odd number of 32 columns. D ``(N, 64, M + 1)``, the last two both by
        rows and from 64 rows before D on.

        Ragged K: A ``(64, 64, M / 64, rows)`` in one box a stage, or ``(M, 64, rows)`` in chunks of
        64 columns, rows twice; B likewise with N. D ``(N, M, G)``.
        """
        assert isinstance(config, Sm90WgmmaConfig)
        if problem.form == "ragged_m":
            map_a, map_b = self._ragged_m_loads(problem, config, variant)
        else:
            s = problem.strides
            map_a = _ragged_load(problem, problem.m, s.ak, config.block_m, variant.a_blocked)
            map_b = _ragged_load(problem, problem.n, s.bk, config.block_n, variant.b_blocked)
        loads = OperandMap("mat_a", map_a), OperandMap("mat_b", map_b)
        if not variant.d_by_tma:
            return (*loads, OperandMap("mat_a", map_a))  # a parameter that nothing reads
        return (*loads, _store(problem))

    def _ragged_m_loads(
        self, problem: Problem, config: Sm90WgmmaConfig, variant: Variant
    ) -> tuple[TensorMap, TensorMap]:
        s, itemsize = problem.strides, problem.in_dtype.itemsize
        map_a = TensorMap(
            element_type=element_type_of(problem.in_dtype),
            dims=(problem.k, problem.rows),
            strides=(tma_stride(s.am, problem.rows, problem.k) * itemsize,),
            box=(64, _ROWS),
            swizzle=Swizzle.BYTES_128,
            l2_promotion=L2Promotion.BYTES_128,
        )
        if not variant.b_k_major:
            return map_a, _n_major_load(problem, config, variant.b_blocked)
        halves = halves_map(problem, variant.b_k_major, config.block_n)
        if halves is not None:
            return map_a, halves
        stride = tma_stride(s.bn, problem.n, problem.k)
        group = tma_stride(s.bg, problem.num_groups, stride * problem.n)
        map_b = replace(
            map_a,
            dims=(problem.k, problem.n, problem.num_groups),
            strides=(stride * itemsize, group * itemsize),
            box=(64, config.block_n, 1),
            element_strides=(),
        )
        return map_a, map_b

    def shipped_configs(self) -> tuple[Config, ...]:
        """Return the tiles of k3."""
        return (
            Sm90WgmmaConfig(block_m=128, block_n=192, num_stages=5, store_boxes=1, order="claimed"),
            Sm90WgmmaConfig(block_m=128, block_n=128, num_stages=6, store_boxes=2, order="claimed"),
            Sm90WgmmaConfig(
                block_m=64, block_n=128, num_stages=8, store_boxes=2, raster_m=2, b_evict_first=True
            ),
            Sm90WgmmaConfig(block_m=128, block_n=256, num_stages=4, store_boxes=2, pingpong=False),
            Sm90WgmmaConfig(block_m=128, block_n=192, num_stages=4, store_boxes=3, order="claimed"),
            Sm90WgmmaConfig(block_m=128, block_n=128, num_stages=5, store_boxes=4, order="claimed"),
            Sm90WgmmaConfig(
                block_m=64, block_n=256, num_stages=4, store_boxes=2, raster_m=2, b_evict_first=True
            ),
            Sm90WgmmaConfig(
                block_m=256,
                block_n=128,
                num_stages=3,
                store_boxes=4,
                pingpong=False,
                order="claimed",
            ),
        )


def _regions(problem: Problem) -> int:
    """Return the parts of an N-major B from which a tile takes columns: gates, and factors."""
    return 2 if problem.chain.gate == "split" else 1


def _b_chunk(problem: Problem, config: Config) -> int:
    """Return the columns of a chunk of an N-major B; a tile takes whole ones of each region."""
    return 32 if config.block_n // _regions(problem) % 64 else 64


def _n_major_load(problem: Problem, config: Sm90WgmmaConfig, blocked: bool) -> TensorMap:
    """Return the map of an N-major B in the ragged-M form."""
    s, itemsize = problem.strides, problem.in_dtype.itemsize
    regions, chunk = _regions(problem), _b_chunk(problem, config)
    columns = problem.n // regions
    row = tma_stride(s.bk, problem.k, problem.n)
    group = tma_stride(s.bg, problem.num_groups, row * problem.k) * itemsize
    row *= itemsize
    dims: tuple[int, ...] = (problem.n, problem.k, problem.num_groups)
    strides: tuple[int, ...] = (row, group)
    box: tuple[int, ...] = (chunk, config.block_k, 1)
    if blocked:
        dims = (chunk, problem.k, columns // chunk, problem.num_groups)
        strides = (row, chunk * itemsize, group)
        box = (chunk, config.block_k, config.block_n // regions // chunk, 1)
    if blocked and regions > 1:
        dims = (*dims[:3], regions, problem.num_groups)
        strides = (*strides[:2], columns * itemsize, group)
        box = (*box[:3], regions, 1)
    return TensorMap(
        element_type=element_type_of(problem.in_dtype),
        dims=dims,
        strides=strides,
        box=box,
        swizzle=Swizzle.of_bytes(chunk * itemsize),
        l2_promotion=L2Promotion.BYTES_128,
    )


def _splits(config: Sm90WgmmaConfig, variant: Variant) -> bool:
    """Return whether the kernel has what computes a group in pieces."""
    return variant.form == "ragged_k" and config.split_rows > 0


def _ragged_load(problem: Problem, columns: int, row: int, block: int, blocked: bool) -> TensorMap:
    """Return the map of an operand of the ragged-K form; `row` is its row stride in elements."""
    stride = tma_stride(row, problem.rows, columns) * problem.in_dtype.itemsize
    dims: tuple[int, ...] = (columns, _ROWS, problem.rows)
    strides: tuple[int, ...] = (stride, stride)
    box: tuple[int, ...] = (64, _ROWS, 1)
    if blocked:
        dims = (64, _ROWS, columns // 64, problem.rows)
        strides = (stride, 128, stride)
        box = (64, _ROWS, block // 64, 1)
    return TensorMap(
        element_type=element_type_of(problem.in_dtype),
        dims=dims,
        strides=strides,
        box=box,
        swizzle=Swizzle.BYTES_128,
        l2_promotion=L2Promotion.BYTES_128,
    )


def _store(problem: Problem) -> OperandMap:
    """Return the map of D."""
    s, itemsize = problem.strides, problem.out_dtype.itemsize
    columns, folds = problem.columns, problem.chain.folds
    row = tma_stride(s.dm, problem.m, columns) * itemsize
    dims: tuple[int, ...] = (columns, _ROWS, problem.rows + 1)
    strides: tuple[int, ...] = (row, row)
    displacement = -_ROWS * row
    if problem.form == "ragged_k":
        dims = (columns, problem.m, problem.num_groups)
        strides = (row, tma_stride(s.dg, problem.num_groups, problem.m * columns) * itemsize)
        displacement = 0
    box_columns = 32 if itemsize == 4 else 64 // folds
    tensor_map = TensorMap(
        element_type=element_type_of(problem.out_dtype),
        dims=dims,
        strides=strides,
        box=(box_columns, _ROWS, 1),
        swizzle=Swizzle.of_bytes(box_columns * itemsize),
        l2_promotion=L2Promotion.BYTES_128,
    )
    return OperandMap("out", tensor_map, displacement)

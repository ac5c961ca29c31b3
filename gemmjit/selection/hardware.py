"""What the cost model knows of GPUs: rates, bandwidths and fixed costs, each with its source.

Only the H200 was measured. Its constants are a fit of `gemmjit.selection.model` to the times of
k3's tiles in ``tests/data/tiles_h200.json`` (one H200, driver 580.159.04, 2026-11-30, products
named and drawn, hot and cool); those of k0, k1 and k2 follow from three products of the same day in
``docs/benchmarks/ladder_h200.json``. For other architectures the peaks are those of data sheets,
and the H200's shares of the peaks are taken over: estimates, not measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from gemmjit.arch import Arch
from gemmjit.config import Config, Sm90WgmmaConfig

__all__ = ["GPUS", "Gpu", "Pace", "States", "gpu_for", "pace_of"]


class States(NamedTuple):
    """A figure in the two power states: back to back under load, and with idle gaps."""

    hot: float
    cool: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that stands for an architecture.

    Attributes
    ----------
    name : str
    source : str
        Where the figures come from.
    measured : bool
        Whether they were measured, or are estimates.
    num_sms : int
    tensor_peak, fma_peak : float
        Dense 16-bit tensor and FP32 arithmetic, FLOP/s.
    dram, l2 : States
        Bytes per second that kernels reach.
    launch_seconds : float
        Fixed cost of a call within a graph: launch, the first loads, the last stores.
    """

    name: str
    source: str
    measured: bool
    num_sms: int
    tensor_peak: float
    fma_peak: float
    dram: States
    l2: States
    launch_seconds: float = 9e-6


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a kernel with a tile works.

    Attributes
    ----------
    share : States
        Share of the GPU's peak in the main loop.
    tile_seconds : float
        Exposed cost of each tile: hand-over, filling and draining the tensor cores.
    box_seconds : float
        Exposed cost of storing 64 x 64 elements; ping-pong hides most of it.
    dram_share : float
        Bandwidth over what `Gpu.dram` says.
    measured : bool
        Whether this tile was measured in this form, or taken from its nearest neighbour.
    """

    share: States
    tile_seconds: float = 0.0
    box_seconds: float = 0.0
    dram_share: float = 1.0
    measured: bool = True


_H200_PEAK = 963.5e12  # 132 SMs x 4,096 FLOP per cycle at 1.782 GHz, the clock of the fit

# The data sheets' dense 16-bit tensor rate with FP32 sums, FP32 rate and DRAM bandwidth.
_DATA_SHEETS = {
    75: ("T4", 40, 65e12, 8.1e12, 0.320e12),
    80: ("A100 SXM 80 GB", 108, 312e12, 19.5e12, 2.039e12),
    86: ("A10", 72, 125e12, 31.2e12, 0.600e12),
    89: ("L40S", 142, 362e12, 91.6e12, 0.864e12),
    100: ("B200", 148, 2250e12, 75e12, 8.0e12),
    120: ("RTX 5090", 170, 209.5e12, 104.8e12, 1.792e12),
}
_DRAM_SHARE = 0.92  # of the data sheet's bandwidth; the H200's is 4.8 TB/s
_L2_OVER_DRAM = 3.2  # on the H200

_H200 = Gpu(
    name="H200",
    source="measured on one NVIDIA H200, 2026-11-30",
    measured=True,
    num_sms=132,
    tensor_peak=_H200_PEAK,
    fma_peak=59e12,
    dram=States(hot=4.747e12, cool=4.751e12),
    l2=States(hot=10.95e12, cool=11.98e12),
)


def _estimated(name: str, num_sms: int, tensor: float, fma: float, dram: float) -> Gpu:
    reached = _DRAM_SHARE * dram
    return Gpu(
        name=name,
        source=f"data sheet of {name}; not measured",
        measured=False,
        num_sms=num_sms,
        tensor_peak=tensor,
        fma_peak=fma,
        dram=States(reached, reached),
        l2=States(_L2_OVER_DRAM * reached, _L2_OVER_DRAM * reached),
    )


#: One GPU for each architecture number.
GPUS: dict[int, Gpu] = {90: _H200} | {n: _estimated(*row) for n, row in _DATA_SHEETS.items()}


def gpu_for(arch: Arch) -> Gpu:
    """Return the GPU that stands for an architecture; the next older one where there is none."""
    number = max((n for n in GPUS if n <= arch.number), default=min(GPUS))
    return GPUS[number]


# k3 by (form, block_m, block_n, pingpong). Tiles of 64 rows were measured on products bound by
# memory alone, which say nothing of their arithmetic: 95 % of their taller neighbours' shares.
_K3 = {
    ("ragged_m", 128, 192, True): Pace(States(0.758, 0.843), 881e-9, 15e-9),
    ("ragged_m", 128, 128, True): Pace(States(0.906, 0.910), 976e-9, 15e-9),
    ("ragged_m", 64, 128, True): Pace(States(0.823, 0.771), 124e-9, 15e-9),
    ("ragged_m", 64, 256, True): Pace(States(0.685, 0.760), 1290e-9, 15e-9),
    ("ragged_m", 128, 256, False): Pace(States(0.718, 0.861), 1550e-9, 83e-9, 0.965),
    ("ragged_m", 256, 128, False): Pace(States(0.713, 0.834), 2216e-9, 88e-9, 0.93),
    # wgrad with claimed tiles. Its share of the bandwidth is smaller: as many bytes are written as
    # read where groups are short.
    ("ragged_k", 128, 192, True): Pace(States(0.737, 0.920), 367e-9, 45e-9, 0.849),
    ("ragged_k", 128, 128, True): Pace(States(0.687, 0.820), 484e-9, 0e-9, 0.693),
    ("ragged_k", 256, 128, False): Pace(States(0.700, 0.883), 793e-9, 64e-9, 0.974),
}
# Stages of those; each stage fewer costs this share of the rate (the ladder, 16,384 rows).
_K3_STAGES = {
    ("ragged_m", 128, 192): 5,
    ("ragged_m", 128, 128): 6,
    ("ragged_m", 64, 128): 8,
    ("ragged_m", 64, 256): 4,
    ("ragged_m", 128, 256): 4,
    ("ragged_m", 256, 128): 3,
    ("ragged_k", 128, 192): 4,
    ("ragged_k", 128, 128): 5,
    ("ragged_k", 256, 128): 3,
}
_STAGE_COST = 0.028
# Store boxes that the ragged-K form, which stores much, was measured with at least; one box fewer
# exposes the stores. An assumption, not a measurement.
_K3_WGRAD_BOXES = 3
_BOX_COST = 0.05
# B leaves L2 first: for weights that are read once (the 2,048-row and decode products).
_WITH_HINT = 1 / 0.975
_UNSEEN_COST = 0.03

# k1 and k2: rates on the H200 by (block_m, block_k or stages), in TFLOP/s. From the ladder: three
# products; values marked by a comment follow from the differences noted in the heuristic.
_K1 = {
    (128, 32, 2): (205.0, 225.0),
    (64, 32, 2): (153.0, 170.0),
    (32, 32, 2): (109.0, 121.0),
    (128, 32, 4): (212.0, 233.0),  # 398 us against 412 us of two stages
    (64, 64, 2): (168.0, 187.0),
    (32, 64, 2): (121.0, 135.0),  # 117 us against 130 us of block_k 32
}
_K1_DRAM = 0.8
_K2 = {
    (128, 3, 1): (322.0, 365.0),
    (128, 2, 2): (331.0, 380.0),
    (128, 3, 2): (350.0, 390.0),
    (64, 4, 2): (270.0, 300.0),  # 97 us at 32 rows a group, against 118 us of 128 rows
    (32, 3, 3): (158.0, 175.0),  # 92 us
}
_K0_SHARE = States(hot=0.40, cool=0.46)  # of the FP32 peak


def pace_of(config: Config, form: str, *, read_once: bool = True) -> Pace:
    """Return how fast a kernel with a tile works, from the nearest tile that was measured.

    Parameters
    ----------
    config : Config
    form : str
    read_once : bool
        Whether each weight is read about once, so that it may leave L2 first.
    """
    if isinstance(config, Sm90WgmmaConfig):
        return _k3_pace(config, form, read_once)
    if config.kernel == "k0":
        return Pace(_K0_SHARE)
    stages = int(getattr(config, "num_stages", 2))
    if config.kernel == "k1":
        return _sync_pace(_K1, (config.block_m, config.block_k, stages), _K1_DRAM)
    found = _sync_pace(_K2, (config.block_m, stages, config.min_blocks_per_sm), 1.0)
    return found if config.kernel == "k2" else replace(found, measured=False)


def _sync_pace(
    table: dict[tuple[int, int, int], tuple[float, float]], key: tuple[int, int, int], dram: float
) -> Pace:
    seen = key in table
    nearest = min(table, key=lambda k: [abs(a - b) for a, b in zip(k, key, strict=True)])
    hot, cool = (1e12 * rate / _H200_PEAK for rate in table[nearest])
    slower = 1.0 if seen else 1.0 - _UNSEEN_COST
    return Pace(States(hot * slower, cool * slower), dram_share=dram, measured=seen)


def _k3_pace(config: Sm90WgmmaConfig, form: str, read_once: bool) -> Pace:
    key = (form, config.block_m, config.block_n, config.pingpong)
    seen = key in _K3
    if not seen:
        area = config.block_m * config.block_n
        key = min(
            (k for k in _K3 if k[0] == form),
            key=lambda k: (
                k[3] != config.pingpong,
                abs(k[1] * k[2] - area),
                abs(k[1] - config.block_m),
            ),
        )
    pace = _K3[key]
    share = 1.0 if seen else 1.0 - _UNSEEN_COST
    share *= 1.0 - _STAGE_COST * max(_K3_STAGES[key[:3]] - config.num_stages, 0)
    if form == "ragged_k":
        share *= 1.0 - _BOX_COST * max(_K3_WGRAD_BOXES - config.store_boxes, 0)
    hint = _WITH_HINT if config.b_evict_first and form == "ragged_m" and read_once else 1.0
    return Pace(
        States(pace.share.hot * share, pace.share.cool * share),
        pace.tile_seconds,
        pace.box_seconds,
        pace.dram_share * hint,
        seen,
    )

"""Predicted time of a kernel with a tile, from a handful of rates.

``time = launch + |(sm, dram, l2)|`` with the p-norm for p = 8, which is nearly the longest of the
three, since they overlap:

- ``sm``: what the busiest multiprocessor does: operations (padding included) at the tile's rate,
  and for each tile what ping-pong does not hide;
- ``dram``: each operand read once, the result written, and a twentieth of the L2 time. A last
  wave that is nearly empty takes a share of a whole one, since a multiprocessor can read no
  faster. Where tiles are listed though they are unlike, some of the weights are read again;
- ``l2``: what all tiles load.

The constants and their source are in `gemmjit.selection.hardware`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gemmjit.config import Config, Sm90WgmmaConfig
from gemmjit.problem import Problem
from gemmjit.selection.hardware import Gpu, pace_of
from gemmjit.selection.work import Sizes, Work, work_of

__all__ = ["Prediction", "predict"]

_NORM = 8.0
_L2_IN_DRAM = 0.05
_LAST_WAVE = 0.4  # of a wave's time, at least; 144 tiles of 128 x 128 took 1.4 times 132
_REREAD = 0.115  # of the weights, for each further row tile of a group
_READ_ONCE = 16  # mean rows up to which weights that leave L2 first are a gain


@dataclass(frozen=True, slots=True)
class Prediction:
    """Time of one kernel with one tile, and what it is made of.

    Attributes
    ----------
    kernel, tile : str
    config : mapping
        Fields of the tile.
    us : float
        Predicted time in microseconds: the geometric mean of `hot_us` and `cool_us`.
    hot_us, cool_us : float
        Under load back to back, and with idle gaps.
    bound : {"tensor cores", "FP32", "DRAM", "L2"}
        What takes longest.
    mma_us, overhead_us, dram_us, l2_us, launch_us : float
        Arithmetic and exposed overhead of the busiest multiprocessor, memory, cache, and the fixed
        cost of a call; of the two states, the mean.
    num_tiles, waves : int
    last_wave_fill, eta : float
    dram_bytes, l2_bytes : int
    split_groups : int
        Groups that are computed in pieces.
    mma_tflops : float
        Rate of the tile's main loop on all multiprocessors, in TFLOP/s.
    epilogue : {"hidden", "exposed"}
        Whether stores overlap the next tile's arithmetic.
    measured : bool
        Whether the rates were measured for this GPU and tile, or estimated.
    """

    kernel: str
    tile: str
    config: dict[str, object]
    us: float
    hot_us: float
    cool_us: float
    bound: str
    mma_us: float
    overhead_us: float
    dram_us: float
    l2_us: float
    launch_us: float
    num_tiles: int
    waves: int
    last_wave_fill: float
    eta: float
    dram_bytes: int
    l2_bytes: int
    split_groups: int
    mma_tflops: float
    epilogue: str
    measured: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-compatible mapping."""
        return asdict(self)

    @property
    def reason(self) -> str:
        """The reasons in one line."""
        parts = [f"bound by {self.bound}"]
        if self.launch_us > 0.5 * self.us:
            parts = [f"mostly the fixed {self.launch_us:.0f} us of a call"]
        if self.waves < 20 and self.last_wave_fill < 0.9:
            which = "the only wave" if self.waves == 1 else f"last of {self.waves} waves"
            parts.append(f"{which} {self.last_wave_fill:.0%} full")
        if self.split_groups:
            groups = "1 group" if self.split_groups == 1 else f"{self.split_groups} groups"
            parts.append(f"{groups} in pieces of {self.config['split_rows']} rows")
        if self.eta < 0.9:
            parts.append(f"{1 - self.eta:.0%} of tile rows are padding")
        if self.overhead_us > 0.1 * self.us:
            parts.append(f"{self.overhead_us:.0f} us between tiles, epilogue {self.epilogue}")
        if not self.measured:
            parts.append("not measured")
        return "; ".join(parts)


def predict(problem: Problem, config: Config, gpu: Gpu, sizes: Sizes) -> Prediction:
    """Return the predicted time of a problem on a GPU.

    Parameters
    ----------
    problem : Problem
    config : Config
        Of a kernel that can serve the problem.
    gpu : Gpu
    sizes : numpy.ndarray, shape (G,), int64
        Rows of each group, true or assumed.
    """
    work = work_of(problem, config, sizes, gpu.num_sms)
    few = problem.form == "ragged_m" and int(sizes.sum()) <= _READ_ONCE * len(sizes)
    pace = pace_of(config, problem.form, read_once=few)
    peak = gpu.fma_peak if config.kernel == "k0" else gpu.tensor_peak
    overhead = work.busiest_tiles * pace.tile_seconds + work.busiest_boxes * pace.box_seconds
    dram_bytes = work.dram_bytes * (1.0 + _REREAD * work.rereads)
    if problem.form == "ragged_m":
        dram_bytes *= _stretch(work.num_tiles / gpu.num_sms)
    states = []
    for state in range(2):
        mma = work.busiest_flops * gpu.num_sms / (peak * pace.share[state])
        l2 = work.l2_bytes / gpu.l2[state]
        dram = dram_bytes / (gpu.dram[state] * pace.dram_share) + _L2_IN_DRAM * l2
        together = ((mma + overhead) ** _NORM + dram**_NORM + l2**_NORM) ** (1 / _NORM)
        states.append((gpu.launch_seconds + together, mma, dram, l2))
    hot, cool = (1e6 * state[0] for state in states)
    mma, dram, l2 = (1e6 * _mean(states[0][i], states[1][i]) for i in (1, 2, 3))
    arithmetic = "FP32" if config.kernel == "k0" else "tensor cores"
    bounds = {arithmetic: mma + 1e6 * overhead, "DRAM": dram, "L2": l2}
    hides = isinstance(config, Sm90WgmmaConfig) and config.pingpong
    return Prediction(
        kernel=config.kernel,
        tile=str(config),
        config=config.to_dict(),
        us=_mean(hot, cool),
        hot_us=hot,
        cool_us=cool,
        bound=max(bounds, key=lambda name: bounds[name]),
        mma_us=mma,
        overhead_us=1e6 * overhead,
        dram_us=dram,
        l2_us=l2,
        launch_us=1e6 * gpu.launch_seconds,
        mma_tflops=peak * _mean(*pace.share) / 1e12,
        epilogue="hidden" if hides else "exposed",
        measured=gpu.measured and pace.measured and not work.split_groups,
        **_counts(work),
    )


def _stretch(waves: float) -> float:
    """Return by how much a last wave that is nearly empty lengthens what takes `waves`."""
    whole = int(waves)
    rest = waves - whole
    return (whole + max(rest, _LAST_WAVE)) / waves if rest > 0 else 1.0


def _counts(work: Work) -> dict[str, Any]:
    names = (
        *("num_tiles", "waves", "last_wave_fill", "eta", "dram_bytes", "l2_bytes"),
        "split_groups",
    )
    return {name: getattr(work, name) for name in names}


def _mean(first: float, second: float) -> float:
    """Return the geometric mean, in which ratios count alike in both states."""
    return float((first * second) ** 0.5)

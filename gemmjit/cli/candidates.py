"""Which kernels and tiles could serve a problem, and which one is chosen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gemmjit.arch import Arch
from gemmjit.bench.cases import MAX_GROUPS
from gemmjit.cli import choices
from gemmjit.config import Config
from gemmjit.errors import InvalidProblemError
from gemmjit.kernels import KERNELS, Kernel
from gemmjit.problem import Problem
from gemmjit.selection import choose
from gemmjit.selection.admission import reasons_against

__all__ = ["Candidate", "candidates", "problem_from"]

_ABLE = ("chosen", "possible")

_NAMES = (
    *("rows", "groups", "n", "k", "form", "dtype", "out_dtype", "a_k_major", "b_k_major"),
    *("schedule", "epilogue"),
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One shipped tile, seen from a problem.

    Attributes
    ----------
    kernel, config : str
    chosen : bool
    num_tiles : int
        Output tiles, for groups of equal size.
    utilization : float or None
        eta for groups of equal size; None where groups do not cut the result's rows.
    verdict : str
        Why it is chosen, possible or refused.
    """

    kernel: str
    config: str
    chosen: bool
    num_tiles: int
    utilization: float | None
    verdict: str

    @property
    def serves(self) -> bool:
        """Whether the tile can serve the problem."""
        return self.verdict in _ABLE

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-compatible mapping."""
        return asdict(self)


def problem_from(given: dict[str, Any]) -> Problem:
    """Return the problem of contiguous arrays that ``--problem`` describes.

    Raises
    ------
    InvalidProblemError
        If a name is unknown or missing, or a size is not a whole number.
    InvalidDtypeError
        If no kernel takes a type.
    """
    values = dict(given)
    unknown = sorted(set(values) - set(_NAMES))
    if unknown:
        raise InvalidProblemError(
            f"problem: unknown name {', '.join(unknown)}; there are {', '.join(_NAMES)}"
        )
    sizes: dict[str, Any] = {}
    for name, argument in (("rows", "rows"), ("groups", "num_groups"), ("n", "n"), ("k", "k")):
        value = values.pop(name, None)
        if type(value) is not int:
            raise InvalidProblemError(
                f"problem: expected whole numbers for rows, groups, n and k; got {name}={value}"
            )
        sizes[argument] = value
    if sizes["num_groups"] > MAX_GROUPS:
        raise InvalidProblemError(
            f"problem: groups: expected at most {MAX_GROUPS}; got {sizes['num_groups']}. Fewer say "
            "the same"
        )
    form = values.pop("form", "ragged_m")
    if form not in ("ragged_m", "ragged_k"):
        raise InvalidProblemError(f"problem: expected form ragged_m or ragged_k; got {form!r}")
    for name, read in (("dtype", choices.operand_dtype), ("out_dtype", choices.result_dtype)):
        if name in values:
            values[name] = read(str(values[name]))
    return Problem.contiguous(form, **sizes, **values)


def candidates(problem: Problem, arch: Arch) -> list[Candidate]:
    """Return every shipped tile, the chosen one among them; none is, if none can serve."""
    kernel, config = choose(problem, arch)
    offered = [(k, c) for k in KERNELS.values() for c in k.shipped_configs()]
    if (kernel, config) not in offered:
        offered.append((kernel, config))
    return [_candidate(problem, arch, k, c, (k, c) == (kernel, config)) for k, c in offered]


def _candidate(
    problem: Problem, arch: Arch, kernel: Kernel, config: Config, chosen: bool
) -> Candidate:
    reasons = reasons_against(kernel, config, problem, arch)
    if problem.form == "ragged_m":
        row_tiles = _row_tiles(problem.rows, max(problem.num_groups, 1), config.block_m)
        scheduled = row_tiles * config.block_m
        utilization: float | None = problem.rows / scheduled if scheduled else 1.0
        num_tiles = row_tiles * -(-problem.n // config.block_n)
    else:
        utilization = None
        per_group = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
        num_tiles = problem.num_groups * per_group
    verdict = "; ".join(reasons) or ("chosen" if chosen else "possible")
    return Candidate(
        kernel.name, str(config), chosen and not reasons, num_tiles, utilization, verdict
    )


def _row_tiles(rows: int, groups: int, block_m: int) -> int:
    """Return the tiles along M of groups of equal size, of which some have a row more."""
    base, longer = divmod(rows, groups)
    return (groups - longer) * -(-base // block_m) + longer * -(-(base + 1) // block_m)

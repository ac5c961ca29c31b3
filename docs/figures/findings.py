"""What an unpublished worklog on grouped GEMM on a B300 found, and whether it holds on the H200.

The verdicts come from the ladder's result file; so does which of the reasons is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from figures.ladder import best_rung, gain, rung_with
from figures.records import EVEN, FEW, Record, Results, markdown, missing, shown, states_of
from gemmjit.bench.statistics import Interval

__all__ = ["Finding", "judge", "reasons", "table"]

#: A difference of less than this counts as none.
_NONE = 0.01
#: An interval about 1 that reaches further than this leaves open whether there is one.
_NARROW = 0.02

_HOLDS, _FAILS, _NEITHER = "holds", "does not hold", "no difference"
_OPEN, _DIFFERS = "inconclusive", "differs by state"


@dataclass(frozen=True)
class Finding:
    """A comparison of two rungs that the worklog made.

    Attributes
    ----------
    claim : str
    worklog : str
        Its figures, useful TFLOP/s on a B300.
    case : str
    rungs : callable
        Given the ladder and a power state, the rung that was faster there and the other one.
    holds, fails, none : str
        Why it holds here, why not, and why there is no difference.
    """

    claim: str
    worklog: str
    case: str
    rungs: Callable[[Record, str], tuple[str | None, str | None]]
    holds: str
    fails: str
    none: str


FINDINGS = (
    Finding(
        "tensor cores: k1/128 over k0",
        "21.4 to 224.2, 10.5x",
        EVEN,
        lambda record, state: ("k1/128", "k0"),
        holds="One `mma.sync` of a warp does what takes each of its threads 64 FMA in k0.",
        fails="k0 should be bound by its FMA units; look at its clocks and spills.",
        none="k0 should be bound by its FMA units; look at its clocks and spills.",
    ),
    Finding(
        "a lower tile wins by residency: k1/64 over k1/128",
        "224.2 to 245, 1.09x",
        EVEN,
        lambda record, state: ("k1/64", "k1/128"),
        holds="More resident warps hide latency, as on the B300.",
        fails=(
            "On the B300 the lower tile fell to 64 registers, which doubled the resident blocks. "
            "Here the kernel also carries the walk over offsets and takes more; the table of "
            "resources shows what residency is left. What the lower tile costs is the same "
            "everywhere: for each useful operation it copies 1.5 times the bytes into shared "
            "memory (192 rows and columns for 64 x 128 results, against 256 for 128 x 128), and "
            "a warp of 32 x 32 reads 1.33 times the fragments of one of 64 x 32. Residency would "
            "have to pay for that, and does not."
        ),
        none="What more warps gain, copies (1.5 times the bytes) and fragments (1.33 times) cost.",
    ),
    Finding(
        "32 rows are too low for many rows: k1/64 over k1/32",
        "245 to 178.0, 1.38x",
        EVEN,
        lambda record, state: ("k1/64", "k1/32"),
        holds="Each block stages the same slice of B for half as many rows.",
        fails="The staging of B should cost a 32-row tile more; see the counters.",
        none="The staging of B should cost a 32-row tile more; see the counters.",
    ),
    Finding(
        "32 rows are right for few rows: k1/32 over k1/128",
        "63.9 to 154.1, 2.4x",
        FEW,
        lambda record, state: ("k1/32", "k1/128"),
        holds=(
            "Padding is arithmetic: 32 rows a group fill a quarter of a 128-row tile. The gain "
            "is less than four times because the weights have to be read all the same, and a "
            "low tile stages B for fewer rows."
        ),
        fails="eta says otherwise; something else must bound both, such as reading the weights.",
        none="Reading the weights bounds both.",
    ),
    Finding(
        "double-buffered fragments cost throughput: k1/64 over k1/64 fdb",
        "245 to 218, 1.12x",
        EVEN,
        lambda record, state: ("k1/64", "k1/64 fdb"),
        holds="The second set of fragments adds instructions; the loads it hides were hidden.",
        fails="Here loading fragments ahead pays.",
        none=(
            "It gains nothing here either, but costs nothing: all k-steps of a slice are "
            "unrolled, and the compiler places the next loads between products by itself, so "
            "that both versions come out much alike."
        ),
    ),
    Finding(
        "TMA and a producer warp: k2, three stages, over k1/128 with the same tile",
        "224.2 to 393.4, 1.75x",
        EVEN,
        lambda record, state: (rung_with(record, "k2", 3, 1), "k1/128"),
        holds=(
            "The consumers no longer copy: their issue slots go to fragments and products, and no "
            "barrier of the whole block stands between two slices."
        ),
        fails="The consumers should gain what copying took from them; see the counters.",
        none="The consumers should gain what copying took from them; see the counters.",
    ),
    Finding(
        "residency beats stages: k2 with two stages and two blocks over three stages and one block",
        "393.4 to 440.1, 1.12x",
        EVEN,
        lambda record, state: (rung_with(record, "k2", 2, 2), rung_with(record, "k2", 3, 1)),
        holds="A second block issues while the first waits.",
        fails=(
            "Two things that a second block does there are done otherwise here. There a block "
            "ends with its tile, and only another resident block covers the start and the end of "
            "it; here blocks are persistent and the ring runs on from tile to tile, so that the "
            "producer fills the next tile's stages while this one is stored. And two blocks must "
            "share 64K registers: a thread then has fewer (table of resources), and the compiler "
            "can load fewer fragments ahead of the products. What is left is the ring, and a "
            "deeper one rides out more."
        ),
        none="A persistent block with a deeper ring hides what a second block would.",
    ),
    Finding(
        "a 128-row tile with TMA is still wrong for few rows: k1/32 over k2 with 128 rows",
        "111.1 to 154.1, 1.39x",
        FEW,
        lambda record, state: ("k1/32", best_rung(record, state, FEW, "k2")),
        holds="Three quarters of k2's products are padding.",
        fails=(
            "k2 pads three quarters of its rows, and is faster all the same: reading the weights "
            "bounds this case, and TMA reads them better. k2 also has tiles of 32 and 64 rows "
            "for it."
        ),
        none="What k2 wastes in products, it gains in reading the weights.",
    ),
)

_ETA = "eta predicts what skew costs, to four points"


def judge(intervals: Mapping[str, Interval]) -> str:
    """Return whether a gain holds in every power state.

    States are said to differ only where their intervals lie apart. Where these overlap and only
    some say something, the verdict names the verdict of each state.

    Parameters
    ----------
    intervals : mapping of str to Interval
        Throughput of what should be faster over the other, by state.
    """
    if not intervals:
        return "not measured"
    found = {state: _side(interval) for state, interval in intervals.items()}
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    pairs = combinations(intervals, 2)
    if any(found[a] != found[b] and _apart(intervals[a], intervals[b]) for a, b in pairs):
        return _DIFFERS
    return ", ".join(f"{side} {state}" for state, side in found.items())


def table(results: Results) -> str:
    """Return each finding, what the worklog had, what was measured here, and the verdict."""
    record = results.get("ladder")
    if record is None:
        return missing("ladder")
    rows = []
    for finding, gains, verdict in _judged(record):
        cells = "; ".join(f"{state} {shown(one, 2)}" for state, one in gains.items()) or "-"
        rows.append([finding.claim, finding.worklog, cells, verdict])
    within, total = _eta_counts(record)
    counted = f"{within} of {total} within" if total else "-"
    rows.append(
        [_ETA, "three to four points better than predicted, all four", counted, _eta(record)]
    )
    return markdown(("finding", "B300", "here, throughput over throughput", "verdict"), rows)


def reasons(results: Results) -> str:
    """Return why each finding holds here or not, as far as the measurements say."""
    record = results.get("ladder")
    if record is None:
        return missing("ladder")
    lines = []
    for finding, gains, verdict in _judged(record):
        lines.append(f"- **{finding.claim}: {verdict}.** {_reason(finding, gains, verdict)}")
    lines.append(f"- **{_ETA}: {_eta(record)}.** {_eta_reason(record)}")
    return "\n".join(lines)


def _reason(finding: Finding, gains: Mapping[str, Interval], verdict: str) -> str:
    """Return the reason of a verdict; of one that names states, of those that say something."""
    texts = {
        _HOLDS: finding.holds,
        _FAILS: finding.fails,
        _NEITHER: finding.none,
        _OPEN: "The intervals are too wide to tell a gain from none, or from a loss.",
        _DIFFERS: (
            "The intervals of the two power states lie apart: what is short when the card is hot, "
            "power, is not what is short when it is cool."
        ),
        "not measured": "Its rungs were not timed together.",
    }
    if verdict in texts:
        return texts[verdict]
    sides = {state: _side(interval) for state, interval in gains.items()}
    told = [f"{s.capitalize()}: {texts[side]}" for s, side in sides.items() if side != _OPEN]
    silent = [state for state, side in sides.items() if side == _OPEN]
    if silent:
        told.append(
            f"The interval measured {' and '.join(silent)} says neither this nor the contrary."
        )
    return " ".join(told)


def _judged(record: Record) -> Iterator[tuple[Finding, dict[str, Interval], str]]:
    for finding in FINDINGS:
        gains = {}
        for state in states_of(record):
            quick, slow = finding.rungs(record, state)
            found = gain(record, state, finding.case, quick, slow)
            if found is not None:
                gains[state] = found
        yield finding, gains, judge(gains)


def _ends(interval: Interval) -> tuple[float, float]:
    low = interval.median if interval.low is None else interval.low
    return low, interval.median if interval.high is None else interval.high


def _apart(one: Interval, other: Interval) -> bool:
    (low, high), (other_low, other_high) = _ends(one), _ends(other)
    return high < other_low or other_high < low


def _side(interval: Interval) -> str:
    low, high = _ends(interval)
    if low > 1 + _NONE:
        return _HOLDS
    if high < 1 - _NONE:
        return _FAILS
    return _NEITHER if low >= 1 - _NARROW and high <= 1 + _NARROW else _OPEN


def _eta_rows(record: Record) -> list[Record]:
    return [
        row
        for state in states_of(record)
        for row in record["states"][state]["skew"]
        if row["within_four_points"] is not None
    ]


def _eta_counts(record: Record) -> tuple[int, int]:
    rows = _eta_rows(record)
    return sum(bool(row["within_four_points"]) for row in rows), len(rows)


def _eta(record: Record) -> str:
    within, total = _eta_counts(record)
    if not total:
        return "not measured"
    return "holds" if within == total else "holds in part" if within else "does not hold"


def _eta_reason(record: Record) -> str:
    rows = _eta_rows(record)
    if not rows:
        return "No rung was timed on both routings."
    errors = [(row["measured_loss"]["median"] - row["predicted_loss"], row["rung"]) for row in rows]
    best, worst = min(errors), max(errors)
    text = (
        f"Measured minus predicted loss lies between {100 * best[0]:+.1f} points (`{best[1]}`) and "
        f"{100 * worst[0]:+.1f} points (`{worst[1]}`). "
    )
    text += (
        "eta counts rows and nothing else. It predicts too much where a rung does not compute all "
        "of a partial tile (k3 leaves out blocks of 64 rows that are empty), where padding is "
        "zeros, which draw less power (k1), and where the large groups of a skewed routing find "
        "their weights in the cache; too little where small groups read a slice of weights for "
        "few rows, and where the last tiles leave multiprocessors idle."
    )
    return text

"""Which launch of a profile belongs to which product.

A profiler numbers launches and names kernels. ``gemmjit bench profile`` writes down what it had
profiled, in order. Here the two are laid side by side: a launch gets a product's name only if
all launches are there, in that order, each with the kernel and the grid that the product has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from gemmjit.bench.profiling import counters
from gemmjit.errors import InvalidProblemError

__all__ = ["labelled"]

#: What a record says of its product, beside the counters.
_FIELDS = ("workload", "case", "form", "dtype", "layout", "calls")


def labelled(
    launches: Sequence[Mapping[str, float | str]], profile: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the counters of each product, the median over its calls.

    Parameters
    ----------
    launches : sequence of mapping
        As `gemmjit.bench.profiling.read_ncu` returns them.
    profile : mapping
        As ``gemmjit bench profile --json`` writes it.

    Returns
    -------
    list of dict
        One record for each product and launch of a call: `gemmjit.bench.profiling.counters`, with
        ``workload``, ``case``, ``form``, ``dtype``, ``layout``, ``calls`` and ``tile``.

    Raises
    ------
    InvalidProblemError
        If the two do not agree in number, order, kernels or grids, if the launches are of several
        processes, or if a product's result was wrong.
    """
    products = profile.get("products")
    if profile.get("kind") != "profile" or not isinstance(products, list) or not products:
        raise InvalidProblemError(
            "manifest: expected what gemmjit bench profile --json writes, with one product or "
            f"more; got kind {profile.get('kind')!r}. Profile again with --json"
        )
    for product in products:
        if not product["check"]["ok"]:
            raise InvalidProblemError(
                f"manifest: expected right results; that of {product['workload']} was wrong: "
                f"{product['check']['reason']}. Leave it out and profile again"
            )
    processes = {launch["process"] for launch in launches}
    if len(processes) > 1:
        raise InvalidProblemError(
            f"csv: expected launches of one process; got {len(processes)}. "
            "Give each run its own file and manifest"
        )
    expected = list(_expected(products))
    for number, ((_, name, launch), got) in enumerate(zip(expected, launches, strict=False)):
        _require(number, name, launch, got)
    if len(launches) != len(expected):
        raise InvalidProblemError(
            f"csv: expected {len(expected)} launches, as the manifest has; got {len(launches)}. "
            "Take both from one run, with the command that --print-ncu prints"
        )
    groups: dict[tuple[int, int], list[Mapping[str, float | str]]] = {}
    for (key, _, _), launch in zip(expected, launches, strict=True):
        groups.setdefault(key, []).append(launch)
    return [_record(products[which], found) for (which, _), found in groups.items()]


def _expected(
    products: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[tuple[int, int], str, Mapping[str, Any]]]:
    """Yield product and place in its call, the product's label, and the launch, in order."""
    for which, product in enumerate(products):
        for _ in range(product["calls"]):
            for place, launch in enumerate(product["launches"]):
                yield (which, place), product["workload"], launch


def _require(
    number: int, name: str, launch: Mapping[str, Any], got: Mapping[str, float | str]
) -> None:
    """Raise if a launch is not the one that is expected in its place."""
    kernel = str(got["kernel"]).split("(")[0]
    grid = [int(word) for word in re.findall(r"\d+", str(got["grid"]))]
    for what, want, have in (
        ("kernel", launch["kernel"], kernel),
        ("grid", list(launch["grid"]), grid),
    ):
        if want != have:
            raise InvalidProblemError(
                f"csv: launch {number}: expected {what} {want} of {name}, as the manifest has; "
                f"got {have}. Take both from one run, with the command that --print-ncu prints"
            )


def _record(
    product: Mapping[str, Any], launches: Sequence[Mapping[str, float | str]]
) -> dict[str, Any]:
    middle: dict[str, float | str] = {"kernel": str(launches[0]["kernel"])}
    for name in dict.fromkeys(name for launch in launches for name in launch):
        values = [v for one in launches if isinstance(v := one.get(name), float)]
        if values:
            middle[name] = median(values)
    return {
        **{field: product[field] for field in _FIELDS},
        "tile": product["details"].get("tile"),
        **counters(middle),
    }

"""Which launch of a profile belongs to which product.

A profiler numbers launches and names kernels. ``gemmjit bench profile`` writes down what it had
profiled, in order. Here the two are laid side by side: a launch gets a product's name only if
all launches are there, in that order, each with the kernel and the grid that the product has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from gemmjit.bench.profiling import counters
from gemmjit.errors import ManifestError

__all__ = ["labelled"]

#: What a record says of its product, beside the counters.
_FIELDS = ("workload", "case", "form", "dtype", "layout", "calls")

_WRITES = "what gemmjit bench profile --json writes"


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
    ManifestError
        If the manifest is none, if the two do not agree in number, order, kernels or grids, if
        the launches are of several processes, or if a product's result was wrong.
    """
    products = profile.get("products")
    if profile.get("kind") != "profile" or not isinstance(products, list) or not products:
        raise ManifestError(
            f"manifest: expected {_WRITES}, with one product or more; got kind "
            f"{profile.get('kind')!r}. Profile again with --json"
        )
    for number, product in enumerate(products):
        _require_product(f"products[{number}]", product)
    processes = {launch["process"] for launch in launches}
    if len(processes) > 1:
        raise ManifestError(
            f"csv: expected launches of one process; got {len(processes)}. "
            "Give each run its own file and manifest"
        )
    for number, ((_, name, launch), got) in enumerate(
        zip(_expected(products), launches, strict=False)
    ):
        _require(number, name, launch, got)
    number = sum(product["calls"] * len(product["launches"]) for product in products)
    if len(launches) != number:
        raise ManifestError(
            f"csv: expected {number} launches, as the manifest has; got {len(launches)}. "
            "Take both from one run, with the command that --print-ncu prints"
        )
    groups: dict[tuple[int, int], list[Mapping[str, float | str]]] = {}
    for (key, _, _), launch in zip(_expected(products), launches, strict=True):
        groups.setdefault(key, []).append(launch)
    return [_record(products[which], found) for (which, _), found in groups.items()]


def _require_product(where: str, product: object) -> None:
    """Raise if a manifest's product lacks what is read of it, or its result was wrong."""
    _part(where, {where: product}, where, _is_object, "an object")
    assert isinstance(product, Mapping)
    for name in _FIELDS:
        if name != "calls":
            _part(where, product, name, _is_text, "a text")
    _part(where, product, "calls", _is_count, "a whole number of at least 1")
    details = _part(where, product, "details", _is_object, "an object")
    if details.get("tile") is not None:
        _part(f"{where}: details", details, "tile", _is_text, "a text")
    launches = _part(where, product, "launches", _is_filled, "a list of one launch or more")
    for number, launch in enumerate(launches):
        place = f"{where}: launches[{number}]"
        _part(place, {place: launch}, place, _is_object, "an object")
        _part(place, launch, "kernel", _is_text, "a text")
        grid = _part(place, launch, "grid", _is_filled, "a list of numbers of blocks")
        for axis in range(len(grid)):
            _part(place, {"grid": grid[axis]}, "grid", _is_count, "whole numbers of at least 1")
    check = _part(where, product, "check", _is_object, "an object")
    if not _part(f"{where}: check", check, "ok", _is_flag, "true or false"):
        raise ManifestError(
            f"manifest: expected right results; that of {product['workload']} was wrong: "
            f"{check.get('reason')}. Leave it out and profile again"
        )


def _part(
    where: str,
    holder: Mapping[str, Any],
    name: str,
    fits: Callable[[Any], bool],
    expected: str,
) -> Any:
    """Return what `holder` has under a name, or raise if it is missing or does not fit."""
    if name in holder and fits(holder[name]):
        return holder[name]
    got = f"{holder[name]!r:.80}" if name in holder else "nothing"
    place = where if name == where else f"{where}: {name}"
    raise ManifestError(
        f"manifest: {place}: expected {expected}; got {got}. Give it {_WRITES}, as it was written"
    )


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_filled(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


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
            raise ManifestError(
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

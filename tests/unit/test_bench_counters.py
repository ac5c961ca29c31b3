"""``gemmjit bench counters`` on files that are broken: a message and status 1, no traceback."""

import json

import pytest

from gemmjit import cli

HEAD = '"ID","Process ID","Kernel Name","Grid Size","gpu__time_duration.sum"\n'
UNITS = '"","","","","ns"\n'
ROW = '"0","7","gemmjit_k1","(4, 1, 1)","150,000"\n'
PRODUCT = {
    "workload": "small fprop",
    "case": "small",
    "form": "fprop",
    "dtype": "bfloat16",
    "layout": "nn",
    "calls": 1,
    "launches": [{"kernel": "gemmjit_k1", "grid": [4, 1, 1]}],
    "check": {"ok": True},
    "details": {"tile": "64x64"},
}


@pytest.fixture
def counters(tmp_path, capsys):
    """Write a CSV and a manifest, run the command, return its status and what it says."""

    def run(csv, manifest=None):
        (tmp_path / "ncu.csv").write_bytes(csv.encode() if isinstance(csv, str) else csv)
        words = [str(tmp_path / "ncu.csv"), "--json", str(tmp_path / "out.json")]
        if manifest is not None:
            file = tmp_path / "p.json"
            file.write_bytes(manifest if isinstance(manifest, bytes) else manifest.encode())
            words += ["--manifest", str(file)]
        status = cli.main(["bench", "counters", *words])
        return status, capsys.readouterr().err

    return run


def manifest_of(product, **others):
    return json.dumps({"kind": "profile", "products": [product], **others})


def test_whole_files_serve(counters):
    assert counters(HEAD + UNITS + ROW, manifest_of(PRODUCT)) == (0, "")
    assert counters(HEAD + UNITS + ROW + "==PROF== Disconnected\n") == (0, "")


@pytest.mark.parametrize(
    ("product", "why"),
    [
        ({}, "products[0]: workload: expected a text; got nothing"),
        (3, "products[0]: expected an object; got 3"),
        (None, "products[0]: expected an object; got None"),
        (PRODUCT | {"calls": "1"}, "calls: expected a whole number of at least 1; got '1'"),
        (PRODUCT | {"calls": True}, "calls: expected a whole number of at least 1; got True"),
        (PRODUCT | {"calls": 10**15}, "csv: expected 1000000000000000 launches"),
        (PRODUCT | {"launches": []}, "launches: expected a list of one launch or more; got []"),
        (PRODUCT | {"launches": {"a": 1}}, "launches: expected a list"),
        (PRODUCT | {"launches": [7]}, "launches[0]: expected an object; got 7"),
        (PRODUCT | {"launches": [{"kernel": "k"}]}, "launches[0]: grid: expected"),
        (PRODUCT | {"launches": [{"grid": [1]}]}, "launches[0]: kernel: expected a text"),
        (PRODUCT | {"launches": [{"kernel": "k", "grid": ["1"]}]}, "grid: expected whole numbers"),
        (PRODUCT | {"check": True}, "check: expected an object; got True"),
        (PRODUCT | {"check": {}}, "check: ok: expected true or false; got nothing"),
        (PRODUCT | {"check": {"ok": False}}, "small fprop was wrong: None"),
        (PRODUCT | {"details": [1]}, "details: expected an object"),
        (PRODUCT | {"details": {"tile": 4}}, "details: tile: expected a text; got 4"),
        (PRODUCT | {"workload": "\x1b[2J"}, "workload: expected a text"),
        *(
            ({n: v for n, v in PRODUCT.items() if n != name}, f"{name}: expected")
            for name in PRODUCT
        ),
    ],
)
def test_a_product_that_is_none(counters, product, why):
    status, said = counters(HEAD + UNITS + ROW, manifest_of(product))
    assert status == 1
    assert said.startswith("gemmjit bench: ")
    assert why in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "expected a JSON file"),
        ('{"kind": ' * 100_000, "expected a JSON file"),
        (manifest_of(PRODUCT, date=float("nan")), "Out of range float"),
        (manifest_of(PRODUCT, date="\ud800"), "surrogates not allowed"),
        ("1" * 5000, "expected a JSON file"),
        (b"\xff{}", "expected a file of UTF-8"),
        ('{"kind": "profile", "products": {"a": 1}}', "one product or more"),
    ],
)
def test_a_manifest_that_cannot_be_read_or_written_again(counters, text, why):
    status, said = counters(HEAD + UNITS + ROW, text)
    assert status == 1
    assert why in said


def test_what_is_not_too_deep_to_be_read_is_written(counters):
    """The depth at which the one turns into the other is sought; in between is no traceback."""
    few, many = 1, 5000
    while many - few > 1:
        depth = (few + many) // 2
        text = manifest_of(PRODUCT)[:-1] + ', "date": ' + "[" * depth + "]" * depth + "}"
        status, said = counters(HEAD + UNITS + ROW, text)
        assert status == (1 if said else 0)
        few, many = (few, depth) if status else (depth, many)
    assert 10 < few < many < 5000


@pytest.mark.parametrize(
    ("csv", "why"),
    [
        (b"\xff" + HEAD.encode() + ROW.encode(), "csv: expected a file of UTF-8"),
        (HEAD + UNITS + ROW.rstrip() + ',"1"\n', "line 3: expected 5 cells"),
        (HEAD + UNITS + ROW[:20], "line 3: expected 5 cells, one for each column; got 3"),
        (f"remark\n{HEAD}{UNITS}remark\n{ROW}" + '"1"\n', "line 6: expected 5 cells"),
        (HEAD + UNITS + f'"{"9" * 200_000}"\n', "line 3: expected a row of CSV"),
        ("no table\n", 'expected a CSV table that begins with "ID"'),
        ("", 'expected a CSV table that begins with "ID"'),
    ],
)
def test_a_csv_that_is_none(counters, csv, why):
    status, said = counters(csv, manifest_of(PRODUCT))
    assert status == 1
    assert why in said

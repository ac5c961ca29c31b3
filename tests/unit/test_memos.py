"""Memos: a kernel that was rendered once is found again without being rendered."""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict
from pathlib import Path

import pytest
from cache_makers import leftovers, warnings
from memo_files import memo_files, start_anew, user_store
from tiny_kernel import TEMPLATE, Tiny

from gemmjit import templating
from gemmjit.arch import Arch
from gemmjit.build import build, build_first, find_first
from gemmjit.cache import Memo, memo_digest
from gemmjit.errors import MissingKernelError
from gemmjit.kernels import KERNELS
from gemmjit.ops.dispatch import spec_for
from gemmjit.problem import Problem
from gemmjit.templating import fingerprints

pytestmark = pytest.mark.usefixtures("place")


def test_a_second_process_renders_nothing(place, rendered):
    first = build(Tiny())
    (memo,) = user_store().sound_memos()
    assert memo.key == user_store().read(next(user_store().entries())).key
    start_anew(rendered)
    again = build(Tiny())
    assert rendered == []
    assert again.from_cache
    assert (again.identity, again.cubin, again.source) == (
        first.identity,
        first.cubin,
        first.source,
    )
    start_anew(rendered)
    assert find_first([Tiny()]).identity == first.identity
    assert rendered == []
    assert leftovers(user_store()) == []


def test_what_was_compiled_without_a_memo_gets_one(place, rendered):
    build(Tiny())
    shutil.rmtree(place / "cache" / "v1" / "memos")
    start_anew(rendered)
    assert build_first([Tiny()]).from_cache
    assert rendered == [Tiny().template]
    assert len(memo_files(place / "cache")) == 1
    start_anew(rendered)
    assert build_first([Tiny()]).from_cache
    assert rendered == []


@pytest.mark.parametrize("position", [0, 40, 100, 200, -2])
def test_a_flipped_bit_costs_a_rendering(place, rendered, caplog, position):
    identity = build(Tiny()).identity
    (path,) = memo_files(place / "cache")
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    start_anew(rendered)
    kernel = build(Tiny())
    assert kernel.from_cache
    assert kernel.identity == identity
    assert rendered == [Tiny().template]
    assert warnings(caplog) == []
    assert Memo.decode(path.read_bytes()).identity == identity  # mended


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff", b"x" * 5000])
def test_other_files_in_its_place_cost_a_rendering(place, rendered, caplog, data):
    build(Tiny())
    (path,) = memo_files(place / "cache")
    path.write_bytes(data)
    start_anew(rendered)
    assert build(Tiny()).from_cache
    assert rendered == [Tiny().template]
    assert warnings(caplog) == []


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling"])
def test_what_is_no_file_costs_a_rendering(place, rendered, caplog, kind):
    build(Tiny())
    (path,) = memo_files(place / "cache")
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(place / "nowhere")
    start_anew(rendered)
    assert build(Tiny()).from_cache
    assert rendered == [Tiny().template]
    assert warnings(caplog) == []


def test_the_memo_of_another_kernel_is_not_believed(place, rendered):
    two, three = build(Tiny(2)), build(Tiny(3))
    paths = {Memo.decode(p.read_bytes()).identity: p for p in memo_files(place / "cache")}
    shutil.copy(paths[three.identity], paths[two.identity])  # sound, in the place of another
    start_anew(rendered)
    assert build(Tiny(2)).identity == two.identity
    assert rendered == [Tiny().template]
    # Even one that was made to lead elsewhere gives no kernel of another name.
    digest = paths[two.identity].stem
    user_store().remember(
        digest, next(m.key for m in user_store().sound_memos() if m.entry == three.entry)
    )
    start_anew(rendered)
    assert build(Tiny(2)).entry == two.entry
    assert rendered == [Tiny().template]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_the_memo_of_another_user_is_not_believed(place, rendered, what):
    build(Tiny())
    (path,) = memo_files(place / "cache")
    os.chown(path if what == "file" else path.parent, 4321, 4321)
    start_anew(rendered)
    assert build(Tiny()).from_cache
    assert rendered == [Tiny().template]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_memo_that_others_can_write_is_not_believed(place, rendered, caplog, what):
    build(Tiny())
    (path,) = memo_files(place / "cache")
    (path if what == "file" else path.parent).chmod(0o777)
    start_anew(rendered)
    assert build(Tiny()).from_cache
    assert rendered == [Tiny().template]
    assert warnings(caplog) == []


def test_a_memo_that_leads_nowhere_is_none(place, rendered, compiles):
    build(Tiny())
    for stored in user_store().entries():
        user_store().remove(stored)
    start_anew(rendered)
    assert find_first([Tiny()]) is None
    assert not build(Tiny()).from_cache
    assert rendered == [Tiny().template]  # once for both
    assert len(compiles) == 2


def test_without_compiling_the_command_is_named_all_the_same(place, monkeypatch):
    build(Tiny())
    for stored in user_store().entries():
        user_store().remove(stored)
    assert memo_files(place / "cache")
    start_anew([])
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    with pytest.raises(MissingKernelError, match="gemmjit prewarm --kernel tiny --arch sm_90a"):
        build(Tiny())


def test_an_edited_template_is_rendered(place, rendered):
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    first = build(Tiny())
    times = path.stat()
    path.write_text(TEMPLATE.replace("*=", "+="))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    start_anew(rendered)
    second = build(Tiny())
    assert "+=" in second.source
    assert second.identity != first.identity
    path.write_text(TEMPLATE)
    start_anew(rendered)
    assert build(Tiny()).identity == first.identity
    assert rendered == []  # both are known


@pytest.mark.parametrize("change", ["added", "removed", "override", "path"])
def test_any_change_of_the_directories_is_another_memo(place, monkeypatch, change):
    extra = place / "templates" / "kernels" / "extra.cuh"
    if change == "removed":
        extra.write_text("int extra;\n")
    before = templating.fingerprint()
    (place / "other").mkdir()
    if change == "added":
        extra.write_text("int extra;\n")
    elif change == "removed":
        extra.unlink()
    elif change == "path":
        monkeypatch.setenv("GEMMJIT_TEMPLATE_PATH", f"{place / 'other'}:{place / 'templates'}")
    if change == "override":
        with templating.override(place / "other"):
            after = templating.fingerprint()
    else:
        after = templating.fingerprint()
    assert None not in (before, after)
    assert before != after


def test_an_override_is_rendered_and_then_remembered(place, rendered):
    plain = build(Tiny())
    (place / "mine" / "kernels").mkdir(parents=True)
    (place / "mine" / "kernels" / "tiny.cu.j2").write_text(TEMPLATE.replace("*=", "-="))
    for expected in ([Tiny().template], []):
        start_anew(rendered)
        with templating.override(place / "mine"):
            assert "-=" in build(Tiny()).source
        assert rendered == expected
    start_anew(rendered)
    assert build(Tiny()).identity == plain.identity
    assert rendered == []


def test_templates_that_change_while_one_is_rendered_leave_no_memo(place, monkeypatch):
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    real = templating.render

    def render(template, variables):
        path.write_text(TEMPLATE.replace("*=", "/="))
        return real(template, variables)

    monkeypatch.setattr(templating, "render", render)
    assert "/=" in build(Tiny()).source
    assert memo_files(place / "cache") == []


def test_what_was_rendered_of_other_templates_is_not_built(place, monkeypatch):
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    real = templating.render

    def render(template, variables):
        path.write_text(TEMPLATE.replace("*=", "/="))
        return real(template, variables)

    with monkeypatch.context() as patched:
        patched.setattr(templating, "render", render)
        assert find_first([Tiny()]) is None
    path.write_text(TEMPLATE)
    assert "*=" in build(Tiny()).source


def test_variables_options_target_and_entry_all_count():
    base = {"fingerprint": "f", "template": "t", "variables": {"a": 1, "b": (2, "x")},
            "entry": "e", "options": ("-o",), "target": "sm_90a"}  # fmt: skip
    changes = [
        {}, {"fingerprint": "g"}, {"template": "u"}, {"entry": "d"}, {"options": ()},
        {"options": ("-o", "-p")}, {"target": "sm_90"}, {"variables": {"a": True, "b": (2, "x")}},
        {"variables": {"a": "1", "b": (2, "x")}}, {"variables": {"a": 1.0, "b": (2, "x")}},
        {"variables": {"a": 1, "b": [2, "x"]}}, {"variables": {"a": 1, "b": (2, "x"), "c": None}},
        {"variables": {"b": (2, "x"), "a": 1}}, {"variables": {"a": 1, "b": ("2", "x")}},
        {"variables": OrderedDict(a=1, b=(2, "x")) | {"b": OrderedDict(x=1)}},
        {"variables": {"a": 1, "b": {"x": 1}}},
    ]  # fmt: skip
    digests = [memo_digest(**{**base, **change}) for change in changes]
    assert None not in digests
    assert len(set(digests)) == len(changes)
    assert memo_digest(**base) == digests[0]


def test_a_variable_that_is_no_plain_value_has_no_memo():
    for value in (object(), {1, 2}, Path("x"), [object()], {"x": object()}):
        assert memo_digest("f", "t", {"a": value}, "e", (), "sm_90a") is None


def test_every_kernel_has_a_memo():
    problem = Problem.contiguous(num_groups=8, rows=1024, n=1024, k=1024)
    for name in KERNELS:
        spec = spec_for(problem, Arch(90, "a"), name)
        assert memo_digest("f", spec.template, spec.variables, spec.entry, (), "sm_90a")


@pytest.mark.parametrize("limit", ["_MOST_FILES", "_MOST_BYTES"])
def test_a_directory_too_large_to_read_has_no_memo(place, rendered, monkeypatch, limit):
    monkeypatch.setattr(fingerprints, limit, 1)
    (place / "templates" / "more").write_text("x" * 100)
    assert templating.fingerprint() is None
    for _ in range(2):
        start_anew(rendered)
        build(Tiny())
        assert rendered == [Tiny().template]
    assert memo_files(place / "cache") == []


def test_a_folder_that_links_to_itself_comes_to_an_end(place):
    (place / "templates" / "loop").symlink_to(place / "templates")
    assert templating.fingerprint() is None


@pytest.fixture
def versions(monkeypatch):
    """Let Jinja and MarkupSafe be of given versions, or unknown ones, for this test."""

    def choose(**known):
        def installed(name, part):
            return (known[name], Path(part)) if name in known else None

        monkeypatch.setattr(fingerprints, "installed", installed)
        fingerprints._renderer.cache_clear()

    yield choose
    monkeypatch.undo()
    fingerprints._renderer.cache_clear()


@pytest.mark.parametrize("known", [{"jinja2": "3.1"}, {"markupsafe": "3.0"}])
def test_an_unknown_jinja_has_no_memo(versions, known):
    versions(**known)
    assert templating.fingerprint() is None


def test_another_jinja_is_another_memo(versions):
    fingerprint = {templating.fingerprint()}
    for jinja in ("0.1", "0.2"):
        versions(jinja2=jinja, markupsafe="3.0")
        fingerprint.add(templating.fingerprint())
    assert None not in fingerprint
    assert len(fingerprint) == 3

"""build(): memory, layers, switches, threads and processes, with a tiny template of its own."""

from __future__ import annotations

import errno
import importlib
import json
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gemmjit import build as build_module
from gemmjit import logs, templating
from gemmjit.arch import Arch
from gemmjit.build import build, build_first, clear_memory, find_first
from gemmjit.cache import Store, stats
from gemmjit.compiler import Compiler, get_compiler, nvrtc
from gemmjit.errors import (
    CompileError,
    MissingKernelError,
    NvrtcNotFoundError,
    TemplateError,
    UnsupportedArchError,
)

cache_stats = importlib.import_module("gemmjit.cache.stats")

TEMPLATE = """\
extern "C" __global__ void __launch_bounds__(${ threads }) ${ entry }(float* x) {
  x[threadIdx.x] *= ${ factor };
}
"""


@dataclass(frozen=True)
class Tiny:
    """A specification of the smallest kernel there is."""

    factor: int = 2
    target: Arch = field(default_factory=lambda: Arch(90, "a"))
    template: str = "kernels/tiny.cu.j2"
    smem_bytes: int = 0
    threads: int = 128
    compiled_threads: int = 128
    options: tuple[str, ...] = ()
    name: str = "tiny"
    config: str = "128"
    variant: str = "f32"

    @property
    def entry(self) -> str:
        return f"tiny_times_{self.factor}"

    @property
    def variables(self) -> dict[str, object]:
        return {"entry": self.entry, "factor": self.factor, "threads": self.compiled_threads}

    @property
    def prewarm_command(self) -> str:
        return f"gemmjit prewarm --kernel tiny --arch {self.target}"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty memory, a cache directory, and the template in front of gemmjit's own."""
    (tmp_path / "templates" / "kernels").mkdir(parents=True)
    (tmp_path / "templates" / "kernels" / "tiny.cu.j2").write_text(TEMPLATE)
    monkeypatch.setenv("GEMMJIT_TEMPLATE_PATH", str(tmp_path / "templates"))
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("GEMMJIT_CACHE_PATH", "GEMMJIT_DISABLE_JIT", "GEMMJIT_CACHE_MAX_SIZE"):
        monkeypatch.delenv(name, raising=False)
    logs._warned.clear()
    clear_memory()
    yield tmp_path
    clear_memory()


@pytest.fixture
def compiles(monkeypatch):
    """The names of the kernels that NVRTC compiled, in order."""
    real, seen = Compiler.compile, []

    def compile_and_tell(self, source, **more):
        seen.append(source)
        return real(self, source, **more)

    monkeypatch.setattr(Compiler, "compile", compile_and_tell)
    return seen


def messages(caplog, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == level]


def relabel(store: Store, version: str) -> None:
    """Let the entries of a store be the work of another NVRTC."""
    for stored in list(store.entries()):
        entry = store.read(stored)
        store.remove(stored)
        assert store.publish(replace(entry, nvrtc_version=version))


# From specification to kernel


def test_a_kernel_says_what_it_is():
    kernel = build(Tiny())
    assert kernel.name == "tiny"
    assert kernel.entry == "tiny_times_2"
    assert kernel.target == Arch(90, "a")
    assert "x[threadIdx.x] *= 2;" in kernel.source
    assert ".entry tiny_times_2(" in kernel.ptx
    assert kernel.cubin[:4] == b"\x7fELF"
    assert 0 < kernel.registers == kernel.resources.registers < 32
    assert kernel.spills == 0
    assert kernel.occupancy == 16
    assert kernel.nvrtc_version == get_compiler().version
    assert not kernel.from_cache
    assert len(kernel.identity) == 64
    assert (kernel.config, kernel.variant, kernel.threads) == ("128", "f32", 128)


def test_memory_serves_the_same_object(monkeypatch, place):
    monkeypatch.delenv("GEMMJIT_TEMPLATE_PATH")
    monkeypatch.setattr(templating.paths, "templates_root", lambda: place / "templates")
    kernel = build(Tiny())
    monkeypatch.setattr(templating, "render", None)  # nothing is rendered, hashed or read again
    shutil.rmtree(place / "cache")
    assert build(Tiny()) is kernel


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(build_module, "MEMORY_LIMIT", 2)
    for factor in (2, 3, 4):
        build(Tiny(factor))
    assert len(build_module._by_key) == 2


def test_specifications_with_the_same_text_share_the_cubin_and_keep_their_own_facts(compiles):
    one = build(Tiny(smem_bytes=0))
    two = build(Tiny(smem_bytes=4096, config="other"))
    assert len(compiles) == 1
    assert two.cubin is one.cubin
    assert (two.smem_bytes, two.config) == (4096, "other")
    assert (one.smem_bytes, one.config) == (0, "128")


def test_br106_an_edited_template_is_another_kernel(place, compiles):
    first = build(Tiny())
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    times = path.stat()
    path.write_text(TEMPLATE.replace("*=", "+="))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = build(Tiny())
    assert second.identity != first.identity
    assert len(compiles) == 2
    path.write_text(TEMPLATE)
    assert build(Tiny()).cubin == first.cubin
    assert len(compiles) == 2


def test_an_override_does_not_leak_into_what_comes_after(place, monkeypatch):
    monkeypatch.delenv("GEMMJIT_TEMPLATE_PATH")
    monkeypatch.setattr(templating.paths, "templates_root", lambda: place / "templates")
    plain = build(Tiny())
    (place / "mine" / "kernels").mkdir(parents=True)
    (place / "mine" / "kernels" / "tiny.cu.j2").write_text(TEMPLATE.replace("*=", "-="))
    with templating.override(place / "mine"):
        assert "-=" in build(Tiny()).source
    assert build(Tiny()) is plain


def test_a_wrong_template_is_told_each_time_and_can_be_mended(place, compiles):
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    path.write_text(TEMPLATE.replace("*= ", "*= oops"))
    for _ in range(2):
        with pytest.raises(CompileError, match=r"kernels/tiny\.cu\.j2\(2\): error"):
            build(Tiny())
    assert len(compiles) == 2
    path.write_text(TEMPLATE)
    assert build(Tiny()).registers > 0


def test_a_template_that_defines_another_kernel_is_told(place):
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    path.write_text(TEMPLATE.replace("${ entry }", "x${ entry }"))
    with pytest.raises(CompileError, match="expected a kernel named tiny_times_2"):
        build(Tiny())


def test_a_missing_template_is_told():
    with pytest.raises(TemplateError, match="kernels/none"):
        build(Tiny(template="kernels/none.cu.j2"))


@pytest.mark.parametrize(
    ("spec", "number"),
    [(Tiny(threads=256), "compiled for 128"), (Tiny(smem_bytes=300_000), "300000")],
)
def test_br065_br067_what_can_never_be_launched_is_told_offline(spec, number):
    with pytest.raises(CompileError, match=f"can never be launched: .*{number}"):
        build(spec)


def test_spills_are_reported_and_no_error(place, caplog):
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    body = "float a[64]; for (int i = 0; i < 64; i++) a[i] = x[i * n + threadIdx.x];"
    body += "for (int j = 0; j < n; j++) for (int i = 0; i < 64; i++) a[i] *= a[(i + 7) % 64];"
    body += "for (int i = 0; i < 64; i++) x[i * n + threadIdx.x] = a[i] * ${ factor };"
    path.write_text(
        'extern "C" __global__ void __launch_bounds__(${ threads }, 2) ${ entry }'
        "(float* x, int n) {" + body + "}"
    )
    kernel = build(Tiny(threads=1024, compiled_threads=1024))
    assert kernel.spills > 100
    assert f"spills {kernel.spills} bytes" in messages(caplog, logging.WARNING)[0]


# Disk


FRESH = """
import dataclasses, json, logging, sys
sys.path.insert(0, sys.argv[1])
import test_build_helper as t
from gemmjit.build import build
from gemmjit.cache import stats
kernel = build(t.Tiny())
loaded = 'nvrtc' in open('/proc/self/maps').read()
print(json.dumps([kernel.from_cache, dataclasses.asdict(stats()), kernel.identity, loaded]))
"""


def fresh_process(place: Path, **variables: str):
    shutil.copy(__file__, place / "test_build_helper.py")
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(place)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_br113_a_second_process_compiles_nothing_and_does_not_even_load_nvrtc(place):
    (cached, counts, identity, _), _ = fresh_process(place)
    assert not cached
    assert (counts["hits"], counts["misses"], counts["compiles"]) == (0, 1, 1)
    (cached, counts, again, loaded), _ = fresh_process(place)
    assert cached
    assert (counts["hits"], counts["misses"], counts["compiles"]) == (1, 0, 0)
    assert again == identity
    assert not loaded


def test_br110_br111_identity_depends_neither_on_place_nor_on_history(place):
    identities = set()
    for index, (seed, user) in enumerate((("0", "a"), ("1", "b"), ("random", "c"))):
        other = place / f"copy {index} é"
        shutil.copytree(place / "templates", other / "templates")
        variables = {
            "PYTHONHASHSEED": seed,
            "USER": user,
            "HOME": str(other),
            "CUDA_HOME": f"/usr/local/cuda-{index}",
            "GEMMJIT_TEMPLATE_PATH": str(other / "templates"),
            "GEMMJIT_CACHE_DIR": str(other / "cache"),
        }
        identities.add(fresh_process(place, **variables)[0][2])
    for factor in (5, 6):
        build(Tiny(factor))
    identities.add(build(Tiny()).identity)
    assert len(identities) == 1


def test_br104_another_nvrtc_compiles_again_and_both_stay(place, compiles):
    build(Tiny())
    relabel(Store(place / "cache"), "13.0.48")
    clear_memory()
    kernel = build(Tiny())
    assert not kernel.from_cache
    assert len(compiles) == 2
    versions = {stored.nvrtc_version for stored in Store(place / "cache").entries()}
    assert versions == {"13.0.48", get_compiler().version}


def test_another_version_of_gemmjit_shares_the_entry(place, compiles):
    build(Tiny())
    store = Store(place / "cache")
    (stored,) = store.entries()
    entry = store.read(stored)
    store.remove(stored)
    store.publish(replace(entry, gemmjit_version="99.0"))
    clear_memory()
    assert build(Tiny()).from_cache
    assert len(compiles) == 1


def test_br097_a_damaged_entry_is_compiled_again_with_one_warning(place, compiles, caplog):
    build(Tiny())
    for _ in range(2):
        clear_memory()
        (stored,) = Store(place / "cache").entries()
        cubin = stored.path / "kernel.cubin"
        if len(compiles) == 1:
            cubin.write_bytes(cubin.read_bytes()[:10])
        assert build(Tiny()).cubin[:4] == b"\x7fELF"
    assert len(compiles) == 2
    assert len(messages(caplog, logging.WARNING)) == 1


def test_a_directory_that_cannot_be_used_costs_one_warning_and_no_call(
    place, compiles, caplog, monkeypatch
):
    (place / "file").write_text("")
    monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(place / "file"))
    assert build(Tiny(2)).registers > 0
    assert build(Tiny(3)).registers > 0
    assert len(messages(caplog, logging.WARNING)) == 1
    assert "expected a directory" in messages(caplog, logging.WARNING)[0]


def test_br114_the_loser_of_a_race_uses_its_own_bytes(place, monkeypatch):
    def rename(source, target):
        raise FileExistsError(17, "another was faster, and cannot be seen")

    monkeypatch.setattr(os, "rename", rename)
    kernel = build(Tiny())
    assert not kernel.from_cache
    assert kernel.cubin[:4] == b"\x7fELF"


def test_size_limit_is_kept_when_kernels_are_published(place, monkeypatch):
    build(Tiny(2))
    store = Store(place / "cache")
    (old,) = store.entries()
    os.utime(old.path, (1, 1))
    monkeypatch.setenv("GEMMJIT_CACHE_MAX_SIZE", str(old.num_bytes + 100))
    build(Tiny(3))
    (left,) = store.entries()
    assert left.folder.startswith("tiny_times_3")


# Layers and switches


def shared(place: Path, monkeypatch, version: str | None = None) -> Path:
    """Move what the user's directory has into a directory that is only read."""
    if version is not None:
        relabel(Store(place / "cache"), version)
    (place / "cache").rename(place / "image")
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", f"{place / 'none'}{os.pathsep}{place / 'image'}")
    clear_memory()
    return place / "image"


@pytest.mark.parametrize("version", [None, "13.0.48", "13.99.0"])
def test_a_layer_to_read_serves_whatever_nvrtc_of_the_major_release_made_it(
    place, compiles, monkeypatch, version
):
    build(Tiny())
    image = shared(place, monkeypatch, version)
    before = sorted((p, p.stat().st_mtime_ns) for p in image.rglob("*"))
    kernel = build(Tiny())
    assert kernel.from_cache
    assert kernel.nvrtc_version == (version or get_compiler().version)
    assert len(compiles) == 1
    assert sorted((p, p.stat().st_mtime_ns) for p in image.rglob("*")) == before


def test_a_layer_of_another_major_release_does_not_serve(place, compiles, monkeypatch):
    build(Tiny())
    shared(place, monkeypatch, "12.9.86")
    assert not build(Tiny()).from_cache
    assert len(compiles) == 2


def test_ones_own_compilers_work_is_preferred_over_an_earlier_layers(place, monkeypatch):
    build(Tiny())
    shared(place, monkeypatch)
    shutil.copytree(place / "image", place / "none")
    relabel(Store(place / "none"), "13.0.48")
    assert build(Tiny()).nvrtc_version == get_compiler().version


def test_without_jit_a_miss_names_the_command_and_the_places(place, compiles, monkeypatch):
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", str(place / "image"))
    with pytest.raises(MissingKernelError) as caught:
        build(Tiny())
    message = str(caught.value)
    assert "gemmjit prewarm --kernel tiny --arch sm_90a" in message
    assert (
        f"{place / 'cache'} (it does not exist); {place / 'image'} (it does not exist)" in message
    )
    assert "GEMMJIT_DISABLE_JIT" in message
    assert compiles == []
    monkeypatch.delenv("GEMMJIT_DISABLE_JIT")
    build(Tiny())
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    clear_memory()
    assert build(Tiny()).from_cache


def test_without_jit_a_miss_says_of_each_place_why_it_does_not_serve(place, monkeypatch):
    build(Tiny())
    image = shared(place, monkeypatch)
    names = ("missing", "open", "file", "empty", "locked", "older", "damaged", "others")
    for name in ("older", "damaged", "others"):
        shutil.copytree(image, place / name)
    relabel(Store(place / "older"), "12.9.1")
    for cubin in (place / "damaged").rglob("kernel.cubin"):
        cubin.write_bytes(b"")
    (place / "file").write_text("")
    for name in ("open", "empty", "locked"):
        (place / name).mkdir()
    (place / "open").chmod(0o777)
    for stored in Store(place / "others").entries():
        os.rename(stored.path.parent, stored.path.parent.with_name("gemmjit_k9-" + "0" * 32))
    real = os.listdir

    def listdir(path):
        if Path(path) == place / "locked":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setenv("GEMMJIT_CACHE_PATH", os.pathsep.join(str(place / n) for n in names))
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    clear_memory()
    with pytest.raises(MissingKernelError) as caught:
        build(Tiny())
    reasons = {
        "cache": "it does not exist",
        "missing": "it does not exist",
        "open": "refused, everybody can write to it",
        "file": "refused, it is a file",
        "empty": "it is empty",
        "locked": "it cannot be read: Permission denied",
        "older": "it has it from NVRTC 12.9.1, which CUDA 13 cannot use",
        "damaged": "what it has of it cannot be used",
        "others": "it has 1 other kernels for sm_90a",
    }
    told = "; ".join(f"{place / name} ({reason})" for name, reason in reasons.items())
    assert f"it is in none of: {told}. Compile it beforehand" in str(caught.value)


def test_without_jit_another_nvrtcs_work_serves(place, compiles, monkeypatch):
    build(Tiny())
    relabel(Store(place / "cache"), "13.0.48")
    clear_memory()
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    assert build(Tiny()).nvrtc_version == "13.0.48"
    assert len(compiles) == 1


@pytest.fixture
def no_nvrtc(monkeypatch):
    def missing():
        raise NvrtcNotFoundError("The NVRTC library cannot be loaded.")

    def remove() -> None:
        monkeypatch.setattr(build_module, "get_compiler", missing)
        monkeypatch.setattr(build_module, "installed_version", lambda: None)
        clear_memory()

    return remove


def test_br132_without_nvrtc_cached_kernels_run_and_others_say_what_is_missing(
    place, no_nvrtc, caplog
):
    build(Tiny(2))
    build(Tiny(3))
    relabel(Store(place / "cache"), "13.0.48")
    no_nvrtc()
    assert build(Tiny(2)).from_cache
    assert build(Tiny(3)).from_cache
    assert len(messages(caplog, logging.WARNING)) == 1
    misses = stats().misses
    with pytest.raises(NvrtcNotFoundError):
        build(Tiny(4))
    assert stats().misses == misses + 1


def test_br132_without_builtins_another_nvrtcs_work_serves(place, monkeypatch):
    build(Tiny())
    relabel(Store(place / "cache"), "13.0.48")
    clear_memory()

    def compile_without_builtins(self, source, **more):
        raise NvrtcNotFoundError("The builtins of NVRTC cannot be loaded.")

    monkeypatch.setattr(Compiler, "compile", compile_without_builtins)
    assert build(Tiny()).nvrtc_version == "13.0.48"
    with pytest.raises(NvrtcNotFoundError):
        build(Tiny(3))


def test_a_second_nvrtc_in_the_process_finds_its_own_work(place, compiles, monkeypatch):
    """The package says one version, the library that was loaded first is another."""
    monkeypatch.setattr(build_module, "installed_version", lambda: "13.0.48")
    build(Tiny())
    clear_memory()
    assert build(Tiny()).from_cache
    assert len(compiles) == 1


def test_lineinfo_is_another_kernel(monkeypatch, compiles):
    plain = build(Tiny())
    monkeypatch.setenv("GEMMJIT_LINEINFO", "1")
    lines = build(Tiny())
    assert lines.identity != plain.identity
    assert b".debug_line" in lines.cubin


# Threads and processes


@pytest.mark.parametrize("disk", [True, False])
def test_threads_that_ask_at_once_compile_once(place, compiles, monkeypatch, disk):
    if not disk:  # so that no lock on disk does the work of the one in memory
        (place / "file").write_text("")
        monkeypatch.setenv("GEMMJIT_CACHE_DIR", str(place / "file"))
    gate, kernels = threading.Barrier(12), []

    def ask() -> None:
        gate.wait()
        kernels.append(build(Tiny()))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiles) == 1
    assert len({kernel.cubin for kernel in kernels}) == 1
    assert len(kernels) == 12


def test_threads_that_wait_for_a_failure_get_the_failure_and_leave_nothing_behind(place):
    path = place / "templates" / "kernels" / "tiny.cu.j2"
    path.write_text(TEMPLATE.replace("*= ", "*= oops"))
    gate, errors = threading.Barrier(6), []

    def ask() -> None:
        gate.wait()
        try:
            build(Tiny())
        except CompileError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 6
    assert build_module._pending == {}


def child(queue) -> None:
    try:
        logs.warn_once("build", ("child",), "a warning takes a lock too")
        queue.put([build(Tiny(factor)).registers for factor in (2, 3)])
    except BaseException as error:
        queue.put(repr(error))


def test_a_forked_child_builds_even_if_a_thread_was_building(compiles):
    build(Tiny(2))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    held = threading.Event(), threading.Event()

    def hold() -> None:  # the state in which a fork in the middle of a build finds the module
        with build_module._lock, logs._lock, cache_stats._lock, nvrtc._lock:
            held[0].set()
            held[1].wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held[0].wait(30)
    process = context.Process(target=child, args=(queue,))
    process.start()
    held[1].set()
    holder.join()
    process.join(60)
    alive = process.is_alive()
    if alive:
        process.kill()
    assert not alive
    registers = queue.get()
    assert registers == [build(Tiny(factor)).registers for factor in (2, 3)]


# Several targets for one device


def on(*targets: str) -> list[Tiny]:
    return [Tiny(target=Arch.parse(target)) for target in targets]


def test_what_a_cache_has_for_a_later_target_serves_before_anything_is_compiled(compiles):
    build(*on("sm_80"))
    clear_memory()
    for _ in range(2):  # from the directory, then from memory
        kernel = build_first(on("sm_86", "sm_80"))
        assert (kernel.target, kernel.from_cache) == (Arch(80), True)
    assert len(compiles) == 1


def test_the_first_target_is_compiled_if_no_cache_has_any(compiles):
    assert build_first(on("sm_86", "sm_80")).target == Arch(86)
    assert len(compiles) == 1
    # And it is preferred once it is there.
    build(*on("sm_80"))
    clear_memory()
    assert build_first(on("sm_86", "sm_80")).target == Arch(86)


def test_an_exact_build_never_takes_another_target():
    build_first(on("sm_86", "sm_80"))
    assert build(*on("sm_80")).target == Arch(80)


def test_a_target_that_nvrtc_does_not_know_is_passed_over(monkeypatch):
    compiler = get_compiler()
    monkeypatch.setattr(compiler, "supported", tuple(n for n in compiler.supported if n != 86))
    assert build_first(on("sm_86", "sm_80")).target == Arch(80)
    with pytest.raises(UnsupportedArchError, match="sm_86"):
        build_first(on("sm_86"))


def test_without_jit_every_target_is_looked_for(monkeypatch, place):
    build(*on("sm_80"))
    clear_memory()
    monkeypatch.setenv("GEMMJIT_DISABLE_JIT", "1")
    assert build_first(on("sm_86", "sm_80")).target == Arch(80)
    with pytest.raises(MissingKernelError, match="--arch sm_89"):
        build_first(on("sm_89", "sm_86"))


def test_br132_without_nvrtc_another_nvrtcs_work_for_a_later_target_serves(place, no_nvrtc):
    build(*on("sm_80"))
    relabel(Store(place / "cache"), "13.0.48")
    no_nvrtc()
    assert build_first(on("sm_86", "sm_80")).target == Arch(80)
    with pytest.raises(NvrtcNotFoundError):
        build_first(on("sm_90a", "sm_90"))


def test_looking_compiles_nothing(compiles):
    assert find_first(on("sm_86", "sm_80")) is None
    assert not compiles
    build(*on("sm_80"))
    clear_memory()
    found = find_first(on("sm_86", "sm_80"))
    assert found is not None
    assert found.target == Arch(80)
    assert len(compiles) == 1


def test_an_edit_of_a_template_is_seen_by_a_choice_of_targets(place):
    build_first(on("sm_86", "sm_80"))
    (place / "templates" / "kernels" / "tiny.cu.j2").write_text(TEMPLATE.replace("*=", "+="))
    assert "+=" in build_first(on("sm_86", "sm_80")).source


# Logs


def test_one_line_for_a_compile_and_one_at_debug_for_a_hit(caplog):
    caplog.set_level(logging.DEBUG, "gemmjit")
    kernel = build(Tiny())
    (line,) = messages(caplog, logging.INFO)
    assert line.startswith("compiled tiny (tiny_times_2) for sm_90a in ")
    told = f" ms: {kernel.registers} registers, 0 bytes spilled; {Tiny().prewarm_command}"
    assert line.endswith(told)
    clear_memory()
    build(Tiny())
    assert len(messages(caplog, logging.INFO)) == 1
    (hit,) = (m for m in messages(caplog, logging.DEBUG) if "comes from the cache" in m)
    assert hit.endswith(f"; {Tiny().prewarm_command}")


def test_silent_unless_asked(place):
    assert fresh_process(place)[1] == ""
    assert fresh_process(place, GEMMJIT_LOG_LEVEL="info")[1] == ""
    told = fresh_process(place, GEMMJIT_LOG_LEVEL="debug")[1]
    assert told.count("comes from the cache") == 1
    shutil.rmtree(place / "cache")
    told = fresh_process(place, GEMMJIT_LOG_LEVEL="INFO")[1]
    assert told.count("\n") == 1
    assert "compiled tiny (tiny_times_2) for sm_90a" in told


def test_an_unknown_log_level_is_told(place):
    told = fresh_process(place, GEMMJIT_LOG_LEVEL="loud")[1]
    assert "GEMMJIT_LOG_LEVEL: expected one of debug, info, warning, error; got 'loud'" in told


def test_counts_are_kept():
    before = stats()
    build(Tiny())
    clear_memory()
    build(Tiny())
    after = stats()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 1)
    assert after.compiles - before.compiles == 1


@pytest.mark.skipif(nvrtc.installed_version() is None, reason="NVRTC is not the package's")
def test_versions_are_those_of_the_package():
    assert build(Tiny()).nvrtc_version == nvrtc.installed_version()

"""The cache on real file systems that are full, out of inodes, or read-only (BR-099, BR-100).

They are mounted in a user namespace of the test's own; where the system forbids that, the tests
are skipped, and the simulated ones in test_cache_trouble.py remain.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cache_makers import VERSION, fake_cubin, make

from gemmjit.cache import Entry, Store, stats

PROGRAM = """
import json, logging, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from cache_makers import VERSION, fake_cubin, leftovers, make
from gemmjit.cache import Store

told = []
class Tell(logging.Handler):
    def emit(self, record): told.append(record.getMessage())
logging.getLogger("gemmjit").addHandler(Tell(logging.WARNING))

root = Path(sys.argv[1])
store = Store(root / "cache")
entries = [make(f"int a{i};  // a kernel\\n", cubin=fake_cubin(size=9000)) for i in range(12)]
if sys.argv[3] == "write":
    published = [store.publish(entry) for entry in entries]
else:
    published = [store.publish(entry) for entry in entries[6:]]
loaded = [store.load(entry.key, VERSION) == entry for entry in entries]
print(json.dumps([published, loaded, told, leftovers(store), len(store.verify())]))
"""


def inside(mount: str, place: Path, how: str = "write"):
    """Run the program in a namespace of its own, after a mount."""
    script = f'{mount} && exec "$0" -c "$1" "$2" "$3" "$4"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    command += [sys.executable, PROGRAM, str(place), str(Path(__file__).parents[1]), how]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this system forbids a mount: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("limit", ["size=96k", "nr_inodes=40"])
def test_br099_a_full_file_system_keeps_what_it_has_and_costs_one_warning(tmp_path, limit):
    mount = f"mount -t tmpfs -o {limit} tmpfs '{tmp_path}'"
    published, loaded, told, leftovers, damaged = inside(mount, tmp_path)
    assert True in published
    assert False in published
    assert loaded == published  # what was told to be there is, and nothing else
    assert len(told) == 1
    assert "cannot be written" in told[0]
    assert leftovers == []
    assert damaged == 0


def test_br100_a_read_only_file_system_is_read(tmp_path):
    store = Store(tmp_path / "cache")
    for i in range(6):
        store.publish(make(f"int a{i};  // a kernel\n", cubin=fake_cubin(size=9000)))
    mount = f"mount --bind '{tmp_path}' '{tmp_path}' && mount -o remount,bind,ro '{tmp_path}'"
    published, loaded, told, _, damaged = inside(mount, tmp_path, "read")
    assert published == [False] * 6
    assert loaded == [True] * 6 + [False] * 6
    assert len(told) == 1
    assert "Read-only file system" in told[0]
    assert damaged == 0


def test_eviction_and_publication_under_readers_are_never_taken_for_damage(tmp_path, caplog):
    entries = [make(f"int a{i};  // a kernel\n", cubin=fake_cubin(seed=i)) for i in range(4)]
    end = time.monotonic() + 1.5
    errors: list[BaseException] = []
    seen: list[Entry | None] = []
    before = stats().damaged

    def repeat(work) -> None:
        try:
            while time.monotonic() < end:
                work(Store(tmp_path / "cache"))
        except BaseException as error:
            errors.append(error)

    def evict(store: Store) -> None:
        store.prune(0, grace_seconds=-10.0)

    def publish(store: Store) -> None:
        for entry in entries:
            assert store.publish(entry)

    def load(store: Store) -> None:
        for entry in entries:
            found = store.load(entry.key, VERSION)
            assert found in (None, entry)
            seen.append(found)

    threads = [threading.Thread(target=repeat, args=(w,)) for w in (evict, publish, load, load)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert None in seen
    assert any(seen)
    assert stats().damaged == before
    assert caplog.records == []

"""Allocators: what nodes tell them, and when free memory is given back."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import galileo
from galileo.config import NODE_ENVIRONMENT
from galileo.server.malloc_tuning import (
    APART_S,
    BUSY_MAX_S,
    QUIET_SHARE,
    WORTH_S,
    IdleDetector,
    freeze_modules,
    give_back,
)

SETTLES = """
import os, subprocess, sys
from galileo.server.malloc_tuning import configure_malloc
import pyarrow as pa
configure_malloc()
show = "import os, pyarrow; print(pyarrow.default_memory_pool().backend_name)"
child = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True).stdout
print(pa.default_memory_pool().backend_name, os.environ["MALLOC_ARENA_MAX"], child.strip())
"""
ARENAS = """
import ctypes, re, threading
from galileo.server.malloc_tuning import configure_malloc
configure_malloc()
held, go = [], threading.Barrier(9)
def hold():
    go.wait()
    held.append(bytearray(100_000))
    go.wait()
threads = [threading.Thread(target=hold) for _ in range(8)]
[thread.start() for thread in threads]
go.wait()
go.wait()
[thread.join() for thread in threads]
heap = 64 << 20
maps = [line.split()[:2] for line in open("/proc/self/maps")]
areas = [(*(int(end, 16) for end in area.split("-")), rights) for area, rights in maps]
# A heap of an arena beside the first one: aligned, what is used of it, then what is reserved.
print(sum(
    start % heap == 0 and rights.startswith("rw") and end == next_start
    and next_rights.startswith("---") and next_end == start + heap
    for (start, end, rights), (next_start, next_end, next_rights) in zip(areas, areas[1:])
))
"""
GIVES_BACK = """
import sys
import psutil
from galileo.server.malloc_tuning import give_back
held = [bytes(4_000) for _ in range(30_000)]
last = bytes(4_000)
del held[:-1]
before = psutil.Process().memory_info().rss
give_back()
print(before - psutil.Process().memory_info().rss)
"""
GIVES_BACK_OF_THREADS = """
import threading

import psutil

from galileo.server.malloc_tuning import give_back


def work():
    kept = [bytes(100_000) for _ in range(80)]
    together.wait()
    kept.clear()


together = threading.Barrier(6)
# After a large piece was freed, the C library keeps more of what is free at a heap's end.
large = bytes(30_000_000)
del large
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
before = psutil.Process().memory_info().rss
give_back()
print(before - psutil.Process().memory_info().rss)
"""


def environment(**more: str) -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name not in NODE_ENVIRONMENT
    } | more


def run(directory: Path, code: str, **more: str) -> str:
    program = directory / "program.py"
    program.write_text(code)
    command = [sys.executable, str(program)]
    done = subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_configure_malloc_selects_the_system_pool_for_children_too(tmp_path: Path) -> None:
    assert run(tmp_path, SETTLES) == "system 1 system"


@pytest.mark.slow
def test_configure_malloc_keeps_settings_of_the_environment(tmp_path: Path) -> None:
    more = {"MALLOC_ARENA_MAX": "7", "ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}
    assert run(tmp_path, SETTLES, **more) == "mimalloc 7 mimalloc"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the C heap is glibc's")
def test_configure_malloc_bounds_the_arenas_of_threads(tmp_path: Path) -> None:
    assert int(run(tmp_path, ARENAS)) <= 2
    assert int(run(tmp_path, ARENAS, MALLOC_ARENA_MAX="8")) > 2


@pytest.mark.slow
def test_local_cluster_nodes_have_the_malloc_settings(tmp_path: Path) -> None:
    with galileo.LocalCluster(1, 1, tmp_path) as running:
        found = psutil.Process(running.nodes[0].pid).environ()
    assert {name: found[name] for name in NODE_ENVIRONMENT} == dict(NODE_ENVIRONMENT)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the C heap is glibc's")
def test_give_back_returns_free_memory_inside_the_heap(tmp_path: Path) -> None:
    given = int(run(tmp_path, GIVES_BACK, **NODE_ENVIRONMENT))
    assert given > 60_000_000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the C heap is glibc's")
def test_give_back_returns_memory_freed_by_threads(tmp_path: Path) -> None:
    given = int(run(tmp_path, GIVES_BACK_OF_THREADS, **NODE_ENVIRONMENT))
    assert given > 27_000_000


def test_give_back_without_free_memory_is_harmless() -> None:
    give_back()
    give_back()


# --- when ------------------------------------------------------------------------------------


def looks(*shares: float, step_s: float = 1.0) -> list[bool]:
    """What is due at each look, where these shares of a core were used before it."""
    repose, now, used = IdleDetector(now=0.0, used_s=0.0), 0.0, 0.0
    found = []
    for share in shares:
        now, used = now + step_s, used + share * step_s
        found.append(repose.look(now=now, used_s=used))
    return found


def test_idle_detector_after_work_fires_once() -> None:
    found = looks(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert [at for at, due in enumerate(found) if due] == [6]


def test_idle_detector_with_constant_light_work_fires_at_intervals() -> None:
    share = QUIET_SHARE / 2
    found = looks(*[share] * 10)
    assert [at + 1 for at, due in enumerate(found) if due] == [APART_S, 2 * APART_S]


def test_idle_detector_without_work_never_fires() -> None:
    assert not any(looks(*[WORTH_S / 201] * 200))


def test_idle_detector_with_constant_work_fires_at_busy_max() -> None:
    found = looks(*[1.0] * 130)
    assert [at + 1 for at, due in enumerate(found) if due] == [BUSY_MAX_S, 2 * BUSY_MAX_S]


def test_idle_detector_after_a_late_look_judges_the_whole_interval() -> None:
    assert looks(0.5, step_s=30.0) == [False]
    assert looks(0.5, 0.01, step_s=30.0) == [False, True]


def test_freeze_modules_excludes_what_is_loaded_from_collections() -> None:
    before = gc.get_freeze_count()
    freeze_modules()
    try:
        assert gc.get_freeze_count() > before
        assert not any(tracked is pytest for tracked in gc.get_objects())
    finally:
        gc.unfreeze()


# --- a node runs without pandas until something in its process imports it ------------------------


PROGRAM = """
import importlib.util, sys
import galileo.server.main
import pyarrow as pa
made = pa.array([1, 2]), pa.table({"a": ["b"]})
print("pandas" in sys.modules, importlib.util.find_spec("pandas") is not None)
import pandas
print(pa.array(pandas.Series([0.5, float("nan")])).null_count)
print(pa.array(pandas.Series(["a", None], dtype="category")).type)
"""


@pytest.mark.slow
def test_pyarrow_knows_pandas_only_once_it_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "False True",
        "1",
        "dictionary<values=string, indices=int8, ordered=0>",
    ]

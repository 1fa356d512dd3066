"""The memory of a process is that of its control groups, where these have less than the machine."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from galileo.server.cgroup_memory import memory

MIB = 1 << 20


def written(place: Path, files: dict[str, object]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / name).write_text(f"{content}\n")


def version_1(place: Path, *, limit: int, used: int, files: int = 0) -> None:
    facts = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used}
    written(place, {**facts, "memory.stat": f"cache 5\ntotal_inactive_file {files}"})


def version_2(place: Path, *, limit: object, used: int, files: int = 0) -> None:
    facts = {"memory.max": limit, "memory.current": used}
    written(place, {**facts, "memory.stat": f"anon 5\ninactive_file {files}"})


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """A file that says in which groups the process is, of either version."""
    path = tmp_path / "cgroup"
    path.write_text("5:cpu,cpuacct:/elsewhere\n4:memory:/node/one\n0::/node/one\n")
    return path


def test_cgroup_memory_without_a_limit_is_the_machines(groups: Path, tmp_path: Path) -> None:
    version_1(tmp_path / "mounted" / "memory" / "node" / "one", limit=2**63 - 4096, used=5)
    found = memory(groups, tmp_path / "mounted")
    assert found.total == psutil.virtual_memory().total
    assert 0 < found.available <= found.total
    assert memory(tmp_path / "absent").total == found.total


def test_cgroup_memory_uses_the_lowest_enclosing_limit(groups: Path, tmp_path: Path) -> None:
    root = tmp_path / "mounted" / "memory"
    version_1(root / "node" / "one", limit=200 * MIB, used=50 * MIB, files=10 * MIB)
    version_1(root / "node", limit=100 * MIB, used=60 * MIB)
    version_1(root, limit=2**63 - 4096, used=5 * MIB)
    assert memory(groups, tmp_path / "mounted").total == 100 * MIB
    assert memory(groups, tmp_path / "mounted").available == 40 * MIB


def test_cgroup_memory_counts_inactive_files_as_available(groups: Path, tmp_path: Path) -> None:
    place = tmp_path / "mounted" / "node" / "one"
    version_2(place, limit=200 * MIB, used=150 * MIB, files=110 * MIB)
    version_2(place.parent, limit="max", used=300 * MIB)
    assert memory(groups, tmp_path / "mounted").available == 160 * MIB
    version_2(place, limit=200 * MIB, used=250 * MIB)
    assert memory(groups, tmp_path / "mounted").available == 0


def test_cgroup_memory_in_a_container_reads_the_root_group(groups: Path, tmp_path: Path) -> None:
    version_2(tmp_path / "mounted", limit=64 * MIB, used=MIB)
    assert memory(groups, tmp_path / "mounted").total == 64 * MIB

"""Processes in a control group have no more than it has; skipped where none can be made."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fault_injection.control_groups import control_group
from fault_injection.requirements import CPU_GROUP, MEMORY_GROUP, Need

MIB = 1 << 20


def need(wanted: Need) -> None:
    missing = wanted.missing()
    if missing is not None:
        pytest.skip(missing)


def test_control_group_memory_exceeded_ends_process() -> None:
    need(MEMORY_GROUP)
    with control_group("memory") as group:
        group.limit_memory(64 * MIB)
        command = [*group.prefix, sys.executable, "-c", "kept = b'x' * (200 << 20)"]
        assert subprocess.run(command, check=False).returncode == -9
        fits = [*group.prefix, sys.executable, "-c", "kept = b'x' * (20 << 20)"]
        assert subprocess.run(fits, check=False).returncode == 0


def test_control_group_memory_left_is_known() -> None:
    need(MEMORY_GROUP)
    own = Path("/proc/self/cgroup").read_text()
    with control_group("memory") as group:
        group.limit_memory(64 * MIB)
        assert 0 < group.memory_left <= 64 * MIB
        command = [*group.prefix, "sleep", "60"]
        with subprocess.Popen(command) as process:
            place = Path(f"/proc/{process.pid}/cgroup")
            while "galileo-chaos" not in place.read_text():
                time.sleep(0.005)
            group.leave(process.pid)
            assert place.read_text() == own
            process.kill()


def test_control_group_cpu_limits_process() -> None:
    need(CPU_GROUP)
    busy = "import time\nend = time.monotonic() + 0.6\nwhile time.monotonic() < end: pass"
    with control_group("cpu") as group:
        group.limit_cpu(0.1)
        started = psutil.Process().cpu_times().children_user
        subprocess.run([*group.prefix, sys.executable, "-S", "-c", busy], check=True)
        used = psutil.Process().cpu_times().children_user - started
    assert used < 0.4

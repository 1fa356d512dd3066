"""The tools that make things fail, each where the machine permits it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from fault_injection import requirements, strace
from fault_injection.damage import flip, kept_all
from fault_injection.disks import LoopDisk, MemoryDisk
from fault_injection.requirements import Need, first_missing

ATTEMPTS = 400
SYNCER = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
print("ready", flush=True)
for line in sys.stdin:
    try:
        os.fdatasync(descriptor)
        print("synced", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


def needed(missing: Callable[[], str | None]) -> None:
    why = missing()
    if why is not None:
        pytest.skip(why)


def test_first_missing_names_first_need() -> None:
    there, missing = Need("air", lambda: None), Need("water", lambda: "it is dry")
    assert first_missing([]) is first_missing([there]) is None
    assert first_missing([there, missing]) == "no water: it is dry"


def test_strace_fault_holds_within_block_only(tmp_path: Path) -> None:
    needed(requirements.attaching_missing)
    command = [sys.executable, "-c", SYNCER, str(tmp_path / "file")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        def synced() -> str:
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert synced() == "synced"
        fault = strace.fault(strace.SYNC, "error=EIO", when="2")
        with strace.injecting(process.pid, fault, trace=tmp_path / "trace"):
            assert [synced() for _ in range(3)] == ["synced", str(errno.EIO), "synced"]
        assert synced() == "synced"
        process.stdin.close()


def test_strace_interrupted_attachment_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What strace starts for a moment would keep its pipe open, and be waited for in vain."""
    needed(requirements.attaching_missing)
    moments = iter(np.linspace(0.0, 0.005, ATTEMPTS))

    def given_up(*_: object) -> None:
        time.sleep(next(moments))
        raise TimeoutError

    monkeypatch.setattr(strace, "_wait_attached", given_up)
    fault = strace.fault(strace.SYNC, "error=EIO", when="1")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        for number in range(ATTEMPTS):
            trace = tmp_path / f"t{number}"
            with pytest.raises(TimeoutError), strace.injecting(process.pid, fault, trace=trace):
                pass
        process.stdin.close()
    left = [one.pid for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(one.info)]
    assert left == []


def test_strace_ended_process_raises(tmp_path: Path) -> None:
    needed(requirements.attaching_missing)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        with (
            pytest.raises((TimeoutError, FileNotFoundError)),
            strace.injecting(
                process.pid, strace.fault(strace.SYNC, "error=EIO", when="1"), trace=tmp_path / "t"
            ),
        ):
            pass


def test_memory_disk_full_raises_no_space(tmp_path: Path) -> None:
    needed(requirements.memory_disk_missing)
    with (
        MemoryDisk(tmp_path / "disk", size_bytes=1 << 16) as disk,
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)),
    ):
        (disk.directory / "file").write_bytes(bytes(1 << 17))
    assert list(disk.directory.iterdir()) == []


def test_loop_disk_power_cut_loses_unsynced_bytes(tmp_path: Path) -> None:
    needed(requirements.loop_disk_missing)
    with LoopDisk(tmp_path) as disk:
        path = disk.directory / "file"
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, b"synced")
        os.fdatasync(descriptor)
        os.write(descriptor, b"not synced")
        disk.cut_power(flag=2)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.fdatasync(descriptor)
        os.close(descriptor)
        disk.repair()
        assert path.read_bytes() == b"synced"


def test_loop_disk_broken_metadata_is_read_only(tmp_path: Path) -> None:
    needed(requirements.loop_disk_missing)
    with LoopDisk(tmp_path) as disk:
        path = disk.directory / "file"
        path.write_bytes(b"there")
        disk.break_metadata()
        with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
            path.write_bytes(b"gone")
        disk.check_and_mount()
        path.write_bytes(b"again")


def test_kept_all_restores_files(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "in" / "second"
    second.parent.mkdir()
    first.write_bytes(b"abc")
    second.write_bytes(b"def")
    with kept_all(tmp_path):
        flip(first, 1, mask=3)
        assert first.read_bytes() == b"aac"
        second.unlink()
        (tmp_path / "third").write_bytes(b"ghi")
    held = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert held == {first: b"abc", second: b"def"}

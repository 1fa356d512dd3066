"""The file of the audit log: appended, rotated, private."""

from __future__ import annotations

import json
import logging
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from expected_errors import raises

from galileo.errors import ConfigError
from galileo.server.audit_log import AuditLog


def lines(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_audit_log_appends_across_restarts(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "audit.jsonl"
    for start in (0, 2):
        written = AuditLog(path, bytes_max=10_000, files_max=2)
        for number in (start, start + 1):
            written.write({"n": number})
        written.close()
    assert lines(path) == [0, 1, 2, 3]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_audit_log_makes_an_existing_file_private(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.touch(0o644)
    AuditLog(path, bytes_max=100, files_max=2).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_audit_log_rotates_long_files_and_deletes_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written = AuditLog(path, bytes_max=30, files_max=3)
    for number in range(10, 40):
        written.write({"n": number})
    assert written.written == 30
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        *("audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3")
    ]
    kept = [lines(path.with_name(name)) for name in ("audit.jsonl.3", "audit.jsonl.2")]
    kept += [lines(path.with_name("audit.jsonl.1")), lines(path)]
    numbers = [number for part in kept for number in part]
    assert numbers == list(range(numbers[0], 40)), "nothing in between is missing"
    assert all(one.stat().st_size <= 30 for one in tmp_path.iterdir())
    assert {stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()} == {0o600}
    # A rotated file is still private.
    with pytest.raises(ConfigError):
        AuditLog(path, bytes_max=30, files_max=3)
    written.close()


def test_audit_log_locked_by_another_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written = AuditLog(path, bytes_max=100, files_max=2)
    code = (
        "import sys, pathlib; from galileo.server.audit_log import AuditLog; "
        "AuditLog(pathlib.Path(sys.argv[1]), bytes_max=100, files_max=2)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert "expected audit.file to be a file that this process alone writes" in done.stderr
    written.close()


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_audit_log_at_a_directory_or_link_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "audit.jsonl"
    if kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with raises(ConfigError, key="audit.file"):
        AuditLog(path, bytes_max=100, files_max=2)
    assert not (tmp_path / "elsewhere").exists()


def test_audit_log_write_error_is_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"
    written = AuditLog(path, bytes_max=1 << 30, files_max=2)
    written.write({"n": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        with caplog.at_level(logging.ERROR):
            written.write({"n": 2, "object": "a dataset"})
            written.write({"n": 3})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    written.write({"n": 4})
    assert (written.written, written.failed) == (2, 2)
    assert '{"n":2,"object":"a dataset"}' in caplog.text
    assert '{"n":3}' in caplog.text
    written.close()
    written.write({"n": 5})
    assert written.failed == 3
    first, torn, last = path.read_text().splitlines()
    assert (json.loads(first), torn, json.loads(last)) == ({"n": 1}, '{"n":2,"ob', {"n": 4})
    path.write_text('{"n":1}\n{"n":')
    again = AuditLog(path, bytes_max=100, files_max=2)
    again.write({"n": 6})
    again.close()
    assert path.read_text() == '{"n":1}\n{"n":\n{"n":6}\n'


def test_audit_log_keeps_rotated_files_when_open_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"
    written = AuditLog(path, bytes_max=10, files_max=3)
    for number in range(1, 5):
        written.write({"n": number})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        for number in range(5, 15):
            written.write({"n": number})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert written.failed == 10
    assert '{"n":14}' in caplog.text
    written.write({"n": 15})
    assert [lines(path.with_name(f"audit.jsonl.{number}")) for number in (3, 2, 1)] == [
        *([2], [3], [4])
    ]
    assert lines(path) == [15]
    written.close()


def test_audit_log_descriptor_is_not_inheritable(tmp_path: Path) -> None:
    written = AuditLog(tmp_path / "audit.jsonl", bytes_max=100, files_max=2)
    assert not any(os.get_inheritable(fd) for fd in _descriptors(tmp_path))
    written.close()


def _descriptors(directory: Path) -> list[int]:
    found = []
    for one in Path("/proc/self/fd").iterdir():
        try:
            if str(directory) in str(one.readlink()):
                found.append(int(one.name))
        except FileNotFoundError:
            continue
    assert found
    return found

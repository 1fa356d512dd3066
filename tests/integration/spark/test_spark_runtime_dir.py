from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import psutil
import pytest
from expected_errors import raises

from galileo.errors import ConfigError
from galileo.spark.runtime_dir import EvaluatorRecord, RuntimeDir


@pytest.fixture
def runtime(tmp_path):
    return RuntimeDir(tmp_path / "deep" / "run")


def test_read_record_returns_what_its_owner_published(runtime):
    record = EvaluatorRecord.of_this_process("127.0.0.1:5")
    runtime.publish(record)
    runtime.publish(record)
    assert runtime.read() == record
    assert record.process() == psutil.Process()
    assert [path.name for path in runtime.path.iterdir()] == ["evaluator.json"]
    assert (runtime.path / "evaluator.json").stat().st_mode & 0o777 == 0o600
    assert runtime.path.stat().st_mode & 0o777 == 0o700
    runtime.withdraw()
    runtime.withdraw()
    assert runtime.read() is None


def test_withdraw_with_pid_keeps_records_of_others(runtime):
    record = EvaluatorRecord.of_this_process("127.0.0.1:5")
    runtime.publish(record)
    runtime.withdraw(pid=record.pid + 1)
    assert runtime.read() == record
    runtime.withdraw(pid=record.pid)
    runtime.withdraw(pid=record.pid)
    assert runtime.read() is None


def test_evaluator_records_have_different_tokens():
    tokens = {EvaluatorRecord.of_this_process("").token for _ in range(10)}
    assert len(tokens) == 10
    assert min(map(len, tokens)) >= 32


@pytest.mark.parametrize("text", ["", "{", "[]", '{"address": "x"}'])
def test_read_invalid_record_is_none(runtime, text):
    (runtime.path / "evaluator.json").write_text(text)
    assert runtime.read() is None


def test_record_process_with_reused_pid_is_none():
    record = EvaluatorRecord.of_this_process("")
    assert dataclasses.replace(record, started=record.started - 60).process() is None
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert dataclasses.replace(record, pid=ended.pid).process() is None


def test_try_lock_is_exclusive_and_inherited(runtime):
    held = runtime.try_lock()
    assert held is not None
    assert runtime.try_lock() is None
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(held,)
    ) as child:
        os.close(held)
        assert runtime.try_lock() is None
        child.communicate(b"\n")
    again = runtime.try_lock()
    assert again is not None
    os.close(again)


def test_runtime_dir_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with raises(ConfigError, key="evaluator.directory"):
        RuntimeDir(tmp_path / "file" / "run")


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_runtime_dir_writable_for_others_is_refused(tmp_path, mode):
    place = tmp_path / "run"
    place.mkdir()
    place.chmod(mode)
    with raises(ConfigError, key="evaluator.directory", mode=f"{mode:04o}"):
        RuntimeDir(place)
    place.chmod(0o755)
    RuntimeDir(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_runtime_dir_of_another_owner_or_link_is_refused(tmp_path):
    place, link = tmp_path / "run", tmp_path / "link"
    place.mkdir(mode=0o700)
    link.symlink_to(place)
    RuntimeDir(link)
    os.lchown(link, 4321, 4321)
    with raises(ConfigError, key="evaluator.directory", mode="0700"):
        RuntimeDir(link)
    runtime = RuntimeDir(place)
    runtime.publish(EvaluatorRecord.of_this_process("127.0.0.1:5"))
    assert runtime.read() is not None
    os.chown(place / "evaluator.json", 4321, 4321)
    assert runtime.read() is None, "another user wrote the record"
    os.chown(place, 4321, 4321)
    with raises(ConfigError, uid=4321):
        runtime.try_lock()
    with raises(ConfigError, uid=4321):
        RuntimeDir(place)

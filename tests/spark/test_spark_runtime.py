from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import psutil
import pytest

from galileo.errors import ConfigError
from galileo.spark.runtime import Record, RuntimeDir


@pytest.fixture
def runtime(tmp_path):
    return RuntimeDir(tmp_path / "deep" / "run")


def test_a_record_is_read_as_it_was_written_and_only_by_its_owner(runtime):
    record = Record.of_this_process("127.0.0.1:5")
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


def test_an_evaluator_takes_away_its_own_record_alone(runtime):
    record = Record.of_this_process("127.0.0.1:5")
    runtime.publish(record)
    runtime.withdraw(pid=record.pid + 1)
    assert runtime.read() == record
    runtime.withdraw(pid=record.pid)
    runtime.withdraw(pid=record.pid)
    assert runtime.read() is None


def test_each_evaluator_has_another_token():
    tokens = {Record.of_this_process("").token for _ in range(10)}
    assert len(tokens) == 10
    assert min(map(len, tokens)) >= 32


@pytest.mark.parametrize("text", ["", "{", "[]", '{"address": "x"}'])
def test_a_damaged_record_is_none(runtime, text):
    (runtime.path / "evaluator.json").write_text(text)
    assert runtime.read() is None


def test_a_later_process_of_the_same_number_is_another_one():
    record = Record.of_this_process("")
    assert dataclasses.replace(record, started=record.started - 60).process() is None
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert dataclasses.replace(record, pid=ended.pid).process() is None


def test_the_lock_is_for_one_and_passes_to_a_child(runtime):
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


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="runtime directory"):
        RuntimeDir(tmp_path / "file" / "run")


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_a_directory_in_which_others_can_write_is_none(tmp_path, mode):
    place = tmp_path / "run"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(
        ConfigError, match=r"no other to write in it; got mode .*evaluator\.directory"
    ):
        RuntimeDir(place)
    place.chmod(0o755)
    RuntimeDir(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_nor_is_one_of_somebody_else_or_behind_their_link(tmp_path):
    place, link = tmp_path / "run", tmp_path / "link"
    place.mkdir(mode=0o700)
    link.symlink_to(place)
    RuntimeDir(link)
    os.lchown(link, 4321, 4321)
    with pytest.raises(ConfigError, match="to be this user's"):
        RuntimeDir(link)
    runtime = RuntimeDir(place)
    runtime.publish(Record.of_this_process("127.0.0.1:5"))
    assert runtime.read() is not None
    os.chown(place / "evaluator.json", 4321, 4321)
    assert runtime.read() is None, "somebody else says that they are the evaluator"
    os.chown(place, 4321, 4321)
    with pytest.raises(ConfigError, match="to be this user's"):
        runtime.try_lock()
    with pytest.raises(ConfigError, match=r"to be this user's, and no other .* of user 4321"):
        RuntimeDir(place)

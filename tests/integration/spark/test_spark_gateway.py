from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from processes import ended

from galileo.errors import ConfigError
from galileo.spark.gateway import JvmOptions, environment_variables, launch
from galileo.spark.java import Java, find_java

PARENT = """
import os, sys, time
from pathlib import Path
import pyspark
from galileo.spark.gateway import JvmOptions, launch
from galileo.spark.java import find_java
job_request = Path(sys.argv[1])
log = job_request / "log4j2.properties"
log.write_text("rootLogger.level = error")
home = Path(pyspark.__file__).parent
options = JvmOptions(find_java(os.environ), home, job_request, 450, log, os.environ)
gateway = launch(options)
print(gateway.pid, gateway.port, len(gateway.secret), flush=True)
if sys.argv[2] == "close":
    gateway.close()
    print(gateway.alive(), flush=True)
else:
    time.sleep(60)
"""


def start_parent(job_request: Path, what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, str(job_request), what], stdout=subprocess.PIPE, text=True
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


@pytest.fixture
def jvm_options(tmp_path):
    def make(java: Java) -> JvmOptions:
        return JvmOptions(java, tmp_path, tmp_path, 512, tmp_path / "none", os.environ)

    return make


def test_jvm_that_ends_at_once_is_refused(jvm_options, tmp_path):
    """A real Java, without Spark's classes."""
    with (
        (tmp_path / "output").open("wb") as log,
        pytest.raises(ConfigError, match="ended with code 1"),
    ):
        launch(jvm_options(find_java(os.environ)), log=log)
    assert b"PythonGatewayServer" in (tmp_path / "output").read_bytes()


def test_variables_are_set_within_their_context_only(monkeypatch):
    monkeypatch.setenv("GALILEO_TEST_OLD", "before")
    monkeypatch.delenv("GALILEO_TEST_NEW", raising=False)
    with environment_variables({"GALILEO_TEST_OLD": "now", "GALILEO_TEST_NEW": "now"}):
        assert (os.environ["GALILEO_TEST_OLD"], os.environ["GALILEO_TEST_NEW"]) == ("now", "now")
    assert os.environ["GALILEO_TEST_OLD"] == "before"
    assert "GALILEO_TEST_NEW" not in os.environ

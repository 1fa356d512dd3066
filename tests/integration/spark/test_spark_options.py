from __future__ import annotations

import socket
from pathlib import Path

import pytest
from expected_errors import raises

from galileo.cluster import free_ports
from galileo.errors import ConfigError, Unavailable
from galileo.spark.options import EvaluatorOptions, SparkOptions, settings
from galileo.spark.session import ExecutorWatch, address_towards

WORK = Path("/var/lib/work")
SOCKETS = Path("/tmp/s")


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", "spark://h:7077"])
def test_spark_options_master_is_embedded_or_a_standalone_cluster(master):
    assert SparkOptions(master=master).standalone == master.startswith("spark://")


@pytest.mark.parametrize(
    "wrong",
    [
        {"master": "sc://h:1"},
        {"master": "local[x]"},
        {"master": ""},
        {"tasks": -1},
        {"heap_mb": 449},
    ],
)
def test_spark_options_that_are_invalid_are_refused(wrong):
    with raises(ConfigError, parameter=next(iter(wrong))):
        SparkOptions(**wrong)


def test_evaluator_options_round_trip_json():
    spark = SparkOptions(master="local[3]", tasks=5, settings={"spark.x": "y"})
    options = EvaluatorOptions(Path("/run/galileo"), spark, idle_timeout_s=7.5, scan_timeout_s=3.0)
    assert EvaluatorOptions.from_json(options.to_json()) == options


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"spark": {}, "runtime_dir": "x", "more": 1}'])
def test_evaluator_options_of_invalid_json_are_refused(text):
    with pytest.raises(ConfigError):
        EvaluatorOptions.from_json(text)


def test_settings_of_an_embedded_session_listen_on_loopback_only():
    chosen = settings(SparkOptions(), work_dir=WORK, socket_dir=SOCKETS)
    assert chosen["spark.driver.bindAddress"] == chosen["spark.driver.host"] == "127.0.0.1"
    assert chosen["spark.authenticate"] == "true"
    assert chosen["spark.ui.enabled"] == "false"
    assert chosen["spark.python.unix.domain.socket.dir"] == str(SOCKETS)
    assert chosen["spark.sql.warehouse.dir"].startswith(str(WORK))


def test_settings_of_a_cluster_have_no_path_or_address_of_this_host():
    options = SparkOptions(master="spark://far:7077")
    chosen = settings(options, work_dir=WORK, socket_dir=None, address="192.0.2.1")
    assert not {"spark.local.dir", "spark.python.unix.domain.socket.dir"} & set(chosen)


def test_settings_of_a_cluster_listen_at_one_address():
    for options, wanted in (
        (SparkOptions(master="spark://far:7077"), "192.0.2.1"),
        (SparkOptions(master="spark://far:7077", driver_host="here"), "here"),
    ):
        chosen = settings(options, work_dir=WORK, socket_dir=None, address="192.0.2.1")
        assert chosen["spark.driver.host"] == chosen["spark.driver.bindAddress"] == wanted
        assert chosen["spark.ui.enabled"] == "false"


def test_settings_of_a_cluster_take_no_more_cores_than_configured():
    options = SparkOptions(master="spark://far:7077", cores_max=3, heap_mb=600)
    chosen = settings(options, work_dir=WORK, socket_dir=None)
    assert (chosen["spark.cores.max"], chosen["spark.executor.memory"]) == ("3", "600m")


def test_settings_of_a_cluster_with_a_secret_are_authenticated_and_encrypted(tmp_path):
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("planted\n")
    options = SparkOptions(master="spark://far:7077", secret_file=str(secret))
    chosen = settings(options, work_dir=WORK, socket_dir=None)
    assert chosen["spark.authenticate.secret"] == "planted"
    for name in (
        "spark.authenticate",
        "spark.network.crypto.enabled",
        "spark.io.encryption.enabled",
    ):
        assert chosen[name] == "true"
    assert chosen["spark.network.crypto.saslFallback"] == "false"
    assert "planted" not in EvaluatorOptions(WORK, options).to_json()
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match="only its owner can read"):
        settings(options, work_dir=WORK, socket_dir=None)


def test_address_towards_no_master_is_unavailable():
    [port] = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = server.getsockname()[:2]
        assert address_towards([("127.0.0.1", port), there]) == "127.0.0.1"
    with pytest.raises(Unavailable) as caught:
        address_towards([("127.0.0.1", port)])
    assert f"127.0.0.1:{port}" in caught.value.message


def test_masters_of_one_cluster_are_separated_by_commas():
    options = SparkOptions(master="spark://a:7077,[::1]:7078")
    assert options.master_addresses == (("a", 7077), ("::1", 7078))
    assert SparkOptions().master_addresses == ()


class SetClock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        raise AssertionError("a session must not depend on the wall clock")


def test_executor_watch_session_without_executors_is_lost():
    clock = SetClock()
    watch = ExecutorWatch(clock, timeout_s=6.0)
    for advance_s, executors, is_lost in (
        (5.0, 0, False),
        (0.5, 1, False),
        (5.0, 0, False),
        (0.5, 2, False),
        (6.5, 0, True),
    ):
        clock.now += advance_s
        assert bool(watch.failure(executors)) == is_lost


def test_settings_of_options_override_defaults():
    options = SparkOptions(settings={"spark.ui.enabled": "true"})
    assert settings(options, work_dir=WORK, socket_dir=SOCKETS)["spark.ui.enabled"] == "true"

from __future__ import annotations

from pathlib import Path

import pytest
from expected_errors import raises

from galileo.errors import ConfigError
from galileo.spark.options import EvaluatorOptions, SparkOptions
from galileo.spark.settings import settings

WORK = Path("/var/lib/work")
SOCKETS = Path("/tmp/s")


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", "spark://h:7077", "sc://h:1"])
def test_spark_options_master_is_embedded_or_remote(master):
    options = SparkOptions(master=master)
    assert (options.embedded, options.remote) == (
        master.startswith("local"),
        master.startswith("sc://"),
    )


@pytest.mark.parametrize(
    "wrong",
    [{"master": "yarn"}, {"master": "local[x]"}, {"master": ""}, {"tasks": -1}, {"heap_mb": 449}],
)
def test_spark_options_that_are_invalid_are_refused(wrong):
    with raises(ConfigError, parameter=next(iter(wrong))):
        SparkOptions(**wrong)


def test_evaluator_options_round_trip_json():
    spark = SparkOptions(master="local[3]", tasks=5, settings={"spark.x": "y"})
    options = EvaluatorOptions(Path("/run/galileo"), spark, idle_timeout_s=7.5, queue_max=3)
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
    chosen = settings(options, work_dir=WORK, socket_dir=None)
    assert not {
        "spark.driver.host",
        "spark.local.dir",
        "spark.python.unix.domain.socket.dir",
    } & set(chosen)
    named = SparkOptions(master="spark://far:7077", driver_host="here")
    assert settings(named, work_dir=WORK, socket_dir=None)["spark.driver.host"] == "here"


def test_settings_of_options_override_defaults():
    options = SparkOptions(settings={"spark.ui.enabled": "true"})
    assert settings(options, work_dir=WORK, socket_dir=SOCKETS)["spark.ui.enabled"] == "true"

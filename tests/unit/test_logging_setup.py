"""Lines of JSON, and the id of a request on its way from the client through two nodes."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import galileo
from galileo import request_id
from galileo.errors import GalileoError, InputError
from galileo.logging_setup import FACTS, JsonFormatter, TextFormatter
from galileo.wire.status import error_from_pb, error_to_pb

DEBUG = {
    "logging": {"format": "json", "level": "debug"},
    # So nothing is asked for twice, however busy this machine is.
    "membership": {"failure_timeout_s": 60.0},
}
WITHIN_S = 300.0


@pytest.fixture
def logged() -> Iterator[tuple[logging.Logger, Callable[[], list[dict[str, Any]]]]]:
    """A logger, and what it wrote."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter("storm-1"))
    log = logging.getLogger("test.logs")
    log.addHandler(handler)
    log.propagate = False
    yield log, lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    log.removeHandler(handler)


def test_json_log_any_message_is_one_object(logged: Any) -> None:
    log, lines = logged
    log.warning("two\nlines and %s", "“quotes”", extra={"ccq": "q-1"})
    [line] = lines()
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "test.logs",
        "message": "two\nlines and “quotes”",
        "node": "storm-1",
        "ccq": "q-1",
    }


def test_text_log_escapes_control_characters_and_line_ends() -> None:
    """A stranger's text neither looks like an event nor is a command to a terminal."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(TextFormatter())
    log = logging.getLogger("test.text")
    log.addHandler(handler)
    log.propagate = False
    forged = "\x1b[2J\r\n2026-01-01 00:00:00,000 INFO root: forged\x9b"
    try:
        raise ValueError(forged)
    except ValueError:
        log.exception("it said %s", forged)
    log.removeHandler(handler)
    first, *others = written.getvalue().splitlines()
    assert first.endswith(
        "it said \\x1b[2J\\x0d\\x0a2026-01-01 00:00:00,000 INFO root: forged\\x9b"
    )
    assert any("ValueError: \\x1b[2J" in line for line in others)
    assert all(line.startswith(" ") for line in others[1:])
    assert not set("\x1b\r\x9b") & set(written.getvalue())


def test_json_log_exception_has_traceback(logged: Any) -> None:
    log, lines = logged
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it failed")
    [line] = lines()
    assert "ValueError: broken" in line["error"]


def test_json_log_line_has_request_id(logged: Any) -> None:
    log, lines = logged
    with request_id.serving("r-1"):
        log.warning("inside")
        with request_id.serving():
            log.warning("still")
    log.warning("outside")
    assert [one.get("request") for one in lines()] == ["r-1", "r-1", None]


async def test_request_id_tasks_and_threads_inherit_it() -> None:
    with request_id.serving() as request:
        task = asyncio.create_task(asyncio.to_thread(request_id.current))
    assert request_id.current() == ""
    assert await task == request


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 65, '"', "a\nb"])
def test_request_id_unsafe_text_is_replaced(given: str | None) -> None:
    taken = request_id.sound(given)
    assert taken != given
    assert request_id.sound(taken) == taken


def test_error_to_pb_adds_request_id() -> None:
    error = InputError("no", place=3)
    assert error_from_pb(error_to_pb(error)).details == {"place": 3}
    with request_id.serving("r-1"):
        packed = error_to_pb(error)
    assert error_from_pb(packed).details == {"place": 3, "request": "r-1"}
    with request_id.serving("r-2"):
        assert error_from_pb(error_to_pb(error_from_pb(packed))).details["request"] == "r-1"


# --- two nodes -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[galileo.LocalCluster]:
    with galileo.LocalCluster(nodes=2, groups=2, settings=DEBUG) as running:
        yield running


def lines_of(log: Path) -> list[dict[str, Any]]:
    """Whole lines; the last one may be about to be written."""
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if "}\n" in line]


def line(pair: galileo.LocalCluster, **facts: str) -> list[dict[str, Any]]:
    """The lines of both nodes with these facts."""
    lines = [line for node in pair.nodes for line in lines_of(node.log)]
    return [line for line in lines if facts.items() <= line.items()]


def found(pair: galileo.LocalCluster, **facts: str) -> list[dict[str, Any]]:
    """The same, once there are any; a call's is written after its answer is sent."""
    deadline = time.monotonic() + WITHIN_S
    while not (wanted := line(pair, **facts)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return wanted


@pytest.mark.slow
def test_node_log_request_id_is_same_at_all_nodes(pair: galileo.LocalCluster) -> None:
    rows = pd.DataFrame(
        {
            "latitude": [40.0, 41.0, 47.0, -10.0, 51.0],
            "longitude": [-120.0, -90.0, 8.0, 20.0, 0.0],
            "time": pd.to_datetime(["2014-03-01T06:00Z"] * 5),
            "rain": [1.0, 2.0, 3.0, 4.0, 5.0],
        }
    )
    client = pair.client()
    client.create_dataset(
        galileo.Schema("rain", [galileo.Feature("rain", "mm")], geohash_precision=2)
    )
    client.ingest("rain", rows)
    deadline = time.monotonic() + WITHIN_S
    # A client that has all of its answer may hang up before a slow node has ended the call.
    while not line(pair, method="Query/Run", outcome="OK"):
        assert time.monotonic() < deadline
        assert len(client.query("rain", "rain > 0")) == 5
        client.status()
    first = found(pair, method="Query/Run", outcome="OK")[0]
    [other] = found(pair, method="internal/scan_small", request=first["request"])
    deadline = time.monotonic() + WITHIN_S
    while len(owners := found(pair, method="Storage/Ingest", outcome="OK")) < 2:
        assert time.monotonic() < deadline, "a batch goes to both owners"
    assert len({one["request"] for one in owners}) == 1
    for two in ((first, other), owners):
        assert {one["node"] for one in two} == {"node-1", "node-2"}
        assert all(one["outcome"] == "OK" and one["took_ms"] > 0 for one in two)
    for node in pair.nodes:
        lines = lines_of(node.log)
        assert {line["node"] for line in lines} == {node.name}
        assert not [line for line in lines if line.get("method") == "PeerCluster/Gossip"]


@pytest.mark.slow
def test_node_log_failed_request_has_id_of_error(pair: galileo.LocalCluster) -> None:
    with pytest.raises(GalileoError) as refused:
        pair.client().query("nothing", "x > 1")
    request = refused.value.details["request"]
    assert found(pair, request=request, outcome="NOT_FOUND", level="info")


@pytest.mark.slow
def test_node_log_call_of_ccq_has_its_id(pair: galileo.LocalCluster) -> None:
    client = pair.client()
    with pytest.raises(GalileoError):
        client.cancel("no-such-query")
    named = found(pair, ccq="no-such-query")
    assert {line["method"] for line in named} == {"Continuous/Cancel"}


def test_text_log_format_is_kept() -> None:
    code = (
        "import logging; from galileo.logging_setup import start_logging\n"
        "start_logging(); logging.getLogger('a').info('b'); logging.getLogger('a').debug('c')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.endswith("INFO a: b\n")
    assert "took_ms" in FACTS

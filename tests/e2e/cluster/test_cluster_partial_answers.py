"""A node is killed: every way to read says which partitions the answer lacks."""

from __future__ import annotations

import io
import itertools
import json
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.feather
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from expected_errors import raises

import galileo
from galileo.cli.main import main
from galileo.errors import GalileoError, IncompleteAnswer, Unavailable
from galileo.labels import missing_of
from galileo.local_services import LocalGateway

ROWS = 200
COUNT = "SELECT (COUNT(?p) AS ?n) WHERE { ?p f:temperature ?t }"


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "latitude": np.round(rng.uniform(-60, 60, ROWS), 3),
            "longitude": np.round(rng.uniform(-170, 170, ROWS), 3),
            "time": [f"2014-03-01T{hour:02d}:30:00Z" for hour in rng.integers(0, 24, ROWS)],
            "temperature": np.round(rng.uniform(250, 310, ROWS), 1),
        }
    )


@dataclass(frozen=True)
class Halved:
    """A cluster of two nodes, one of which was killed.

    Attributes:
        rows: observations that are left.
        missing: the partitions of the other node.
        labels: of everything, as they are found now.
        whole: the same, as they were found before.
        ingest: what ended an ingest of frames without end, which the node's death interrupted.
        update: what a fetch gave that waited meanwhile.
    """

    address: str
    client: galileo.Client
    ccq_id: str
    rows: int
    missing: tuple[int, ...]
    labels: galileo.Labels
    whole: galileo.Labels
    ingest: GalileoError
    update: galileo.Update


def ingest_without_end(client: galileo.Client, started: threading.Event) -> GalileoError:
    """The error that ends it."""

    def frames() -> Iterator[pd.DataFrame]:
        for number in itertools.count():
            if number == 3:  # Some are stored.
                started.set()
            yield frame()

    with pytest.raises(GalileoError) as caught:
        client.ingest("more", frames())
    return caught.value


@pytest.fixture(scope="module")
def halved(no_evaluator: dict[str, Any]) -> Iterator[Halved]:
    settings = {"evaluator": no_evaluator}
    with galileo.LocalCluster(nodes=2, groups=2, settings=settings) as pair:
        with pair.client() as client:
            features = [galileo.Feature("temperature", "K")]
            client.create_dataset(galileo.Schema("air", features, geohash_precision=4))
            client.ingest("air", frame())
            client.create_dataset(galileo.Schema("more", features, geohash_precision=4))
            whole = client.query("air")
            ccq = client.submit("air", interval="1h", expiration="2h")
            newest = client.fetch(ccq).token
        started = threading.Event()
        with (
            ThreadPoolExecutor() as pool,
            galileo.connect(pair.addresses[0], timeout="1s") as busy,
            galileo.connect(pair.addresses[0], timeout="60s") as patient,
        ):
            ingest = pool.submit(ingest_without_end, busy, started)
            # The node that is killed may be its coordinator, which the other one then becomes.
            fetch = pool.submit(patient.fetch, ccq, token=newest, wait="5s")
            assert started.wait(60.0)
            pair.nodes[1].kill()
            error, update = ingest.result(), fetch.result()
            labels = patient.query("air")
        rows = int(np.sum(labels.table.column("rows").to_numpy()))
        with galileo.connect(pair.addresses[0], timeout="500ms") as client:
            yield Halved(
                pair.addresses[0],
                client,
                ccq.id,
                rows,
                labels.missing,
                labels,
                whole,
                error,
                update,
            )


def test_query_with_a_killed_node_misses_its_partitions(halved: Halved) -> None:
    assert 0 < halved.rows < ROWS
    assert halved.missing == (4, 5, 6, 7)


def test_ingest_with_a_killed_node_is_unavailable(halved: Halved) -> None:
    assert isinstance(halved.ingest, Unavailable)
    assert "node-2" in halved.ingest.message


def test_fetch_waiting_while_a_node_is_killed_returns(halved: Halved) -> None:
    assert len(halved.update.labels) == 0
    again = halved.client.fetch(halved.ccq_id, token=halved.update.token)
    assert len(again.labels) == 0


def test_read_from_a_killed_node_is_unavailable(halved: Halved) -> None:
    with raises(Unavailable, node="node-2"):
        halved.client.read(halved.whole)


ANSWERS: dict[str, Callable[..., Any]] = {
    "query": lambda c, **o: c.query("air", **o),
    "nearest": lambda c, **o: c.nearest("air", latitude=0.0, longitude=0.0, k=ROWS, **o),
    "summarise": lambda c, **o: c.summarise("air", feature="temperature", **o),
    "aggregate": lambda c, **o: c.aggregate("air", by=["cell:1", "window:90m"], **o),
    "children": lambda c, **o: c.children("air", **o),
    "explain": lambda c, **o: c.explain("air", **o),
    "latest": lambda c, **o: c.latest("air", by="cell:4", **o),
    "version": lambda c, **o: c.version("air", **o),
    "describe": lambda c, **o: c.describe("air", **o),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_with_a_killed_node_name_missing_partitions(halved: Halved, name: str) -> None:
    answer = ANSWERS[name](halved.client)
    assert not answer.complete
    assert answer.missing == halved.missing
    assert "missing" in repr(answer) or name in ("children", "explain")


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_with_require_complete_are_incomplete(halved: Halved, name: str) -> None:
    with raises(IncompleteAnswer, missing=list(halved.missing)):
        ANSWERS[name](halved.client, require_complete=True)


@pytest.mark.slow
def test_http_answers_with_a_killed_node_name_missing_partitions(
    halved: Halved, tmp_path: Path
) -> None:
    missing, header = list(halved.missing), "Galileo-Missing"
    with LocalGateway([halved.address], log=tmp_path / "gateway.log", timeout="1s") as gateway:

        def get(path: str) -> tuple[Message, bytes]:
            url = f"{gateway.url}/collections/air/{path}"
            with urllib.request.urlopen(url, timeout=60) as reply:
                return reply.headers, reply.read()

        for path in ("cells?precision=2", "series?window=1h", "summary", "explain"):
            headers, body = get(path)
            document = json.loads(body)
            assert (document["complete"], document["missing"]) == (False, missing), path
            assert headers[header] == str(len(missing))
            counted = document.get("columns", document).get("observations", halved.rows)
            assert np.sum(counted) == halved.rows
        headers, body = get("cells?precision=2&f=arrow")
        assert missing_of(pyarrow.feather.read_table(io.BytesIO(body))) == halved.missing
        headers, body = get("tiles/WebMercatorQuad/0/0/0")
        assert (headers[header], headers["ETag"]) == (str(len(missing)), None)
        assert headers["Cache-Control"] == "no-store"
        assert body
        headers, _ = get("tiles/WorldCRS84Quad/2/1/4")  # Cell s, on the node that is left.
        assert (headers[header], headers["ETag"] is not None) == (None, True)
        headers, _ = get("tiles/WorldCRS84Quad/2/1/5")  # Cell t.
        assert (headers[header], headers["ETag"]) == (str(len(missing)), None)


def test_query_batches_with_a_killed_node_end_partial(halved: Halved) -> None:
    with halved.client.query_batches("air") as batches:
        assert sum(len(labels) for labels in batches) == len(halved.labels)
        assert batches.end is not None
        assert batches.end.missing == halved.missing
    with (
        halved.client.query_batches("air", require_complete=True) as batches,
        pytest.raises(IncompleteAnswer),
    ):
        list(batches)


def test_read_of_partial_labels_is_partial(halved: Halved) -> None:
    client, labels = halved.client, halved.labels
    table = client.read(labels)
    assert (table.num_rows, missing_of(table)) == (halved.rows, halved.missing)
    for read in (client.read, client.read_batches):
        with pytest.raises(IncompleteAnswer):
            list(read(labels, require_complete=True))
    assert missing_of(labels.to_arrow()) == halved.missing


def test_select_with_a_killed_node_is_incomplete_by_default(halved: Halved) -> None:
    with pytest.raises(IncompleteAnswer):
        halved.client.select("air")
    table = halved.client.select("air", require_complete=False)
    assert (table.num_rows, missing_of(table)) == (halved.rows, halved.missing)
    first = halved.client.select("air", require_complete=False, limit=3, order_by="-time")
    assert (first.num_rows, missing_of(first)) == (3, halved.missing)


def test_select_with_limit_and_a_killed_node_is_partial(
    halved: Halved,
) -> None:
    with pytest.raises(IncompleteAnswer):
        halved.client.select("air", limit=3)
    table = halved.client.select("air", limit=3, require_complete=False)
    assert (table.num_rows, missing_of(table)) == (3, halved.missing)


def test_count_with_a_killed_node_is_incomplete(halved: Halved) -> None:
    with pytest.raises(IncompleteAnswer):
        halved.client.count("air")


def test_tree_with_a_killed_node_names_missing_partitions(halved: Halved) -> None:
    [vertex, *_] = halved.client.tree("air", depth=1)
    assert vertex.missing == halved.missing
    with pytest.raises(IncompleteAnswer):
        list(halved.client.tree("air", depth=1, require_complete=True))


def test_sparql_with_a_killed_node_names_missing_partitions(halved: Halved) -> None:
    assert halved.labels.sparql(COUNT).missing == halved.missing


def run(halved: Halved, *words: str) -> Result:
    near = ["--node", halved.address, "--timeout", "500ms"]
    return CliRunner().invoke(main, [*near, *words])


COMMANDS: dict[str, tuple[str, ...]] = {
    "query": ("query", "air"),
    "read": ("read", "air", "--all"),
    "read --whole-blocks": ("read", "air", "--whole-blocks"),
    "nearest": ("nearest", "air", "--latitude", "0", "--longitude", "0"),
    "stats": ("stats", "air", "--feature", "temperature"),
    "aggregate": ("aggregate", "air", "--by", "cell:1"),
    "graph children": ("graph", "children", "air"),
    "explain": ("explain", "air"),
    "dataset show": ("dataset", "show", "air"),
    "sparql": ("sparql", "air", COUNT),
}
WARNING = "partial answer: partitions 4, 5, 6, 7 are missing"


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_commands_with_a_killed_node_warn(
    halved: Halved, name: str, json_flag: tuple[str, ...]
) -> None:
    done = run(halved, *COMMANDS[name], *json_flag)
    assert (done.exit_code, WARNING in done.stderr) == (0, True), done.output
    if json_flag and name != "sparql":
        actual = json.loads(done.stdout)
        assert (actual["complete"], actual["missing"]) == (False, list(halved.missing))


@pytest.mark.parametrize("name", [*COMMANDS, "count"])
def test_commands_with_require_complete_exit_with_5(halved: Halved, name: str) -> None:
    words = (*COMMANDS[name], "--require-complete") if name in COMMANDS else ("count", "air")
    done = run(halved, *words, "--json")
    assert done.exit_code == 5, done.output
    assert json.loads(done.stderr.splitlines()[-1])["error"]["kind"] == "incomplete_answer"


@pytest.mark.parametrize("command", ["query", "read"])
@pytest.mark.parametrize("suffix", [".parquet", ".geoparquet", ".arrow", ".csv"])
def test_written_files_name_missing_partitions(
    halved: Halved, tmp_path: Path, command: str, suffix: str
) -> None:
    path = tmp_path / f"half{suffix}"
    done = run(halved, command, "air", "--output", str(path), "--json")
    assert (done.exit_code, WARNING in done.stderr) == (5, True), done.output
    actual = json.loads(done.stdout)
    assert (actual["complete"], actual["missing"]) == (False, list(halved.missing))
    if suffix.endswith("parquet"):
        metadata = pyarrow.parquet.read_metadata(path).metadata
        assert json.loads(metadata[b"galileo.missing"]) == list(halved.missing)
    elif suffix == ".arrow":
        with pyarrow.ipc.open_file(path) as reader:
            last = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        assert json.loads(last.custom_metadata[b"galileo.missing"]) == list(halved.missing)
        assert pyarrow.feather.read_table(path).num_rows > 0
    required = run(halved, command, "air", "--output", str(path), "--require-complete")
    assert required.exit_code == 5


def test_sparql_commands_with_a_killed_node_warn(halved: Halved, tmp_path: Path) -> None:
    target = str(tmp_path / "half.ttl")
    for status, words in (
        (0, ("sparql", halved.ccq_id, COUNT)),
        (5, ("sparql", "export", "air", target)),
    ):
        done = run(halved, *words, "--json")
        assert (done.exit_code, WARNING in done.stderr) == (status, True), done.output
        assert run(halved, *words, "--require-complete").exit_code == 5

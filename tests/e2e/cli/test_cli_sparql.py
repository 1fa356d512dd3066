"""`galileo sparql` on files and against a real cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from processes import ended
from rdflib import Graph

import galileo
from galileo import rdf
from galileo.cli.main import main
from galileo.client import Spool

ROWS = 60
COUNT = "SELECT (COUNT(?p) AS ?n) { ?p a g:Path }"
ENDLESS = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l }"
WARM = ("--query", "temperature > 290")
Run = Callable[..., Result]


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "latitude": rng.uniform(30, 45, ROWS),
            "longitude": rng.uniform(-110, -90, ROWS),
            "time": pd.Timestamp("2014-03-01", tz="UTC") + pd.to_timedelta(range(ROWS), unit="h"),
            "temperature": np.arange(260.0, 260.0 + ROWS),
        }
    )


HOT = int((frame()["temperature"] > 290).sum())


@pytest.fixture(scope="module")
def dataset(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("asked")
    client.create_dataset(
        galileo.Schema(name, [galileo.Feature("temperature", "K")], geohash_precision=4)
    )
    client.ingest(name, frame())
    return name


@pytest.fixture(scope="module")
def run(cluster: galileo.LocalCluster) -> Run:
    def ran(*words: str, fails: int = 0, given: str | None = None) -> Result:
        nodes = [word for address in cluster.addresses for word in ("--node", address)]
        done = CliRunner().invoke(main, [*nodes, "sparql", *words], input=given)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == fails, done.output
        return done

    return ran


@pytest.fixture
def exported(run: Run, dataset: str, tmp_path: Path) -> Path:
    path = tmp_path / "warm.ttl"
    run("export", dataset, str(path), *WARM)
    return path


def value(done: Result) -> Any:
    return json.loads(done.stdout)


def test_sparql_query_from_argument_file_or_standard_input(
    run: Run, dataset: str, tmp_path: Path
) -> None:
    path = tmp_path / "count.rq"
    path.write_text(f"# how many\n{COUNT}\n")
    for words, given in (
        ((COUNT,), None),
        (("--file", str(path)), None),
        (("--file", "-"), COUNT),
    ):
        done = run("query", dataset, *words, *WARM, "--json", given=given)
        assert value(done) == [{"n": HOT}]
    assert value(run(dataset, COUNT, *WARM, "--json")) == [{"n": HOT}]
    for words in ((), (COUNT, "--file", str(path)), ("--file", str(tmp_path / "absent.rq"))):
        assert "invalid_input" in run("query", dataset, *words, fails=2).stderr


def test_sparql_with_a_misspelt_feature_warns(run: Run, dataset: str) -> None:
    done = run(dataset, "ASK { ?p f:temprature ?t }", "--json")
    assert json.loads(done.stdout)["boolean"] is False
    assert "did you mean f:temperature?" in done.stderr


def test_sparql_query_writes_w3c_formats(run: Run, dataset: str, tmp_path: Path) -> None:
    assert run("query", dataset, COUNT, *WARM, "--format", "csv").stdout.split() == ["n", str(HOT)]
    path = tmp_path / "cells.xml"
    text = "SELECT ?h { ?c a g:Cell ; g:value ?h }"
    run("query", dataset, text, "--format", "xml", "--output", str(path))
    assert path.read_bytes().startswith(b"<?xml")
    turtle = run("query", dataset, "DESCRIBE ?d { ?d a g:Dataset }", "--format", "turtle").stdout
    assert len(Graph().parse(data=turtle, format="turtle")) >= 8
    assert "invalid_input" in run("query", dataset, COUNT, "--format", "turtle", fails=2).stderr


@pytest.mark.parametrize("suffix", [".nt", ".ttl", ".rdf", ".jsonld"])
def test_sparql_export_can_be_queried_without_a_cluster(
    run: Run, dataset: str, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"warm{suffix}"
    assert value(run("export", dataset, str(path), *WARM, "--json"))["bytes"] > 1_000
    done = CliRunner().invoke(main, ["sparql", "query", str(path), COUNT, "--json"])
    assert value(done) == [{"n": HOT}]


def test_sparql_with_conflicting_options_is_refused(
    run: Run, dataset: str, exported: Path, tmp_path: Path
) -> None:
    assert "--query" in run("query", str(exported), COUNT, *WARM, fails=2).stderr
    assert "invalid_input" in run("query", str(tmp_path / "no.ttl"), COUNT, fails=2).stderr
    assert "invalid_input" in run("query", str(tmp_path / "no.spool"), COUNT, fails=2).stderr
    assert "invalid_input" in run("export", dataset, str(tmp_path / "x.txt"), fails=2).stderr
    (tmp_path / "bad.ttl").write_text("this is no Turtle")
    assert "does not parse" in run("query", str(tmp_path / "bad.ttl"), COUNT, fails=2).stderr
    assert "unknown_dataset" in run("query", "nowhere", COUNT, fails=2).stderr


def test_sparql_update_is_refused_with_the_remedy(run: Run, exported: Path) -> None:
    refusal = run("query", str(exported), "DELETE WHERE { ?s ?p ?o }", fails=2).stderr
    assert "galileo sparql export" in refusal
    assert "to_graph" not in refusal


def test_sparql_query_returns_blocks_and_observations(
    run: Run, dataset: str, tmp_path: Path
) -> None:
    text = "SELECT ?p { ?p f:temperature ?t } ORDER BY DESC(?t) LIMIT 3"
    blocks = value(run("query", dataset, text, "--blocks", "--json"))["blocks"]
    assert len(blocks) == 3
    assert run("query", dataset, text, "--blocks").stdout.split() == blocks
    path = tmp_path / "hottest.parquet"
    assert value(run("query", dataset, text, "--read", str(path), "--json"))["rows"] == 3
    found = pyarrow.parquet.read_table(path).column("temperature").to_pylist()
    assert sorted(found) == sorted(frame()["temperature"])[-3:]


def test_sparql_query_of_ccqs_and_spools(
    run: Run, client: galileo.Client, dataset: str, tmp_path: Path
) -> None:
    ccq = client.submit(dataset, "temperature > 290", interval="1h", expiration="2h")
    try:
        assert value(run("query", ccq.id, COUNT, "--json")) == [{"n": HOT}]
        path = tmp_path / "hot.spool"
        with Spool(path) as spool, client.sparql_view(ccq.id, spool=spool) as view:
            assert len(view) == HOT
        assert value(run("query", str(path), COUNT, "--json")) == [{"n": HOT}]
    finally:
        client.cancel(ccq.id)


def test_sparql_ontology_prints_turtle(run: Run) -> None:
    assert run("ontology").stdout == rdf.ontology()
    assert value(run("ontology", "--json")) == {"turtle": rdf.ontology()}


# --- processes of their own ----------------------------------------------------------------------


# Where the tests run in the background, programs are started with Ctrl-C ignored.
MINDING = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from galileo.cli.main import main; main()"
)


@contextmanager
def started(*words: str, nodes: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    named = [word for address in nodes for word in ("--node", address)]
    command = [sys.executable, "-c", MINDING, *named, "sparql", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_sparql_query_interrupted_ends_its_processes(exported: Path) -> None:
    with started("query", str(exported), ENDLESS, "--timeout", "600") as asking:
        family = psutil.Process(asking.pid)
        until = time.monotonic() + 60
        while len(family.children(recursive=True)) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        workers = [child.pid for child in family.children(recursive=True)]
        assert len(workers) == 2
        asking.send_signal(signal.SIGINT)
        assert asking.wait(60) == 130
    assert ended(*workers)

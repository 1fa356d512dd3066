"""SPARQL over a continuous query's growing result, against a real cluster."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from expected_errors import raises

import galileo
from galileo import rdf
from galileo.client import Labels, Spool, Update
from galileo.client.sparql_views import SparqlView, open_view
from galileo.cursor import CommitRange
from galileo.errors import CcqCancelled, InputError, TransientError
from galileo.labels import LabelSet
from galileo.rdf import IncrementalGraph

COUNT = "SELECT (COUNT(?p) AS ?n) { ?p a g:Path }"
ALL = "CONSTRUCT { ?s ?p ?o } WHERE { ?s ?p ?o }"
SOON_S = 60.0


def reports(number: int, rows: int = 20) -> pd.DataFrame:
    """Observations of which each makes a label of its own; half of them are warm."""
    rng = np.random.default_rng(number)
    return pd.DataFrame(
        {
            "latitude": rng.uniform(30, 45, rows),
            "longitude": rng.uniform(-110, -90, rows),
            "time": pd.Timestamp("2014-03-01", tz="UTC") + pd.to_timedelta(range(rows), unit="h"),
            "temperature": np.where(np.arange(rows) % 2, 300.0, 280.0) + number / 8,
        }
    )


@pytest.fixture
def dataset(client: galileo.Client, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("views")
    features = [galileo.Feature("temperature", "K")]
    client.create_dataset(galileo.Schema(name, features, geohash_precision=4))
    client.ingest(name, reports(0))
    return name


@pytest.fixture
def ccq(client: galileo.Client, dataset: str) -> galileo.Ccq:
    return client.submit(dataset, "temperature > 295", interval="200ms", expiration="5m")


def statements(answer: rdf.SparqlResult) -> list[str]:
    return sorted(answer.triples.splitlines())


def test_sparql_view_grows_with_the_result(
    client: galileo.Client, dataset: str, ccq: galileo.Ccq
) -> None:
    with client.sparql_view(ccq.id) as view:
        assert len(view) == len(ccq.initial) == 10
        for number in range(1, 4):
            client.ingest(dataset, reports(number))
            assert view.wait(labels=10 * (number + 1), timeout_s=SOON_S)
            assert view.sparql(COUNT).rows == [{"n": 10 * (number + 1)}]
        whole = client.query(dataset, "temperature > 295")
        assert statements(view.sparql(ALL)) == statements(whole.sparql(ALL))
        assert client.fetch(ccq.id, token=view.token).labels.table.num_rows == 0
        again = client.read(
            view.sparql("SELECT ?p { ?p f:temperature ?t FILTER(?t = 300.25) }").labels()
        )
        assert again.column("temperature").to_pylist() == [300.25] * 10
        client.cancel(ccq.id)
        assert not view.wait(labels=1_000, timeout_s=SOON_S)
        assert isinstance(view.ended, CcqCancelled)
        assert view.sparql(COUNT).rows == [{"n": 40}]


@pytest.mark.slow
def test_sparql_view_with_a_spool_continues(
    client: galileo.Client, dataset: str, ccq: galileo.Ccq, tmp_path: Path
) -> None:
    with Spool(tmp_path / "warm.spool") as spool:
        with client.sparql_view(ccq.id, spool=spool) as view:
            client.ingest(dataset, reports(1))
            assert view.wait(labels=20, timeout_s=SOON_S)
        client.ingest(dataset, reports(2))
        with client.sparql_view(ccq.id, spool=spool) as view:
            assert view.wait(labels=30, timeout_s=SOON_S)
            assert view.sparql(COUNT).rows == [{"n": 30}]
        assert len(spool) == 30


async def test_sparql_view_above_labels_max_ends(
    cluster: galileo.LocalCluster, client: galileo.Client, dataset: str, ccq: galileo.Ccq
) -> None:
    async with galileo.AsyncClient(*cluster.addresses) as other:
        view = await other.sparql_view(ccq.id, labels_max=15)
        try:
            await asyncio.to_thread(client.ingest, dataset, reports(1))
            assert not await asyncio.to_thread(view.wait, labels=20, timeout_s=SOON_S)
            assert isinstance(view.ended, InputError)
            assert view.ended.details["parameter"] == "labels_max"
            answer = await asyncio.to_thread(view.sparql, COUNT)
            # What is new may come in parts, of which the first may fit.
            assert 10 <= answer.rows[0]["n"] <= 15
        finally:
            view.close()
        with raises(InputError, bound=5):
            await other.sparql_view(ccq.id, labels_max=5)


# --- a source of updates that repeats itself -----------------------------------------------------


class Repeating:
    """Gives labels in updates, some of which overlap, as readers without a token get them."""

    def __init__(self, labels: Labels, cuts: list[tuple[int, int]]) -> None:
        self.updates = [
            Update(self._part(labels, start, stop), token=f"token-{number}", more=number == 0)
            for number, (start, stop) in enumerate(cuts)
        ]
        self.asked: list[str] = []

    @staticmethod
    def _part(labels: Labels, start: int, stop: int) -> Labels:
        part = labels.slice(start, stop)
        assert isinstance(part, Labels)
        return part

    async def fetch(self, ccq_id: str, *, token: str = "") -> Update:
        self.asked.append(token)
        return self.updates[0 if not token else 1]

    async def watch(
        self, ccq_id: str, *, token: str = "", spool: Spool | None = None
    ) -> AsyncIterator[Update]:
        self.asked.append(token)
        for update in self.updates[2:]:
            yield update
        raise CcqCancelled("it is over")


async def test_sparql_view_holds_repeated_labels_once(client: galileo.Client, dataset: str) -> None:
    found = client.query(dataset)
    source = Repeating(found, [(0, 5), (3, 8), (8, 8), (0, 20), (15, 20)])
    view: SparqlView = await open_view(source, "ccq-1", token="", spool=None)
    with view:
        assert await asyncio.to_thread(view.wait, labels=20, timeout_s=SOON_S)
        assert not await asyncio.to_thread(view.wait, labels=21, timeout_s=SOON_S)
        assert source.asked == ["", "token-0", "token-1"]
        assert (len(view), view.token) == (20, "token-4")
        answer = await asyncio.to_thread(view.sparql, COUNT)
        assert answer.rows == [{"n": 20}]
        assert statements(view.sparql(ALL)) == statements(found.sparql(ALL))


async def test_sparql_view_names_missing_partitions_and_gone_commits(
    client: galileo.Client, dataset: str, tmp_path: Path
) -> None:
    found = client.query(dataset)
    source = Repeating(found, [(0, 5), (5, 8), (8, 20)])
    lost = [CommitRange(0, 1, 4), CommitRange(2, 1, 9)]
    partial = Labels(found.schema, found.table.slice(5, 3), missing=[3])
    source.updates[0] = replace(source.updates[0], gone=(lost[0],))
    source.updates[1] = replace(source.updates[1], labels=partial, gone=(lost[1],))
    view = await open_view(source, "ccq-1", token="", spool=None)
    with view:
        assert (view.missing, view.gone) == ((3,), tuple(lost))
        assert await asyncio.to_thread(view.wait, labels=20, timeout_s=SOON_S)
        assert (view.missing, view.gone) == ((), tuple(lost))
    with Spool(tmp_path / "partial.spool") as spool:
        (await open_view(source, "ccq-1", token="", spool=spool)).close()
        again = Repeating(found, [(20, 20), (20, 20)])
        again.updates[0] = replace(again.updates[0], more=False)
        again.updates[1] = replace(again.updates[1], more=False)
        with await open_view(again, "ccq-1", token="", spool=spool) as view:
            assert (len(view), view.gone) == (8, tuple(lost))


async def test_sparql_view_ends_with_the_error_of_its_watch(
    client: galileo.Client, dataset: str
) -> None:
    class Exhausted(Repeating):
        async def watch(
            self, ccq_id: str, *, token: str = "", spool: Spool | None = None
        ) -> AsyncIterator[Update]:
            raise OSError(errno.EMFILE, "Too many open files")
            yield self.updates[0]

    source = Exhausted(client.query(dataset), [(0, 5), (5, 8)])
    with await open_view(source, "ccq-1", token="", spool=None) as view:
        assert not await asyncio.to_thread(view.wait, labels=20, timeout_s=SOON_S)
        assert isinstance(view.ended, TransientError)


def test_sparql_view_of_an_update_of_another_dataset_is_refused(
    client: galileo.Client, dataset: str
) -> None:
    other = galileo.Schema("elsewhere", [galileo.Feature("level")])
    with SparqlView("ccq-1", IncrementalGraph(other)) as view:
        with raises(InputError, dataset=dataset):
            view.apply(Update(client.query(dataset), token="next"))
        assert (len(view), view.token) == (0, "")
        assert isinstance(view.labels, LabelSet)

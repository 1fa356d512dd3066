"""The docstrings of the public classes: each has one, with an example that runs.

Examples are written as for doctest. They find a client, the module `galileo` and what `Examples`
prepares; those of `AsyncClient` are the same with `await`, and are compiled.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import pandas as pd
import pytest
from synopses import wait_for_synopses

import galileo
import galileo.client
from galileo.query.builder import Properties, Property
from galileo.sampler_runtime import unavailable_reason

DATASET = "weather"
FRAME = pd.DataFrame(
    {
        "latitude": [40.0, 40.1, 41.0, 52.5],
        "longitude": [-105.0, -105.1, -104.0, 13.4],
        "time": pd.to_datetime(
            ["2014-03-01T06:10Z", "2014-03-01T07:10Z", "2014-03-01T08:10Z", "2014-03-01T08:20Z"]
        ),
        "temperature": [288.0, 291.0, 292.5, 279.0],
        "station": ["KDEN", "KDEN", "KCYS", "EDDB"],
    }
)
SAMPLER = """
import numpy as np

{comment}
class Thin:
    def sample(self, labels, *, seed):
        return np.arange(len(labels)) % 2 == 0
"""
WARM_DAY = FRAME[1:2]
"""One observation, of 291 K."""
CHANNEL, DATASET_OF_CHANNEL = "hot", "weather-of-hot"
"""A channel of examples, and its dataset in place of DATASET, where what they ingest would change
the answers of others."""
ADDRESS = "127.0.0.1:7701"
CALLS = re.compile(r"client\.(\w+)")
READS = ({"follow"}, {"fetch_notifications"})
"""Calls of examples that only read what is due to a broker."""
SENDS = {"send_sampler", "sent_samplers", "revoke_sampler"}
"""Calls whose examples need a machine that can contain a sampler."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Documented:
    """A class, function, method or property of the public API."""

    name: str
    kind: str
    doc: str
    is_public_class: bool = True

    @property
    def examples(self) -> list[doctest.Example]:
        return doctest.DocTestParser().get_examples(self.doc, self.name)

    @property
    def needs_example(self) -> bool:
        return self.kind in ("function", "method") or (
            self.kind == "class" and self.is_public_class
        )


def public() -> Iterator[Documented]:
    named = {name: getattr(galileo, name) for name in galileo.__all__ if name != "__version__"}
    named |= {name: getattr(galileo.client, name) for name in galileo.client.__all__}
    named |= {"Property": Property, "Properties": Properties}
    for name, value in sorted(named.items()):
        if inspect.isclass(value):
            is_named = name in galileo.__all__
            yield Documented(name, "class", own_doc(value), is_public_class=is_named)
            yield from members(name, value)
        elif inspect.isfunction(value):
            yield Documented(name, "function", own_doc(value))


def members(name: str, cls: type) -> Iterator[Documented]:
    for member in sorted({n for base in ours(cls) for n in vars(base) if not n.startswith("_")}):
        value = inspect.getattr_static(cls, member)
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if inspect.isfunction(value):
            yield Documented(f"{name}.{member}", "method", own_doc(value))
        elif isinstance(value, property):
            yield Documented(f"{name}.{member}", "property", own_doc(value.fget))


def ours(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.startswith("galileo.")]


def own_doc(value: Any) -> str:
    """Dataclasses without a docstring have one all the same: their signature."""
    doc = value.__doc__ or ""
    is_made = inspect.isclass(value) and doc.startswith(f"{value.__name__}(")
    return "" if is_made else inspect.cleandoc(doc)


PUBLIC = list(public())
ASYNC = [one for one in PUBLIC if one.name.startswith("AsyncClient") and one.examples]
BLOCKING = [one for one in PUBLIC if not one.name.startswith("AsyncClient") and one.examples]


def test_public_names_have_docstrings_with_examples() -> None:
    assert not [documented.name for documented in PUBLIC if not documented.doc]
    needing = [documented for documented in PUBLIC if documented.needs_example]
    without = [documented.name for documented in needing if not documented.examples]
    assert not without, "add a section `Example:` with >>> lines"


@pytest.fixture(scope="module")
def weather(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    """A directory with the files that examples read; the dataset is there meanwhile."""
    schema = galileo.Schema(
        DATASET,
        [galileo.Feature("temperature", unit="K"), galileo.Feature("station", type="text")],
        geohash_precision=3,
    )
    client.create_dataset(schema)
    client.create_dataset(galileo.Schema(DATASET_OF_CHANNEL, schema.features, geohash_precision=3))
    client.ingest(DATASET, FRAME, producer="march-2014")
    wait_for_synopses(cluster, DATASET)
    directory = tmp_path_factory.mktemp("examples")
    (directory / "thin.py").write_text(SAMPLER.format(comment=""))
    (directory / "thin_once.py").write_text(SAMPLER.format(comment="# Once."))
    yield directory
    for info in client.list_ccqs():
        if info.dataset.startswith(DATASET):
            client.cancel(info)


def fill_shelters(client: galileo.Client) -> None:
    """Makes the table of the examples, always with the same rows."""
    table = galileo.Table("shelters", {"id": "text", "beds": "int"}, key="id")
    if table.name in {one.name for one in client.tables()}:
        client.drop_dataset(table.name)
    client.create_table(table)
    client.upsert(table.name, {"id": ["a", "b"], "beds": [40, 25]})


def uses_channel(source: str) -> bool:
    return "client" in source and ("channels()" in source or f'"{CHANNEL}' in source)


def prepare_channel(client: galileo.Client, source: str, before: str) -> None:
    """Makes the channel of the examples and its subscriptions, unless the example makes it.

    It stays as it is where the example before has only read it, as this one does.
    """
    if all(set(CALLS.findall(one)) in READS for one in (before, source)):
        return
    if CHANNEL in {one.name for one in client.channels()}:
        client.drop_dataset(CHANNEL)
    if "create_channel" in source:
        return
    template = "temperature > :least"
    client.create_channel(galileo.Channel(CHANNEL, DATASET_OF_CHANNEL, template, period="100ms"))
    client.subscribe(CHANNEL, {"id": ["anna", "bert"], "least": [285.0, 300.0]}, broker="me")
    reads = "client.follow" in source or "client.fetch_notifications" in source
    if reads and "client.ingest" not in source:
        client.ingest(DATASET_OF_CHANNEL, WARM_DAY)


@pytest.fixture(scope="module")
def channel_examples() -> list[str]:
    """The sources of the examples so far that use the channel."""
    return [""]


@pytest.fixture
def names(
    client: galileo.Client,
    cluster: galileo.LocalCluster,
    weather: Path,
    channel_examples: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """What the examples of a docstring find; what takes a while, only where they name it."""
    monkeypatch.chdir(weather)
    with contextlib.ExitStack() as opened:

        def make(name: str) -> Any:
            if name == "labels":
                return client.query(DATASET)
            ccq = client.submit(DATASET, "temperature > 290")
            if name == "view":
                return opened.enter_context(client.sparql_view(ccq))
            if name == "spool":
                spool = opened.enter_context(galileo.Spool(f"{ccq.id}.spool"))
                spool.store(ccq.id, client.fetch(ccq))
                return spool
            return ccq

        def prepared(source: str) -> dict[str, Any]:
            if "shelters" in source:
                fill_shelters(client)
            if uses_channel(source):
                prepare_channel(client, source, channel_examples[-1])
                channel_examples.append(source)
            found: dict[str, Any] = {"galileo": galileo, "client": client, "cluster": cluster}
            found |= {"frame": FRAME, "warm_day": WARM_DAY}
            used = {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}
            found |= {name: make(name) for name in used & {"labels", "ccq", "view", "spool"}}
            for name in used & {"view", "spool"}:
                ids = {info.id: info for info in client.list_ccqs()}
                found["ccq"] = ids[found[name].ccq_id]
            return found

        yield prepared
    from matplotlib import pyplot  # Not by each process that shares the tests.

    pyplot.close("all")


def compiled(example: doctest.Example) -> CodeType:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(example.source, "<example>", "single", flags=flags, dont_inherit=True)


def test_docstrings_of_both_clients_have_the_same_examples() -> None:
    by_name = {documented.name: documented for documented in PUBLIC}
    for documented in ASYNC:
        assert all(compiled(example) for example in documented.examples)
        twin = by_name[documented.name.removeprefix("Async")]
        awaited = [example.source for example in documented.examples]
        without = [s.replace("await ", "").replace("async ", "") for s in awaited]
        if documented.name not in ("AsyncClient", "AsyncClient.close"):
            assert [example.source for example in twin.examples] == without, documented.name


@pytest.mark.parametrize("one", BLOCKING, ids=lambda one: one.name)
def test_docstring_examples_run(
    one: Documented,
    names: Callable[[str], dict[str, Any]],
    cluster: galileo.LocalCluster,
) -> None:
    if one.name.partition(".")[2] in SENDS and unavailable_reason() is not None:
        pytest.skip(f"sent code cannot be contained here: {unavailable_reason()}")
    examples = [e for e in one.examples if not e.options.get(doctest.SKIP)]
    if not examples:
        return
    source = "".join(example.source for example in examples)
    found, replaced = names(source), {ADDRESS: cluster.addresses[0]}
    if uses_channel(source):
        replaced[f'"{DATASET}"'] = f'"{DATASET_OF_CHANNEL}"'
    with asyncio.Runner() as runner:
        for example in examples:
            for old, new in replaced.items():
                example.source = example.source.replace(old, new)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                result = eval(compiled(example), found)
                if inspect.iscoroutine(result):
                    runner.run(result)
            got = printed.getvalue()
            right = doctest.OutputChecker().check_output(example.want, got, FLAGS)
            assert right, f"{one.name}: {example.source}expected {example.want}got {got}"

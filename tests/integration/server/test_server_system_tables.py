"""What a whole node stores in the tables that Galileo reads itself, and for whom."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises
from gateway_serving import node
from proving import Tokens, auth_section

import galileo
from galileo.client.row_changes import change_row, read_row
from galileo.cursor import Cursor
from galileo.errors import Forbidden, InputError, InvalidObservations, InvalidSchema
from galileo.model.broker import BROKERS, WORKERS
from galileo.model.reader import POSITIONS
from galileo.model.table import Table, in_system
from galileo.rpc.access import Role
from galileo.wire import token as tokens_of

MAIL = json.dumps(galileo.Broker("mail").to_dict())
NOW = dt.datetime.now(dt.UTC)
Clients = dict[str, galileo.AsyncClient]


@pytest.fixture
async def clients(tmp_path: Path) -> AsyncIterator[Clients]:
    """A client of each principal; "ops" has grants on Galileo's own tables, "ann" on all others."""
    tokens = Tokens.made(tmp_path / "principals.toml")
    tokens.add("root", Role.ADMIN)
    tokens.add("ann", Role.WRITER, datasets=("*",))
    tokens.add("ops", Role.WRITER, datasets=("*", "galileo.*"))
    nodes = Tokens.made(tokens.path)
    auth = auth_section(tokens, nodes.add("nodes", Role.NODE))
    async with node(tmp_path / "node", {"auth": auth}) as at, contextlib.AsyncExitStack() as stack:
        made = Clients()
        for name in ("root", "ann", "ops"):
            client = galileo.AsyncClient(at, timeout="30s", proof=tokens.proof(name))
            made[name] = await stack.enter_async_context(client)
        await made["root"].create_dataset(galileo.Schema("air", [galileo.Feature("pm10")]))
        await made["root"].create_channel(galileo.Channel("smog", "air", "pm10 > :least"))
        yield made


async def test_writer_with_a_grant_on_everything_changes_no_table_of_galileo(
    clients: Clients,
) -> None:
    ann, ops = clients["ann"], clients["ops"]
    with raises(Forbidden, dataset=BROKERS.name):
        await ann.create_broker(galileo.Broker("mail"))
    with raises(Forbidden, dataset=POSITIONS.name):
        await ann.advance_reader("air", "mine", Cursor(), hold="7d")
    with raises(Forbidden, dataset=WORKERS.name):
        await ann.create_table(WORKERS)
    await ops.create_broker(galileo.Broker("mail"))
    await ops.advance_reader("air", "nightly", Cursor(), hold="7d")
    with raises(Forbidden, dataset=BROKERS.name):
        await ann.drop_dataset(BROKERS.name)
    with raises(Forbidden, dataset=BROKERS.name):
        await change_row(ann, BROKERS, "mail", lambda _: {"definition": "{not json"})
    assert [one.name for one in await ann.brokers()] == ["mail"], "it may read them"


async def test_names_of_galileo_are_those_of_its_tables(clients: Clients) -> None:
    root = clients["root"]
    other = Table(BROKERS.name, {"name": "text"}, key="name")
    mine = Table("galileo.mine", {"name": "text"}, key="name")
    for schema in (other, mine, BROKERS, POSITIONS):
        with raises(InvalidSchema, expected="free_name"):
            await root.create_table(schema)
    with raises(InvalidSchema, expected="no_first_partition"):
        await root.create_table(in_system(Table("mine", {"name": "text"}, key="name")))
    for table in (BROKERS, POSITIONS):
        with raises(InputError, dataset=table.name):
            await root.drop_dataset(table.name)
        joined = galileo.Lookup(table.name, on="pm10")
        with raises(InputError, dataset=table.name):
            await root.create_channel(galileo.Channel("c", "air", "pm10 > :x", enrich=[joined]))
    with raises(InvalidSchema, expected="free_name"):
        await root.create_dataset(galileo.Schema("galileo.mine", [galileo.Feature("depth")]))
    with raises(InvalidSchema, expected="free_name"):
        await root.create_dataset(galileo.Schema(POSITIONS.name, [galileo.Feature("depth")]))


UNREADABLE: list[tuple[Table, str, dict[str, Any]]] = [
    (BROKERS, "mail", {"definition": "{not json"}),
    (BROKERS, "mail", {"definition": "{}"}),
    (BROKERS, "other", {"definition": MAIL}),
    (BROKERS, "mail", {"definition": MAIL.replace("null", '{"kind": "fax"}', 1)}),
    (POSITIONS, "reader/air", {"hold_us": 5, "stored_at": NOW}),
    (POSITIONS, "reader/air/", {"hold_us": 5, "stored_at": NOW}),
    (POSITIONS, "reader/air/a/b", {"hold_us": 5, "stored_at": NOW}),
    (POSITIONS, "reader/air/mine", {"hold_us": 5}),
    (POSITIONS, "reader/air/mine", {"hold_us": 2**62, "stored_at": NOW}),
    (POSITIONS, "reader/air/mine", {"hold_us": -1, "stored_at": NOW}),
    (POSITIONS, "reader/air/mine", {"hold_us": 5, "stored_at": NOW, "token": "damaged"}),
    (POSITIONS, "broker/smog/mail", {"token": "damaged"}),
    (POSITIONS, "broker/smog/mail", {"token": tokens_of.encode("broker/smog/fax", Cursor())}),
    (POSITIONS, "broker/smog/mail", {"progress": "{not json"}),
    (POSITIONS, "broker/smog/mail", {"progress": '{"0": 5}'}),
    (POSITIONS, "broker/smog/a/b", {"token": ""}),
]


@pytest.mark.slow
async def test_row_that_cannot_be_read_is_refused_when_it_is_stored(clients: Clients) -> None:
    ops = clients["ops"]
    await ops.create_broker(galileo.Broker("mail"))
    await ops.advance_reader("air", "nightly", Cursor(), hold="7d")
    for table, key, changes in UNREADABLE:
        before = await read_row(ops, table, key)
        with raises(InvalidObservations, expected="readable_row"):
            await change_row(ops, table, key, lambda _, changes=changes: changes)
        assert not (await read_row(ops, table, key)).is_changed(before), (key, changes)


async def test_states_are_changed_under_conditions_and_never_deleted(clients: Clients) -> None:
    ops = clients["ops"]
    await ops.create_broker(galileo.Broker("mail"))
    await ops.acknowledge("smog", "mail", "")
    two = {"name": ["mail", "fax"], "definition": ["", ""]}
    now = {"unchanged_since": (await ops.table(BROKERS.name)).cursor}
    refused = [
        lambda: ops.upsert(BROKERS.name, {"name": ["mail"], "definition": [""]}),
        lambda: ops.upsert(BROKERS.name, two, **now),
        lambda: ops.delete(BROKERS.name, ["mail"], **now),
        lambda: ops.upsert(BROKERS.name, {"name": ["mail"]}, producer="mine"),
        lambda: ops.delete(POSITIONS.name, ["broker/smog/mail"]),
        lambda: ops.upsert(POSITIONS.name, {"reader": ["broker/smog/mail"], "token": [""]}),
        lambda: ops.upsert(POSITIONS.name, {"reader": ["broker/smog/mail"]}, producer="mine"),
    ]
    for attempt in refused:
        with raises(InvalidObservations, expected="conditional_row"):
            await attempt()
    assert [one.name for one in await ops.brokers()] == ["mail"]
    await ops.drop_broker("mail")
    assert await ops.brokers() == []

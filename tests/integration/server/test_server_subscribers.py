"""What subscribers may do at a whole node: by the client, over HTTP, and on the command line."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc.aio
import pandas as pd
import pytest
from click.testing import CliRunner
from expected_errors import raises
from gateway_serving import gateway, node
from proving import Tokens, auth_section, token_file

import galileo
from galileo.cli.main import main
from galileo.client.row_changes import KnownRow, change_row, read_row, replace_row
from galileo.cursor import Cursor
from galileo.errors import Conflict, Forbidden, GalileoError, InputError, UnknownDataset
from galileo.gateway.options import GatewayOptions
from galileo.model.reader import POSITIONS
from galileo.rpc.access import Role
from galileo.wire.channel import open_channel
from galileo.wire.services import CHANNELS, stub_of
from galileo.wire.tls_credentials import TlsFiles
from galileo.wire.v1 import channels_pb2

TIMEOUT_S = 60.0
SMOG = galileo.Channel("smog", "air", "pm10 > :least", period="100ms")
NOON = pd.Timestamp("2026-05-02T12:00Z")


class Site:
    """A node with the channels "smog" and "near", and a client of each principal."""

    def __init__(self, address: str, tokens: Tokens, directory: Path) -> None:
        self.address, self.tokens, self.directory = address, tokens, directory
        self.clients: dict[str, galileo.AsyncClient] = {}

    def __getitem__(self, name: str) -> galileo.AsyncClient:
        return self.clients[name]

    async def begin(self, stack: contextlib.AsyncExitStack) -> None:
        for name in self.tokens.tokens:
            client = galileo.AsyncClient(self.address, timeout="30s", proof=self.tokens.proof(name))
            self.clients[name] = await stack.enter_async_context(client)
        root = self["root"]
        await root.create_dataset(galileo.Schema("air", [galileo.Feature("pm10")]))
        await root.create_channel(SMOG)
        await root.create_channel(galileo.Channel("near", "air", "pm10 < :most"))
        await root.create_broker(galileo.Broker("mail", galileo.Webhook("https://harbour.org")))
        columns = {"broker": "text", "place": "text"}
        await root.create_table(galileo.Table("smog.d.subscriptions", columns, key="broker"))
        await root.upsert("smog.d.subscriptions", {"broker": ["mail"], "place": ["harbour"]})

    async def ingest(self, *values: float) -> None:
        rows = [{"latitude": 1.0, "longitude": 1.0, "time": NOON, "pm10": one} for one in values]
        await self["root"].ingest("air", pd.DataFrame(rows))

    async def owners(self) -> dict[str, str]:
        rows = (await self["root"].table("smog.subscriptions")).rows
        return dict(zip(rows["id"].to_pylist(), rows["broker"].to_pylist(), strict=True))

    def audited(self) -> list[dict[str, Any]]:
        lines = (self.directory / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    tokens = Tokens.made(tmp_path / "principals.toml")
    tokens.add("root", Role.ADMIN)
    for name in ("mail", "fax"):
        tokens.add(name, Role.SUBSCRIBER, datasets=("smog", "smog.d"))
    tokens.add("sms", Role.SUBSCRIBER, datasets=("*",), brokers=("sms-*", "pager"))
    tokens.add("ann", Role.READER, datasets=("*",), brokers=("mail",))
    nodes = Tokens.made(tokens.path)
    sections = {
        "auth": auth_section(tokens, nodes.add("nodes", Role.NODE)),
        "audit": {"file": str(tmp_path / "audit.log")},
    }
    async with (
        node(tmp_path / "node", sections) as address,
        contextlib.AsyncExitStack() as stack,
    ):
        made = Site(address, tokens, tmp_path)
        await made.begin(stack)
        yield made


def some(*ids: str, broker: str | None = None, least: float = 1.0) -> dict[str, Any]:
    rows: dict[str, Any] = {"id": list(ids), "least": [least] * len(ids)}
    return rows if broker is None else rows | {"broker": [broker] * len(ids)}


async def test_subscriber_uses_own_broker_of_granted_channels(site: Site) -> None:
    mail = site["mail"]
    assert [channel.name for channel in await mail.channels()] == ["smog"]
    assert await mail.datasets() == []
    assert (await mail.whoami()).brokers == ("mail",)
    assert (await mail.subscribe("smog", some("anna", "bert"), broker="mail")).rows == 2
    await mail.subscribe("smog", some("bert", least=5.0, broker="mail"))
    await mail.unsubscribe("smog", ["bert", "none"])
    assert await site.owners() == {"anna": "mail"}
    await site.ingest(3.0)
    batch = await anext(mail.follow("smog", "mail", wait="30s"))
    assert batch.to_arrow()["subscription"].to_pylist() == ["anna"]
    assert sum(one.subscriptions for one in await mail.describe_channel("smog")) == 1
    assert await mail.position("smog", "mail") == ""
    for token in (batch.token, batch.token, ""):
        await mail.acknowledge("smog", "mail", token)
        assert await mail.position("smog", "mail") == token


async def test_subscriber_neither_replaces_nor_removes_subscriptions_of_others(site: Site) -> None:
    mail, fax = site["mail"], site["fax"]
    await mail.subscribe("smog", some("anna", "bert"), broker="mail")
    for attempt in (
        fax.subscribe("smog", some("carl", "anna"), broker="fax"),
        fax.unsubscribe("smog", ["carl", "anna"]),
    ):
        with raises(Forbidden, subscription="anna") as refused:
            await attempt
        assert "mail" not in str(refused.value)
        assert "use another id" in str(refused.value)
    with raises(Forbidden, broker="mail"):
        await fax.subscribe("smog", some("carl", broker="mail"))
    with raises(Forbidden, broker="mail"):
        await fax.subscribe(
            "smog", {"id": ["carl", "dora"], "broker": ["fax", "mail"], "least": [1.0, 1.0]}
        )
    # One node stores all parts of a batch or none.
    assert await site.owners() == {"anna": "mail", "bert": "mail"}
    await fax.unsubscribe("smog", ["none"])
    await mail.unsubscribe("smog", ["anna"])
    await fax.subscribe("smog", some("anna"), broker="fax")
    await site["root"].subscribe("smog", some("bert"), broker="fax")
    assert await site.owners() == {"anna": "fax", "bert": "fax"}
    refusals = [line for line in site.audited() if line["outcome"] == "forbidden"]
    assert {(line["principal"], line["action"]) for line in refusals} == {("fax", "Storage/Ingest")}
    assert refusals[0]["object"].startswith("smog.subscriptions")
    assert refusals[0]["roles"] == ["subscriber"]


async def test_of_two_changes_of_a_position_by_two_principals_one_counts(site: Site) -> None:
    mail, root = site["mail"], site["root"]
    key = "broker/smog/mail"
    before = await read_row(root, POSITIONS, key)
    await replace_row(mail, POSITIONS, before, token="", worker="", failure="first")
    with raises(Conflict, key=key):
        await replace_row(root, POSITIONS, before, token="", worker="", failure="second")
    assert (await read_row(mail, POSITIONS, key))["failure"] == "first"


async def test_position_of_a_channel_that_does_not_exist_is_refused(site: Site) -> None:
    root = site["root"]
    for key in ("broker/smog@1/mail", "broker/none/mail", "reader/none/nightly"):
        with raises(UnknownDataset):
            await read_row(root, POSITIONS, key)
        row = KnownRow({"reader": key}, Cursor(), is_stored=False)
        with raises(UnknownDataset):
            await replace_row(root, POSITIONS, row, hold_us=1, stored_at=NOON)


async def test_who_asks_for_all_positions_gets_those_that_it_may_read(site: Site) -> None:
    for broker in ("mail", "fax"):
        await site["root"].acknowledge("smog", broker, "")
    await site["root"].acknowledge("near", "mail", "")
    await site["root"].advance_reader("air", "nightly", Cursor({}), hold="7d")
    every = {"broker/smog/mail", "broker/smog/fax", "broker/near/mail", "reader/air/nightly"}
    expected = {
        "root": every,
        "mail": {"broker/smog/mail"},
        "fax": {"broker/smog/fax"},
        "sms": set[str](),
        "ann": every - {"broker/smog/fax"},
    }
    for name, keys in expected.items():
        stored = await site[name].table(POSITIONS.name)
        changed = await site[name].changes(POSITIONS.name, Cursor({}))
        assert set(stored.rows["reader"].to_pylist()) == keys, name
        assert set(changed.rows["reader"].to_pylist()) == keys, name
    assert [one.broker for one in await site["mail"].deliveries("smog")] == ["mail"]


@pytest.mark.slow
async def test_of_two_brokers_that_subscribe_one_id_at_once_one_gets_it(site: Site) -> None:
    await asyncio.gather(*(site[name].channels() for name in ("mail", "fax")))

    async def subscribe(name: str, subscription: str) -> tuple[str, str] | None:
        try:
            rows = some(subscription)
            # With a producer of its own, the call is not sent together with others.
            await site[name].subscribe("smog", rows, broker=name, producer=subscription)
        except Forbidden:
            return None
        return subscription, name

    ids = [f"s{number}" for number in range(30)]
    calls = [subscribe(name, one) for one in ids for name in ("mail", "fax")]
    winners = [winner for winner in await asyncio.gather(*calls) if winner is not None]
    assert len(winners) == len(ids)
    assert dict(winners) == await site.owners()


Attempt = Callable[[galileo.AsyncClient], Awaitable[Any]]
ATTEMPTS: dict[str, Attempt] = {
    "follow": lambda one: anext(one.follow("smog", "fax", wait="1s")),
    "fetch": lambda one: one.fetch_notifications("smog", "fax"),
    "position": lambda one: one.position("smog", "fax"),
    "acknowledge": lambda one: one.acknowledge("smog", "fax", ""),
    "another channel": lambda one: one.describe_channel("near"),
    "its dataset": lambda one: one.select("air"),
    "count": lambda one: one.count("air"),
    "submit": lambda one: one.submit("air"),
    "subscriptions": lambda one: one.table("smog.subscriptions"),
    "own subscriptions": lambda one: one.table("smog.subscriptions", keys=["anna"]),
    "two positions": lambda one: one.table(
        POSITIONS.name, keys=["broker/smog/mail", "broker/smog/fax"]
    ),
    "a position in another channel": lambda one: one.table(
        POSITIONS.name, keys=["broker/near/mail"]
    ),
    "a named reader": lambda one: one.table(POSITIONS.name, keys=["reader/air/nightly"]),
    "a hold": lambda one: change_row(
        one, POSITIONS, "reader/air/nightly", lambda _: {"hold_us": 1, "stored_at": NOON}
    ),
    "no position": lambda one: one.table(POSITIONS.name, keys=["mail"]),
    "removal": lambda one: one.delete(POSITIONS.name, ["broker/smog/fax"]),
    "dead letters": lambda one: one.table("smog.dead-letters"),
    "a table that is no channel's": lambda one: one.table("smog.d.subscriptions", keys=["mail"]),
    "rows of it": lambda one: one.upsert(
        "smog.d.subscriptions", {"broker": ["mail"], "place": ["x"]}
    ),
    "brokers": lambda one: one.table("galileo.brokers"),
    "a broker": lambda one: one.create_broker(galileo.Broker("mail", galileo.Into("air"))),
    "creation": lambda one: one.create_channel(galileo.Channel("smog.d", "air", "pm10 > :x")),
    "drop": lambda one: one.drop_dataset("smog"),
    "status": lambda one: one.status(),
    "queries": lambda one: one.list_ccqs(),
    "samplers": lambda one: one.sent_samplers(),
}


async def test_subscriber_may_do_nothing_else(site: Site) -> None:
    await site["fax"].subscribe("smog", some("anna"), broker="fax")
    await site["fax"].acknowledge("smog", "fax", "")
    before = await site.owners()
    for name, attempt in ATTEMPTS.items():
        error = await refusal(attempt(site["mail"]))
        assert isinstance(error, Forbidden | UnknownDataset), (name, error)
        assert "harbour" not in str(error), name
    assert await site.owners() == before


async def refusal(attempt: Awaitable[Any]) -> GalileoError | None:
    try:
        await attempt
    except InputError as error:
        return error
    return None


async def test_patterns_of_brokers_bound_subscribers_and_readers(site: Site) -> None:
    sms, ann = site["sms"], site["ann"]
    assert {channel.name for channel in await sms.channels()} == {"smog", "near"}
    assert await sms.datasets() == []
    await sms.subscribe(
        "smog", {"id": ["a", "b"], "broker": ["sms-1", "pager"], "least": [1.0, 2.0]}
    )
    await sms.subscribe("smog", some("a"), broker="pager")
    with raises(Forbidden, broker="sms"):
        await sms.subscribe("smog", some("c"), broker="sms")
    for broker in ("mail", "fax"):
        await site["root"].subscribe("smog", some(broker), broker=broker)
        await site["root"].acknowledge("smog", broker, "")
    permitted = {
        "dataset": ann.select("air"),
        "own broker": ann.fetch_notifications("smog", "mail"),
        "own position": ann.position("smog", "mail"),
        "a table that is no channel's": ann.table("smog.d.subscriptions"),
    }
    for name, attempt in permitted.items():
        assert await refusal(attempt) is None, name
    for name in ("follow", "fetch", "position", "acknowledge", "subscriptions"):
        assert isinstance(await refusal(ATTEMPTS[name](ann)), Forbidden), name
    for name in ("own subscriptions", "two positions", "dead letters"):
        assert isinstance(await refusal(ATTEMPTS[name](ann)), Forbidden), name
    with raises(Forbidden):  # A reader, whatever the broker.
        await ann.subscribe("smog", some("c"), broker="mail")


async def test_errors_name_no_datasets_to_a_subscriber_of_all_channels(site: Site) -> None:
    async with open_channel(site.address, TlsFiles(token=site.tokens.tokens["sms"])) as channel:
        request = channels_pb2.DescribeChannelRequest(dataset="airs")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub_of(CHANNELS, channel).DescribeChannel(request)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert "air" not in (refused.value.details() or "")


async def ask(
    url: str, token: str, method: str, path: str, body: Any = None
) -> tuple[int, dict[str, Any]]:
    """Status and document of a request."""

    def call() -> tuple[int, dict[str, Any]]:
        where = urlsplit(url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        with contextlib.closing(connection):
            connection.request(method, path, json.dumps(body) if body else None, headers)
            reply = connection.getresponse()
            data = reply.read()
        return reply.status, json.loads(data) if data else {}

    return await asyncio.to_thread(call)


async def first_event(url: str, token: str, path: str) -> str:
    """The first event of a stream, whose head is read."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(head.encode())
    async with asyncio.timeout(TIMEOUT_S):
        await reader.readuntil(b"event: notifications\n")
        event = await reader.readuntil(b"\n\n")
    writer.close()
    return event.decode()


async def test_subscribers_have_the_same_rights_over_http(site: Site) -> None:
    mail, fax = (site.tokens.tokens[name] for name in ("mail", "fax"))
    channel = "/channels/smog"
    anna = {"id": "anna", "broker": "mail", "least": 1}
    options = GatewayOptions(nodes=(site.address,), port=0, patience_s=60.0)
    async with gateway(options) as url:
        assert (await ask(url, mail, "POST", f"{channel}/subscriptions", anna))[0] == 201
        taken = anna | {"broker": "fax"}
        status, document = await ask(url, fax, "POST", f"{channel}/subscriptions", taken)
        assert (status, document["kind"]) == (403, "forbidden")
        assert document["details"]["subscription"] == "anna"
        assert "mail" not in json.dumps(document)
        status, document = await ask(url, fax, "DELETE", f"{channel}/subscriptions/anna")
        assert (status, document["kind"]) == (403, "forbidden")
        assert await site.owners() == {"anna": "mail"}
        await site.ingest(7.0)
        event = await first_event(url, mail, f"{channel}/brokers/mail/events")
        assert '"anna"' in event
        status, page = await ask(url, mail, "GET", f"{channel}/brokers/mail/notifications?wait=30")
        assert status == 200
        position = f"{channel}/brokers/mail/position"
        assert (await ask(url, mail, "PUT", position, {"token": page["next"]}))[0] == 204
        assert (await ask(url, mail, "GET", position))[1] == {"token": page["next"]}
        for path in ("notifications", "events", "position"):
            status, document = await ask(url, fax, "GET", f"{channel}/brokers/mail/{path}")
            assert (status, document["kind"]) == (403, "forbidden"), path
        assert (await ask(url, mail, "DELETE", f"{channel}/subscriptions/anna"))[0] == 204
        assert await site.owners() == {}


async def test_subscribers_have_the_same_rights_in_the_blocking_client_and_the_command_line(
    site: Site,
) -> None:
    own = {name: token_file(site.directory / name, site.tokens.tokens[name]) for name in ("mail",)}

    def run(*words: str) -> Any:
        options = ["--node", site.address, "--token-file", str(own["mail"]), "channel"]
        return CliRunner().invoke(main, [*options, *words])

    def use() -> None:
        with galileo.connect(site.address, token=site.tokens.tokens["fax"]) as fax:
            fax.subscribe("smog", some("fred"), broker="fax")
            with raises(Forbidden, broker="mail"):
                next(fax.follow("smog", "mail", wait="1s"))
        subscribe = ("subscribe", "smog", "--broker", "mail", "--set", "least=1", "--id")
        assert (done := run(*subscribe, "cleo")).exit_code == 0, done.output
        refused = run(*subscribe, "fred")
        assert refused.exit_code != 0
        assert "'fred'" in refused.stderr
        assert run("unsubscribe", "smog", "fred").exit_code == refused.exit_code
        assert (done := run("show", "smog")).exit_code == 0, done.output

    await asyncio.to_thread(use)
    await site.ingest(4.0)
    follow = ("follow", "smog", "mail", "--acknowledge", "--json", "--wait", "2s")
    followed = await asyncio.to_thread(run, *follow)
    assert followed.exit_code == 0, followed.output
    assert json.loads(followed.stdout.splitlines()[0])["subscription"] == "cleo"
    assert await site["mail"].position("smog", "mail") != ""
    assert (await asyncio.to_thread(run, "follow", "smog", "fax")).exit_code != 0
    assert (await asyncio.to_thread(run, "unsubscribe", "smog", "cleo")).exit_code == 0
    assert await site.owners() == {"fred": "fax"}

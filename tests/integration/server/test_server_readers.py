"""Who may store the position of a named reader, at a whole node."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path

from expected_errors import raises
from gateway_serving import node
from proving import Tokens, auth_section

import galileo
from galileo.client.row_changes import KnownRow, replace_row
from galileo.cursor import Cursor
from galileo.errors import Forbidden
from galileo.model.reader import POSITIONS
from galileo.rpc.access import Role

NOW = dt.datetime.now(dt.UTC)


async def test_who_may_write_the_table_of_positions_stores_those_of_readers(
    tmp_path: Path,
) -> None:
    tokens = Tokens.made(tmp_path / "principals.toml")
    tokens.add("root", Role.ADMIN)
    tokens.add("ann", Role.READER, datasets=("*",))
    tokens.add("bert", Role.WRITER, datasets=("air",))
    tokens.add("job", Role.WRITER, datasets=("air", "galileo.positions"))
    nodes = Tokens.made(tokens.path)
    auth = auth_section(tokens, nodes.add("nodes", Role.NODE))
    async with node(tmp_path / "node", {"auth": auth}) as at, contextlib.AsyncExitStack() as stack:
        clients = dict[str, galileo.AsyncClient]()
        for name in ("root", "ann", "bert", "job"):
            client = galileo.AsyncClient(at, timeout="30s", proof=tokens.proof(name))
            clients[name] = await stack.enter_async_context(client)
        for name in ("air", "sea"):
            await clients["root"].create_dataset(galileo.Schema(name, [galileo.Feature("depth")]))
        for name in ("ann", "bert"):
            with raises(Forbidden):
                await clients[name].advance_reader("air", "mine", Cursor(), hold="90d")
        await clients["job"].advance_reader("air", "nightly", Cursor(), hold="7d")
        with raises(Forbidden, dataset=POSITIONS.name):
            row = KnownRow({"reader": "reader/sea/nightly"}, Cursor(), is_stored=False)
            await replace_row(clients["job"], POSITIONS, row, hold_us=1, stored_at=NOW)
        assert [one.name for one in await clients["ann"].readers("air")] == ["nightly"]
        assert await clients["bert"].readers("air") == [], "it may not read the table"
        with raises(Forbidden):
            await clients["ann"].drop_reader("air", "nightly")
        await clients["job"].drop_reader("air", "nightly")
        assert await clients["ann"].readers("air") == []

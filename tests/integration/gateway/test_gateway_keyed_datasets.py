"""Keyed datasets over HTTP: replacing, preconditions, deletions, and what ids stand for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from gateway_serving import site

import galileo
from galileo.client.async_client import AsyncClient
from galileo.gateway import ccqs
from galileo.wire import token

TIMEOUT_S = 60.0
BUOYS, RAIN = "/collections/buoys/items", "/collections/rain/items"
KEYED = galileo.Schema(
    "buoys",
    [
        galileo.Feature("station", type="text"),
        galileo.Feature("id", type="int"),
        galileo.Feature("wet", type="bool"),
        galileo.Feature("waves"),
    ],
    key=["station", "id", "wet"],
)
LARGE = 2**53 + 1
"""An int that no float has."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def document(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> tuple[int, str, str | None]:
        """Status, kind and parameter of a problem."""
        details = self.document.get("details", {})
        return self.status, self.document.get("kind", ""), details.get("parameter")


@dataclass(frozen=True)
class Served:
    url: str
    client: AsyncClient

    async def ask(
        self, path: str, method: str = "GET", *, body: bytes | None = None, **headers: str
    ) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(self.url + path, data=body, method=method, headers=given)

        def send() -> Answer:
            try:
                reply = urlopen(request, timeout=TIMEOUT_S)
            except HTTPError as error:
                reply = error
            with reply:
                names = {name.lower(): value for name, value in reply.headers.items()}
                return Answer(reply.status, names, reply.read().decode())

        return await asyncio.to_thread(send)

    async def post(self, *rows: str, path: str = BUOYS, **headers: str) -> Answer:
        lines = [f"40,8,2014-03-01T06:00:00Z,{row}\n" for row in rows]
        head = "latitude,longitude,time,station,id,wet,waves\n"
        body = "".join([head, *lines]).encode()
        return await self.ask(path, "POST", body=body, Content_Type="text/csv", **headers)

    async def waves(self, path: str = BUOYS) -> dict[str | None, float]:
        answer = await self.ask(path)
        every = [feature["properties"] for feature in answer.document["features"]]
        return {one["station"]: one["waves"] for one in every}

    async def ids(self) -> dict[str | None, str]:
        answer = await self.ask(BUOYS)
        return {one["properties"]["station"]: one["id"] for one in answer.document["features"]}


@contextlib.asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Served]:
    async with site(directory / "node", {}, KEYED) as (url, client):
        await client.create_dataset(galileo.Schema("rain", KEYED.features))
        yield Served(url, client)


def row(station: str, waves: float) -> str:
    return f"{station},{LARGE},true,{waves}"


NULLS = ",,,3.5"
"""A row whose features of the key are null."""


async def test_post_replaces_and_a_body_that_was_sent_before_does_so_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        first = await served.post(row("a", 1.5), row("b", 2.5), NULLS)
        assert (first.status, first.document["observations"]) == (201, 3)
        assert "batch" not in first.document
        for waves in (5.5, 1.5, 5.5):
            posted = await served.post(row("a", waves))
            assert (posted.status, posted.document["duplicates"]) == (201, 0)
            assert await served.waves() == {"a": waves, "b": 2.5, None: 3.5}
        for duplicates in (0, 1):  # A request with a key is known again, and replaces once.
            repeated = await served.post(row("a", 7.5), Idempotency_Key="buoys:1")
            assert repeated.document["duplicates"] == duplicates
            assert repeated.document["batch"] == "buoys:1"
            if not duplicates:
                await served.post(row("a", 8.5))
        assert (await served.waves())["a"] == 8.5


async def test_if_match_refuses_what_has_changed(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5), row("b", 2.5))
        read = [await served.ask(f"{BUOYS}{query}") for query in ("", "?f=csv", "?f=html")]
        [seen] = {answer.headers["galileo-token"] for answer in read}
        posted = await served.post(row("a", 5.5), If_Match=f'"{seen}"')
        assert posted.status == 201
        refused = await served.post(row("a", 6.5), row("c", 1.5), If_Match=f'"{seen}"')
        assert refused.error == (412, "conflict", None)
        details = refused.document["details"]
        assert details["key"][2:] == ["a", LARGE, True]
        assert details["cursor"] == posted.document["commits"]
        assert await served.waves() == {"a": 5.5, "b": 2.5}
        last = posted.headers["galileo-token"]
        assert (await served.post(row("a", 6.5), If_Match=f'"{last}"')).status == 201
        single = await served.ask(f"{BUOYS}/{(await served.ids())['b']}")
        own = single.headers["galileo-token"]
        assert (await served.post(row("b", 7.5), If_Match=f'"{own}"')).status == 201
        assert (await served.post(row("b", 8.5), If_Match=f'"{own}"')).status == 412
        twice = await served.post(row("a", 1.5), row("a", 2.5), If_Match=f'"{last}"')
        assert twice.error[:2] == (400, "duplicate_key")
        assert await served.waves() == {"a": 6.5, "b": 7.5}


async def test_pages_after_the_first_have_no_token(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5), row("b", 2.5))
        first = await served.ask(f"{BUOYS}?limit=1")
        assert "galileo-token" in first.headers
        [following] = [one for one in first.document["links"] if one["rel"] == "next"]
        second = await served.ask(following["href"].removeprefix(served.url))
        assert second.status == 200
        assert "galileo-token" not in second.headers


async def test_wrong_if_match_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5))
        seen = (await served.ask(BUOYS)).headers["galileo-token"]
        other = token.encode("rain", (await served.client.version("buoys")).cursor)
        headers = (seen, "*", "", '"x"', '"', f'W/"{seen}"', f'"{seen}", "{seen}"', f'"{other}"')
        for header in headers:
            refused = await served.post(row("a", 2.5), If_Match=header)
            assert refused.error == (400, "invalid_input", "If-Match"), header
        assert await served.waves() == {"a": 1.5}


async def test_id_of_an_item_stays_when_the_item_is_replaced(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5), row("b", 2.5), NULLS)
        ids = await served.ids()
        for waves in (1.5, 5.5):
            await served.post(row("a", waves))
            assert await served.ids() == ids
            item = await served.ask(f"{BUOYS}/{ids['a']}")
            assert (item.document["id"], item.document["properties"]["waves"]) == (ids["a"], waves)
            own = f"{served.url}{BUOYS}/{ids['a']}"
            assert own in [one["href"] for one in item.document["links"]]
        page = await served.ask(f"{BUOYS}?properties=waves&limit=2")
        assert {one["id"] for one in page.document["features"]} < {*ids.values()}
        assert [[*one["properties"]] for one in page.document["features"]] == 2 * [
            ["time", "waves"]
        ]
        assert ids["a"] in (await served.ask(f"{BUOYS}?f=html")).text


async def test_deleted_item_is_not_found_until_it_is_stored_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5), row("b", 2.5), NULLS)
        ids = await served.ids()
        await served.post(row("b", 5.5))  # An id stands for the key, whatever it has.
        for station in ("b", None):
            deleted = await served.ask(f"{BUOYS}/{ids[station]}", "DELETE")
            assert (deleted.status, deleted.text) == (204, "")
            for method in ("GET", "DELETE"):
                answer = await served.ask(f"{BUOYS}/{ids[station]}", method)
                assert answer.status == 404, (station, method)
        html = await served.ask(f"{BUOYS}/{ids['b']}?f=html", Accept="text/html")
        assert html.status == 404
        assert await served.waves() == {"a": 1.5}
        await served.post(row("b", 7.5))
        again = await served.ask(f"{BUOYS}/{ids['b']}")
        assert again.document["properties"]["waves"] == 7.5
        place, _, digits = str(ids["a"]).partition(".")
        wrong = (f"p9999.{digits}", f"{place}.{'0' * 32}", f"{place}.{digits.upper()}", "p1.2.0")
        for name in (*wrong, "nothing", "p1", digits):
            for method in ("GET", "DELETE"):
                answer = await served.ask(f"{BUOYS}/{name}", method)
                assert answer.status == 404, (name, method)


async def test_item_that_has_changed_since_a_token_is_not_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5))
        item = f"{BUOYS}/{(await served.ids())['a']}"
        seen = (await served.ask(item)).headers["galileo-token"]
        await served.post(row("a", 5.5))
        refused = await served.ask(item, "DELETE", If_Match=f'"{seen}"')
        assert refused.error == (412, "conflict", None)
        assert await served.waves() == {"a": 5.5}
        seen = (await served.ask(item)).headers["galileo-token"]
        assert (await served.ask(item, "DELETE", If_Match=f'"{seen}"')).status == 204
        assert await served.waves() == {}


async def test_ids_of_a_client_are_those_of_a_gateway(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5), row("b", 2.5), NULLS)
        ids = await served.ids()
        every = [ids["b"], ids["a"], ids["b"], ids[None]]
        found = await served.client.read_ids("buoys", every, columns=["waves"])
        assert found.column(0).to_pylist() == every
        assert found["waves"].to_pylist() == [2.5, 1.5, 2.5, 3.5]
        await served.client.delete("buoys", "station = 'b'")
        found = await served.client.read_ids("buoys", every)
        assert found.column(0).to_pylist() == [ids["a"], ids[None]]
        for wrong in (["p1.2.3"], [7], "p1"):
            with pytest.raises(galileo.errors.InputError):
                await served.client.read_ids("buoys", wrong)  # type: ignore[arg-type]
        with pytest.raises(galileo.errors.InputError):
            await served.client.read_ids("buoys", every, columns=["wave"])
        assert (await served.client.read_ids("buoys", [])).num_rows == 0


async def test_client_of_an_earlier_schema_reads_by_key_and_changes(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        before = (await served.client.version("buoys")).cursor
        await served.post(row("a", 1.5))
        ids = await served.ids()
        known = served.client._schemas["buoys"]
        await served.client.add_features("buoys", [galileo.Feature("swell")])
        served.client._schemas["buoys"] = known  # As another client has it for a few seconds.
        found = await served.client.read_ids("buoys", [ids["a"]])
        assert "swell" not in found.column_names
        changes = await served.client.changes("buoys", before)
        assert changes.rows["waves"].to_pylist() == [1.5]


async def test_delete_by_a_filter(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5), row("b", 2.5), row("c", 3.5), NULLS)
        answer = await served.ask(f"{BUOYS}?filter={quote('waves > 2 AND wet = true')}", "DELETE")
        assert (answer.status, answer.document["deleted"]) == (200, 2)
        assert await served.waves() == {"a": 1.5, None: 3.5}
        evaluated = token.decode(answer.document["evaluated"], ccq_id="buoys")
        then = await served.client.select("buoys", at=evaluated)
        assert then.num_rows == 4
        tree = json.dumps({"op": "isNull", "args": [{"property": "station"}]})
        query = f"filter={quote(tree)}&filter-lang=cql2-json"
        assert (await served.ask(f"{BUOYS}?{query}", "DELETE")).document["deleted"] == 1
        assert (await served.ask(f"{BUOYS}?{query}", "DELETE")).document["deleted"] == 0
        assert (await served.ask(f"{BUOYS}?filter=true", "DELETE")).document["deleted"] == 1
        assert await served.waves() == {}


WRONG_FILTERS = {
    "": ("invalid_input", "filter"),
    "filter=": ("invalid_input", "filter"),
    "filter=%20%0A": ("invalid_input", "filter"),
    "filter-lang=cql2-text": ("invalid_input", "filter"),
    "filter=true&filter=false": ("invalid_input", "filter"),
    "filter=true&bbox=1,2,3,4": ("invalid_input", "bbox"),
    "filter=true&station=a": ("invalid_input", "station"),
    "filter=true&filter-lang=sql": ("invalid_input", "filter-lang"),
    "filter=waves%20%3E": ("query_syntax", None),
    "filter=wave%20%3E%201": ("unknown_property", None),
}
"""By query: kind and parameter of the error."""


async def test_delete_by_a_wrong_filter_deletes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5))
        for query, error in WRONG_FILTERS.items():
            refused = await served.ask(f"{BUOYS}?{query}", "DELETE")
            assert refused.error == (400, *error), query
        assert await served.waves() == {"a": 1.5}


async def test_preconditions_and_parameters_of_deletions_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5))
        item = f"{BUOYS}/{(await served.ids())['a']}"
        for path in (item, f"{BUOYS}?filter=true"):  # No token; not taken at all.
            refused = await served.ask(path, "DELETE", If_Match='"x"')
            assert refused.error == (400, "invalid_input", "If-Match")
        assert (await served.ask(f"{item}?f=json", "DELETE")).error == (400, "invalid_input", "f")
        assert await served.waves() == {"a": 1.5}


async def test_dataset_without_a_key_deletes_by_a_filter_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        assert (await served.post(row("a", 1.5), path=RAIN)).status == 201
        read = await served.ask(RAIN)
        assert "galileo-token" not in read.headers
        item = f"{RAIN}/{read.document['features'][0]['id']}"
        assert "galileo-token" not in (await served.ask(item)).headers
        refused = await served.ask(item, "DELETE")
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
        assert "rain" in refused.document["detail"]
        refused = await served.post(row("a", 2.5), path=RAIN, If_Match='"x"')
        assert refused.error == (400, "invalid_input", "If-Match")
        assert (await served.ask("/collections/none/items?filter=true", "DELETE")).status == 404
        assert await served.client.count("rain") == 1
        deleted = await served.ask(f"{RAIN}?filter=true", "DELETE")
        assert (deleted.status, deleted.document["deleted"]) == (200, 1)
        assert await served.client.count("rain") == 0


async def test_documents_name_the_key(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        key = list(KEYED.key_features)
        assert (await served.ask("/collections/buoys")).document["key"] == key
        assert (await served.ask("/collections/buoys/schema")).document["x-galileo-key"] == key
        assert "<dt>key</dt>" in (await served.ask("/collections/buoys?f=html")).text
        assert "key" not in (await served.ask("/collections/rain")).document
        assert "x-galileo-key" not in (await served.ask("/collections/rain/schema")).document
        assert "<dt>key</dt>" not in (await served.ask("/collections/rain?f=html")).text


async def test_labels_of_a_query_are_withdrawn_by_the_ids_of_observations(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5), row("b", 2.5), NULLS)
        ids = await served.ids()
        body = json.dumps({"dataset": "buoys", "query": "waves > 2", "interval": "1s"}).encode()
        posted = await served.ask("/ccqs", "POST", body=body, Content_Type="application/json")
        assert len(posted.document["labels"]) == 2
        labels = f"{posted.headers['location'].removeprefix(served.url)}/labels"
        whole = await served.ask(labels)
        assert {one["id"] for one in whole.document["features"]} == {ids["b"], ids[None]}
        assert {one["properties"]["id"] for one in whole.document["features"]} == {LARGE, None}
        assert whole.document["withdrawn"] == []
        after = f"after={posted.headers['galileo-token']}"
        await served.post(row("a", 3.5), row("b", 1.5))
        await served.ask(f"{BUOYS}/{ids[None]}", "DELETE")
        found = await served.ask(f"{labels}?{after}&wait=30")
        while len(found.document["withdrawn"]) < 2:
            found = await served.ask(f"{labels}?{after}&wait=30")
        document = found.document
        assert [one["id"] for one in document["features"]] == [ids["a"]]
        assert {one["id"] for one in document["withdrawn"]} == {ids["b"], ids[None]}
        assert {one["type"] for one in document["withdrawn"]} == {"Feature"}
        rows = (await served.ask(f"{labels}?{after}&f=json")).document
        assert [one["station"] for one in rows["labels"]] == ["a"]
        assert {one["station"] for one in rows["withdrawn"]} == {"b", None}
        refused = await served.ask(f"{labels}?until={document['token']}")
        assert (refused.status, refused.document["details"]["expected"]) == (400, "no_key")


async def test_many_first_labels_are_linked_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ccqs, "LABELS_MAX", 1)
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5), row("b", 2.5))
        body = json.dumps({"dataset": "buoys", "query": "waves > 0"}).encode()
        posted = await served.ask("/ccqs", "POST", body=body, Content_Type="application/json")
        [link] = [one for one in posted.document["links"] if "labels?" in one["href"]]
        path = link["href"].removeprefix(served.url)
        found = await served.ask(path)
        assert (found.status, len(found.document["features"])) == (200, 2)


async def test_deletions_in_a_dataset_without_a_key_withdraw_labels(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.post(row("a", 1.5), row("b", 2.5), path=RAIN)
        body = json.dumps({"dataset": "rain", "interval": "1s"}).encode()
        posted = await served.ask("/ccqs", "POST", body=body, Content_Type="application/json")
        labels = f"{posted.headers['location'].removeprefix(served.url)}/labels"
        whole = (await served.ask(labels)).document
        ids = {one["properties"]["station"]: one["id"] for one in whole["features"]}
        assert "withdrawn" not in whole
        assert (await served.ask(f"{RAIN}/{ids['a']}")).document["id"] == ids["a"]
        await served.client.delete("rain", "station = 'a'")
        found = whole
        while "withdrawn" not in found:
            path = f"{labels}?after={whole['token']}&wait=1"
            found = (await served.ask(path)).document
        assert [one["id"] for one in found["withdrawn"]] == [ids["a"]]
        assert (found["features"], "reset" in found) == ([], False)

"""Updates of continuous queries as JSON, GeoJSON, Arrow and server-sent events.

The labels between two positions of a query are a function of the log (docs/dev/protocol.md). An
answer that goes further than wanted can therefore be cut at any position at or after its begin:
what remains is what an answer up to there has, and the rest comes with the next one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.compute as pc

from galileo.client.json_lines import json_lines
from galileo.client.notification_json import members_of_range
from galileo.client.results import Labels, Update
from galileo.cursor import CommitRange, Cursor
from galileo.gateway.formats import ID_COLUMN, TEXT_ROWS, TableEncoder
from galileo.model.keyed import ids_of_labels
from galileo.model.times import iso
from galileo.model.windows import WindowChange
from galileo.wire import token as tokens

LABEL_FORMATS = {
    "geojson": "application/geo+json",
    "json": "application/json",
    "arrow": "application/vnd.apache.arrow.file",
}
"""Of updates, by the name of the format; the first is the default."""
TOKEN_HEADER = "Galileo-Token"
"""The token of an update, or of observations of a keyed dataset, with answers of any format."""
METADATA_KEY = "galileo"
"""Of the members of an update in the metadata of an Arrow schema."""
EVENT_LABELS_MAX = 512
"""Labels in an event; of more, it has a link."""
EVENT_BYTES_MAX = 256 << 10
"""Bytes of the labels in an event; of more, it has a link."""
_DATA = b"data: "


@dataclass(frozen=True, slots=True)
class Event:
    """An update as a server-sent event.

    Attributes:
        before: the token of those who may take it.
        after: the token of those who have it.
        frame: its bytes.
        is_link: whether it has a link in place of labels.
        is_last: whether its reader has to go on from there, with another stream.
    """

    before: str
    after: str
    frame: bytes
    is_link: bool = False
    is_last: bool = False


def position(token: str, ccq_id: str) -> Cursor:
    """The position of a token; that of an empty one is before the first commit.

    Raises:
        InvalidToken: it is damaged or of another query.
    """
    return _read(token, ccq_id).cursor


def is_divisible(token: str, ccq_id: str) -> bool:
    """Whether updates can be cut at tokens: the reader follows no windows, and is in no reset."""
    reader = _read(token, ccq_id)
    return reader.progress == tokens.NO_PROGRESS and reader.place is None


def _read(token: str, ccq_id: str) -> tokens.Position:
    return tokens.read(token, ccq_id=ccq_id) if token else tokens.Position()


def cut(update: Update, until: str, *, ccq_id: str) -> Update:
    """The update without what lies after a token, and without changes of windows."""
    end, at = position(until, ccq_id), position(update.token, ccq_id)
    reached = at.meet(end)
    is_after = reached.past(update.labels.partitions, update.labels.sequences)
    labels = update.labels.where(~is_after)
    assert isinstance(labels, Labels)
    token = update.token
    if reached != at:
        deletions = _read(token, ccq_id).deletions
        token = tokens.Position(reached, deletions=deletions).encode(ccq_id)
    return dataclasses.replace(
        update,
        labels=labels,
        token=until if reached == end else token,
        frontier=update.frontier.meet(reached),
        more=reached != end,
        gone=tuple(_cut_ranges(update.gone, reached)),
        windows=(),
        clock_us=None,
    )


def _cut_ranges(gone: Iterable[CommitRange], until: Cursor) -> Iterable[CommitRange]:
    for dropped in gone:
        last = min(dropped.last, until[dropped.partition])
        if dropped.first <= last:
            yield CommitRange(dropped.partition, dropped.first, last)


def members_of(update: Update) -> dict[str, Any]:
    """What an update says besides its labels, as JSON values."""
    return {
        "token": update.token,
        "more": update.more,
        "frontier": {str(partition): at for partition, at in update.frontier.items()},
        "missing": list(update.labels.missing),
        "gone": list(map(members_of_range, update.gone)),
        **windows_of(update.windows, update.clock_us),
        "age": update.age_s,
        "interval": update.interval_s,
    }


def windows_of(windows: Iterable[WindowChange], clock_us: int | None) -> dict[str, Any]:
    """Changes of windows, and the event clock, as JSON values."""
    return {
        "windows": [
            {
                "start": iso(change.start_us),
                "end": iso(change.end_us),
                "labels": change.labels,
                "withdrawn": change.withdrawn,
                "state": change.state,
            }
            for change in windows
        ],
        "clock": None if clock_us is None else iso(clock_us),
    }


def encode_labels(labels: Labels, format: str, members: dict[str, Any]) -> bytes:
    """Labels with members of an answer, in a format of `LABEL_FORMATS`.

    Features of GeoJSON have the ids of their first observations.
    """
    table = labels.to_arrow()
    if format == "json":
        parts = [
            row
            for start in range(0, table.num_rows, TEXT_ROWS)
            for row in json_lines(table.slice(start, TEXT_ROWS)).to_pylist()
        ]
        rest = json.dumps(members)[1:]
        return f'{{"labels":[\n{("," + chr(10)).join(parts)}\n],{rest}\n'.encode()
    if format == "arrow":
        table = table.replace_schema_metadata({METADATA_KEY: json.dumps(members)})
    if format == "geojson":
        table = table.add_column(0, ID_COLUMN, ids_of(labels))
    encoder = TableEncoder(format, table.schema, members=members, id_column=ID_COLUMN)
    return encoder.write(table) + encoder.close()


def ids_of(labels: Labels) -> pa.Array:
    """The id of each label: of its key, or without one, of its first observation."""
    if labels.schema.is_keyed:
        return ids_of_labels(labels.schema, labels.table)
    columns = [labels.table.column(name) for name in ("partition", "sequence", "row")]
    places = [column.combine_chunks().cast(pa.string()) for column in columns]
    return pc.binary_join_element_wise("p", pc.binary_join_element_wise(*places, "."), "")


def withdraws(update: Update) -> bool:
    """Whether an update withdraws labels, or may do so: it is one of a keyed dataset."""
    has_withdrawn = update.withdrawn is not None and len(update.withdrawn) > 0
    return update.labels.schema.is_keyed or update.reset or has_withdrawn


def encode_update(update: Update, format: str, **more: Any) -> bytes:
    """An update with all that it says and further members, in a format of `LABEL_FORMATS`."""
    members, withdrawn = {**more, **members_of(update)}, update.withdrawn
    if withdrawn is not None and withdraws(update):
        if format == "geojson":
            rows = json.loads(encode_labels(withdrawn, format, {}))["features"]
        else:
            rows = [json.loads(row) for row in json_lines(withdrawn.to_arrow()).to_pylist()]
        is_keyed = withdrawn.schema.is_keyed
        members |= {"reset": update.reset} if is_keyed or update.reset else {}
        members["withdrawn"] = rows
    return encode_labels(update.labels, format, members)


def event_of(before: str, update: Update, *, ccq_id: str) -> Event:
    """The event of an update to the readers that have the token `before`."""
    labels, withdrawn, data = update.labels, update.withdrawn, b""
    count = len(labels) + (0 if withdrawn is None else len(withdrawn))
    if count <= EVENT_LABELS_MAX:
        # Line feeds are between features only; within texts they are escaped.
        data = encode_update(update, "geojson", after=before).replace(b"\n", b"")
    if data and len(data) <= EVENT_BYTES_MAX:
        return Event(before, update.token, frame_of("update", data, token=update.token))
    if labels.schema.is_keyed or update.reset or _read(before, ccq_id).place is not None:
        document = {"after": before, **link_members(count, before)}
        frame = frame_of("behind", json.dumps(document).encode())
        return Event(before, update.token, frame, is_link=True, is_last=True)
    document = link_members(count, before, update.token) | {"after": before, **members_of(update)}
    frame = frame_of("update", json.dumps(document).encode(), token=update.token)
    return Event(before, update.token, frame, is_link=True)


def merged_frame(ccq_id: str, event: Event) -> bytes:
    """An event in a stream of several queries: without an id, its data begin with the query."""
    _, _, data = event.frame.partition(_DATA)
    if event.is_link:
        document = json.loads(data)
        for link in document["links"]:  # Relative to the URL of the stream.
            link["href"] = f"ccqs/{quote(ccq_id, safe='')}/{link['href']}"
        data = json.dumps(document).encode() + b"\n\n"
    head = b"event: behind\n" if event.is_last else b"event: update\n"
    return head + _DATA + b'{"ccq":' + json.dumps(ccq_id).encode() + b"," + data[1:]


def link_members(labels: int, after: str, until: str = "") -> dict[str, Any]:
    """Members of an answer that has a link in place of labels, relative to `/ccqs/{ccqId}/…`."""
    query = urlencode({"after": after} | ({"until": until} if until else {}))
    link = {"rel": "items", "href": f"labels?{query}", "type": LABEL_FORMATS["geojson"]}
    return {"numberMatched": labels, "links": [link]}


def end_frame(document: dict[str, Any]) -> bytes:
    """The last event of a query: the problem that ends it."""
    return frame_of("end", json.dumps(document, default=str).encode())


def lost_frame(document: dict[str, Any], token: str = "") -> bytes:
    """The event for a reader whose commits were lost, with the token to go on with."""
    return frame_of("history_changed", json.dumps(document, default=str).encode(), token=token)


def frame_of(name: str, data: bytes, *, token: str = "") -> bytes:
    """The bytes of an event; its data have no line ends."""
    head = f"id: {token}\n" if token else ""
    return f"{head}event: {name}\n".encode() + _DATA + data + b"\n\n"

"""The largest inputs that each method of a node and each route of a gateway takes.

Each entry names the numbers of a caller that the handler's work grows with, and has requests with
the greatest ones that are taken, or that are refused as late as possible. A test compares both
tables with the descriptors of the services and with the routes.
"""

from __future__ import annotations

import functools
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, get_type_hints
from urllib.parse import quote, urlencode

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import galileo
from galileo.ccq.model import CcqDefinition, Record
from galileo.ccq.placement import PlaceCcq, SaveProgress
from galileo.ccq.records import encode as encode_record
from galileo.cursor import Cursor
from galileo.cycle import ITEMS_MAX, CycleRequest
from galileo.dht.membership import Gossip
from galileo.dht.node_states import Digest, StateDelta, StateEntry
from galileo.dht.topology import Move
from galileo.graph.quantiles import QUANTILES_MAX
from galileo.graph.summary import BINS_MAX
from galileo.hashing import digest
from galileo.labels import to_ipc
from galileo.model.grouping import STATISTICS, CellKey, Grouping
from galileo.model.schema import FEATURES_MAX, features_to_json
from galileo.model.system import CCQS, DATASETS, SAMPLERS
from galileo.model.system_rows import CALL_CHANGES_MAX, OfferRow, Position, Row
from galileo.node.analyses.children import CHILDREN_MAX
from galileo.node.definitions import (
    AddFeatures,
    CreateDataset,
    Definition,
    encode,
)
from galileo.node.peers import (
    NUMBERED_PARTS_SCHEMA,
    PARTS_SCHEMA,
    PLACES_MAX,
    AnalysisTask,
    BatchLookup,
    CommitTask,
    ExecutionsTask,
    PartitionScope,
    ReadTask,
    ScanTask,
    TableTask,
)
from galileo.node.replication.protocol import Envelope, LogRange
from galileo.node.sampler_rows import KeepSampler, SamplerFacts
from galileo.query import questions
from galileo.query.cql_syntax import TEXT_MAX
from galileo.query.nearest import COUNT_MAX
from galileo.replication.messages import Acknowledged, NewerSet, PreVote, Vote
from galileo.replication.values import Epochs, Member, ReplicaSet
from galileo.rpc.admission import FIELDS_MAX, NAME_CHARACTERS_MAX, SMALL_REQUEST_BYTES_MAX
from galileo.rpc.gossip import MESSAGES_MAX, MOVES_MAX, GossipRequest, Heartbeat
from galileo.rpc.internal import (
    GOSSIP_HEAD_BYTES_MAX,
    QUERIES_MAX,
    REPLICATE_HEAD_BYTES_MAX,
    SCAN_ITEMS_MAX,
    SERVICE,
    TASK_HEAD_BYTES_MAX,
    Internal,
)
from galileo.rpc.internal_calls import (
    ANALYSE,
    APPLY_RETENTION,
    CHANGE_ROW,
    CHANGE_ROWS,
    COMMIT,
    DESCRIBE_CHANNEL,
    FETCH,
    FIND_BATCHES,
    HANDED_OFF_CACHE,
    KNOWN_ROW,
    KNOWN_ROWS,
    LEARN_ROW,
    READ,
    READ_EXECUTIONS,
    READ_TABLE,
    REGISTER_QUERIES,
    ROWS_AFTER,
    SCAN,
    SCAN_SMALL,
)
from galileo.rpc.peers import GOSSIP
from galileo.rpc.replication import DIGESTS, REPLICATE, REPLICATE_FRAMES
from galileo.sampler_package import ARCHIVE_BYTES_MAX
from galileo.spark.owners import OWNER
from galileo.wire import token
from galileo.wire.channel import short_name
from galileo.wire.messages import NUMBERS_MAX, SET_ITEMS_MAX
from galileo.wire.questions import question_to_pb
from galileo.wire.services import NODE_SERVICES
from galileo.wire.typed_service import TypedCall
from galileo.wire.v1 import (
    analytics_pb2,
    channels_pb2,
    cluster_pb2,
    common_pb2,
    continuous_pb2,
    query_pb2,
    samplers_pb2,
    storage_pb2,
)
from galileo.wire.zero_copy import stream_of

WIDE, TABLE, CHANNEL = "wide", "areas", "fences"
TEXT = "station"
NUMBERS = FEATURES_MAX - 1
"""Features of `WIDE` that are numbers."""
NAMED, TEXT_VALUES = 19, 1_000
VERTICES, CONDITIONS, VALUES = 30_000, 900, 10_000
HEAD_BYTES = 60_000
"""Characters of the head of a request over HTTP."""
LONG = "x" * (SMALL_REQUEST_BYTES_MAX - 4_096)
"""A text that fills a small request."""
NAME = "x" * NAME_CHARACTERS_MAX
MANY = FIELDS_MAX
"""Numbers or messages in a request that has nothing in bulk."""


@dataclass(frozen=True, slots=True)
class WorstCall:
    """The largest requests of a method.

    Attributes:
        grows_with: the numbers that its work is a product of.
        requests: makes the requests; a request of the internal service is encoded.
    """

    grows_with: str
    requests: Callable[[], Iterator[Message | bytes]]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to a gateway."""

    path: str
    method: str = "GET"
    body: bytes = b""
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class WorstRequest:
    """The largest requests of a route; see `WorstCall`."""

    grows_with: str
    requests: Callable[[], Iterable[HttpRequest]]


# --- data ----------------------------------------------------------------------------------------


def wide_schema() -> galileo.Schema:
    """A dataset with as many features as there can be."""
    numbers = [galileo.Feature(f"n{i:03}", indexed=i < NAMED) for i in range(NUMBERS)]
    return galileo.Schema(WIDE, [galileo.Feature(TEXT, type="text"), *numbers])


def wide_rows(rows: int, *, seed: int = 1) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = {
        "latitude": pa.array(rng.uniform(-80, 80, rows)),
        "longitude": pa.array(rng.uniform(-179, 179, rows)),
        "time": pa.array(1_400_000_000_000_000 + rng.integers(0, 10**12, rows)).cast(
            pa.timestamp("us", tz="UTC")
        ),
        TEXT: pa.array([f"s{i}" for i in rng.integers(0, TEXT_VALUES, rows).tolist()]),
    }
    values = rng.normal(size=rows)
    columns |= {f"n{i:03}": pa.array(np.roll(values, i)) for i in range(NUMBERS)}
    return pa.table(columns).cast(wide_schema().observation_schema)


def table() -> galileo.Table:
    return galileo.Table(TABLE, {"id": "text", "name": "text", "place": "geometry"}, key="id")


def channel() -> galileo.Channel:
    return galileo.Channel(CHANNEL, WIDE, "n000 > :least AND n001 < :most", period="1h")


def polygon(vertices: int) -> str:
    """Well-known text of a star, whose edges cross many cells."""
    angles = np.linspace(0, 2 * math.pi, vertices, endpoint=False)
    radii = np.where(np.arange(vertices) % 2, 80.0, 70.0)
    points = [
        f"{x:.3f} {y:.3f}"
        for x, y in zip(radii * np.cos(angles) * 2, radii * np.sin(angles), strict=True)
    ]
    return f"POLYGON(({', '.join([*points, points[0]])}))"


@functools.cache
def queries() -> tuple[str, ...]:
    """Conditions with many vertices, with many operators, and with a long list."""
    return (
        f"S_INTERSECTS(geometry, {polygon(VERTICES)})",
        " OR ".join(f"(n{i % NAMED:03} > {i} AND n001 < -{i})" for i in range(CONDITIONS)),
        f"{TEXT} IN ({', '.join(repr(f's{i}') for i in range(VALUES))})",
    )


@functools.cache
def short_queries() -> tuple[str, ...]:
    """The same, which fit the head of a request over HTTP."""
    return (
        f"S_INTERSECTS(geometry,{polygon(1_500)})",
        " OR ".join(f"n{i % NAMED:03}>{i}" for i in range(1_500)),
        f"{TEXT} IN ({','.join(repr(f's{i}') for i in range(4_000))})",
    )


@functools.cache
def observations(rows: int, columns: int) -> bytes:
    """An Arrow stream of the first columns."""
    return to_ipc(wide_rows(rows).select(range(columns)))


@functools.cache
def many_batches() -> bytes:
    """An Arrow stream with a row in each of many batches."""
    row, sink = wide_rows(1), io.BytesIO()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        for _ in range(300):
            writer.write_table(row)
    return sink.getvalue()


def cursor(partitions: int = MANY) -> common_pb2.Cursor:
    return common_pb2.Cursor(partitions=range(partitions), sequences=range(1, partitions + 1))


def names() -> list[str]:
    """The names of all columns, many times over."""
    return [f"n{i % NUMBERS:03}" for i in range(MANY)]


def _large_schemas() -> Iterator[str]:
    """A schema with long units, and one with far too many features."""
    whole = wide_schema().to_dict() | {"name": "made"}
    units = [feature | {"unit": "K" * 2_000} for feature in whole["features"]]
    yield json.dumps(whole | {"features": units})
    many = [whole["features"][1] | {"name": f"f{i}"} for i in range(12_000)]
    yield json.dumps(whole | {"features": many})


# --- methods -------------------------------------------------------------------------------------

Requests: TypeAlias = Iterator[Message]


def _ingest() -> Requests:
    for number, data in enumerate((observations(8_000, 259), many_batches()), start=1):
        yield storage_pb2.IngestRequest(dataset=WIDE, producer="p", batch=number, observations=data)


def _read() -> Requests:
    zeros = np.zeros(1_000_000)
    columns = pa.table(dict.fromkeys(PARTS_SCHEMA.names, zeros))
    parts = to_ipc(columns.cast(PARTS_SCHEMA))
    for query in queries():
        yield storage_pb2.ReadRequest(dataset=WIDE, parts=parts, query_json=query)


def _select() -> Requests:
    for query in queries():
        yield storage_pb2.SelectRequest(dataset=WIDE, query=query, order_by="time", limit=100_000)
        yield storage_pb2.SelectRequest(dataset=WIDE, query=query, count_only=True)
    yield storage_pb2.SelectRequest(dataset=WIDE, columns=names())
    yield storage_pb2.SelectRequest(
        dataset=WIDE,
        commits=storage_pb2.SelectScope(partitions=range(MANY), after=cursor(), until=cursor()),
    )


def _page() -> Requests:
    for query in queries():
        yield storage_pb2.PageRequest(dataset=WIDE, query=query, limit=10_000)
    yield storage_pb2.PageRequest(dataset=WIDE, limit=10_000, columns=names())


def _read_table() -> Requests:
    keys = to_ipc(pa.table({"id": [f"k{i}" for i in range(500_000)]}))
    yield storage_pb2.ReadTableRequest(dataset=TABLE, keys=keys)
    yield storage_pb2.ReadTableRequest(
        dataset=TABLE, partitions=range(MANY), after=cursor(), until=cursor()
    )


def _scan() -> Requests:
    item = storage_pb2.ScanItem(dataset=WIDE, query_json=queries()[1])
    yield storage_pb2.ScanRequest(items=[item] * 500)
    yield storage_pb2.ScanRequest(items=[storage_pb2.ScanItem(dataset=WIDE)] * MANY)
    nested = storage_pb2.ScanItem(
        dataset=WIDE, after=common_pb2.Cursor(), until=common_pb2.Cursor()
    )
    yield storage_pb2.ScanRequest(items=[nested] * (MANY // 3))


def _run() -> Requests:
    for query in queries():
        yield query_pb2.QueryRequest(dataset=WIDE, query=query)
    yield query_pb2.QueryRequest(dataset=WIDE, partitions=range(1_000_000))
    yield query_pb2.QueryRequest(dataset=WIDE, sampler_json=json.dumps({"name": LONG}))


def _analyse() -> Requests:
    for query in ("", *queries()):
        for question in _about_queries():
            yield _asking(question, query)
    edges = tuple(float(edge) for edge in range(1_000_000))
    yield _asking(questions.Summarise("n000", edges=edges))
    statistics = tuple((f"n{i}", ("mean",)) for i in range(MANY))
    yield _asking(questions.Aggregate(Grouping((CellKey(30),) * MANY, statistics)))
    yield _asking(questions.ListChildren(limit=CHILDREN_MAX))
    yield _asking(questions.ListChildren(limit=CHILDREN_MAX, order=(TEXT,)))
    yield _asking(questions.ListChildren("[1]", tuple(names())))
    yield _asking(questions.ListChildren(f"[{'1,' * 400_000}1]"))
    yield _asking(questions.Describe())
    yield _asking(questions.Version())


def _about_queries() -> Iterator[questions.Question]:
    statistics = tuple((f"n{i:03}", tuple(STATISTICS)) for i in range(NAMED))
    yield questions.Explain()
    yield questions.Summarise("n000", bins=BINS_MAX)
    yield questions.Aggregate(Grouping((CellKey(30),), statistics))
    yield questions.FindNearest(0.0, 0.0, COUNT_MAX, None)
    yield questions.Latest(CellKey(60))


def _asking(question: questions.Question, query: str = "") -> analytics_pb2.AnalyseRequest:
    request = question_to_pb(question)
    request.dataset, request.query = WIDE, query
    return request


def _analyse_share() -> Iterator[bytes]:
    scope = PartitionScope(frozenset(range(MANY)), Cursor({p: p + 1 for p in range(MANY)}))
    for query in ("", *queries()):
        for question in _about_queries():
            yield ANALYSE.encode(AnalysisTask(WIDE, query, question, scope))
    for question in (questions.Describe(), questions.Version()):
        yield ANALYSE.encode(AnalysisTask(WIDE, "", question, scope))


def _estimate() -> Requests:
    shares = np.linspace(0, 1, QUANTILES_MAX).tolist()
    for query in ("", *queries()):
        yield analytics_pb2.EstimateRequest(
            dataset=WIDE, query=query, feature="n000", quantiles=shares
        )
    yield analytics_pb2.EstimateRequest(dataset=WIDE, feature="n000", quantiles=[2.0] * MANY)


def _submit() -> Requests:
    for number, query in enumerate(queries()):
        yield continuous_pb2.SubmitRequest(
            ccq_id=f"q{number}", dataset=WIDE, query=query, interval_s=3_600, expiration_s=7_200
        )


def _fetch() -> Requests:
    whole = token.encode("absent", Cursor(dict.fromkeys(range(70_000), 1 << 62)))
    for text in (whole, LONG):
        yield continuous_pb2.FetchRequest(ccq_id="absent", token=text)


def _create_dataset() -> Requests:
    for text in _large_schemas():
        yield cluster_pb2.CreateDatasetRequest(schema_json=text)
    template = " OR ".join(f"n{i % NAMED:03} > :least AND n001 < {i}" for i in range(900))
    made = galileo.Channel("made2", WIDE, "n000 > :least", period="1h").to_json()
    document = json.loads(made) | {"template": template}
    yield cluster_pb2.CreateDatasetRequest(schema_json=json.dumps(document))
    polygons = f"n000 > :least AND S_INTERSECTS(geometry, {polygon(VERTICES)})"
    document = json.loads(made) | {"name": "made3", "template": polygons}
    yield cluster_pb2.CreateDatasetRequest(schema_json=json.dumps(document))


def _add_features() -> Requests:
    features = [galileo.Feature(f"a{i}") for i in range(15_000)]
    yield cluster_pb2.AddFeaturesRequest(dataset=WIDE, features_json=features_to_json(features))


def _ranges() -> Requests:
    ranges = [cluster_pb2.RangeStart(geohash=f"{i}", group="g") for i in range(60_000)]
    yield cluster_pb2.SetRangesRequest(ranges=ranges)


def _follow() -> Requests:
    yield channels_pb2.FollowRequest(
        dataset=CHANNEL, broker="b", after=cursor(), partitions=range(MANY)
    )


def _upload() -> Requests:
    yield samplers_pb2.UploadSamplerRequest(archive=b"PK\x03\x04" + bytes(2 << 20))
    yield samplers_pb2.UploadSamplerRequest(archive=bytes(7 << 20))


def _commit() -> Iterator[bytes]:
    rows = pa.py_buffer(observations(8_000, 259))
    yield COMMIT.encode(CommitTask(WIDE, "p", 0, rows))


def _find_batches() -> Iterator[bytes]:
    places = ((1, 0),) * PLACES_MAX
    yield FIND_BATCHES.encode(BatchLookup(WIDE, "p", 0, range_epoch=1, places=places))


def _tasks(call: TypedCall[[Sequence[ScanTask]], Any]) -> Callable[[], Iterator[bytes]]:
    def requests() -> Iterator[bytes]:
        nothing, all_places = Cursor(), frozenset(range(NUMBERS_MAX))
        task = ScanTask(0, WIDE, queries()[1], nothing, None, frozenset())
        yield call.encode([task] * SCAN_ITEMS_MAX)
        late = Cursor(dict.fromkeys(range(NUMBERS_MAX), 1))
        last = ScanTask(0, WIDE, "", late, late, all_places)
        yield call.encode([last] * (TASK_HEAD_BYTES_MAX // len(call.encode([last]))))

    return requests


def _read_parts() -> Iterator[bytes]:
    parts = pa.table([[0] * 100_000] * 4, schema=PARTS_SCHEMA)
    yield READ.encode(ReadTask(WIDE, parts, queries()[1]), False)


def _table_keys() -> Iterator[bytes]:
    keys = pa.table({"id": [f"k{number}" for number in range(100_000)]})
    yield READ_TABLE.encode(TableTask(TABLE, keys))
    late = Cursor(dict.fromkeys(range(NUMBERS_MAX), 1))
    yield READ_TABLE.encode(TableTask(TABLE, None, late, late, frozenset(range(NUMBERS_MAX))))


def _executions() -> Iterator[bytes]:
    late = Cursor(dict.fromkeys(range(NUMBERS_MAX), 1))
    task = ExecutionsTask(CHANNEL, NAME, late, frozenset(range(NUMBERS_MAX)))
    yield READ_EXECUTIONS.encode(task)


def _handed_off() -> Iterator[bytes]:
    late = Cursor(dict.fromkeys(range(NUMBERS_MAX), 1))
    yield HANDED_OFF_CACHE.encode("absent", 1, late, 1)


def _register() -> Iterator[bytes]:
    yield REGISTER_QUERIES.encode(WIDE, queries() * 5)
    yield REGISTER_QUERIES.encode(WIDE, [f"n000 > {i}" for i in range(QUERIES_MAX)])


def _observations() -> Iterator[bytes]:
    parts = pa.table([[0] * 100_000] * 5, schema=NUMBERED_PARTS_SCHEMA)
    yield OWNER.calls["observations"].encode(WIDE, digest(queries()[1]), stream_of(parts), 0)


def _match() -> Iterator[bytes]:
    items, partitions = ITEMS_MAX, np.arange(16, dtype=np.int32)
    request = CycleRequest(
        dataset=WIDE,
        schema_json=wide_schema().to_json(),
        partitions=partitions,
        after=np.zeros(16, dtype=np.int64),
        cursors=np.zeros(items, dtype=np.int32),
        digests=np.zeros(16 * items, dtype=np.uint8),
        items=np.arange(items, dtype=np.uint32),
        samplers_json=(),
        samplers=np.zeros(items, dtype=np.uint32),
        is_compressed=np.zeros(items, dtype=np.bool_),
        addresses=("n1",),
        owners=np.zeros(16, dtype=np.int32),
        committed=np.zeros(0, dtype=np.int64),
    )
    yield OWNER.calls["match"].encode(request)


def _gossip() -> Iterator[bytes]:
    many = np.ones(GOSSIP_HEAD_BYTES_MAX // 40, np.uint32)
    digest = Digest(tuple(f"{i:x}" for i in range(len(many))), many.astype(np.uint64), many, many)
    entries = tuple(StateEntry("k", i, b"") for i in range(GOSSIP_HEAD_BYTES_MAX // 32))
    moves = tuple(Move(i, 1, "n") for i in range(MOVES_MAX))
    for request in (
        GossipRequest("n2", 0, 0, 1, messages=(b"x",) * MESSAGES_MAX),
        GossipRequest("n2", 0, 0, 9, topology=bytes(8 << 20)),
        GossipRequest("n2", 0, 0, 1, heartbeat=Heartbeat(moves=moves)),
        GossipRequest("n2", 0, 0, 1, states=Gossip(digest)),
        GossipRequest("n2", 0, 0, 1, states=Gossip(None, (StateDelta("n", 0, 0, 1, entries),))),
    ):
        yield GOSSIP.encode(request)


def _replicate(
    size: int, encode: Callable[[Sequence[Envelope]], bytes]
) -> Callable[[], Iterator[bytes]]:
    """Requests of about so many bytes with many messages, and with one message of many parts."""
    to, members = Member("n", ""), {Member("", f"{i:x}") for i in range(SET_ITEMS_MAX)}
    logs = {f"{i:x}": i for i in range(size // 16)}
    epochs = {f"{i:x}": Epochs(end=i) for i in range(size // 64)}

    def requests() -> Iterator[bytes]:
        yield encode([Envelope(0, to, to, PreVote(1)) for _ in range(size // 100)])
        for message in (
            NewerSet(ReplicaSet(1, 1, frozenset(members))),
            Acknowledged(1, (1, 1), True, True, logs, {}),
            Vote(1, 1, epochs, {}),
        ):
            yield encode([Envelope(0, to, to, message)])

    return requests


def _digests() -> Iterator[bytes]:
    ranges = [LogRange(0, f"{i:x}", 0, 1) for i in range(SMALL_REQUEST_BYTES_MAX // 50)]
    yield DIGESTS.encode(Member("n", ""), ranges)


def _change_row() -> Iterator[bytes]:
    for text in _large_schemas():
        yield CHANGE_ROW.encode(DATASETS.key, CreateDataset("large", text, "made"))
    features = [galileo.Feature(f"a{i}") for i in range(15_000)]
    yield CHANGE_ROW.encode(DATASETS.key, AddFeatures(WIDE, features_to_json(features)))
    yield CHANGE_ROW.encode(DATASETS.key, OfferRow("made", "[" * len(LONG)))
    facts = SamplerFacts(NAME, NAME, NAME, 1, NAME, 0.0)
    archive = pa.py_buffer(bytes(ARCHIVE_BYTES_MAX))
    yield CHANGE_ROW.encode(SAMPLERS.key, KeepSampler(facts, archive))


def _records() -> Iterator[tuple[str, int]]:
    """Records of continuous queries, and how many have room in one request."""
    for query, count in (("", CALL_CHANGES_MAX), ('"' * TEXT_MAX, 1)):
        yield (
            encode_record(Record(CcqDefinition("large", WIDE, query, 1.0, 4e9), 1, (NAME,) * 3)),
            count,
        )


def _change_rows() -> Iterator[bytes]:
    for data, count in _records():
        for change in (PlaceCcq, SaveProgress):
            rest = (1 << 30, 1 << 30) if change is PlaceCcq else ()
            changes = [change(f"q{number}", data, *rest) for number in range(count)]
            yield CHANGE_ROWS.encode(CCQS.key, changes)
    offers = [OfferRow(f"o{number}", "[" * 4_096) for number in range(CALL_CHANGES_MAX)]
    yield CHANGE_ROWS.encode(DATASETS.key, offers)


def _learn_row() -> Iterator[bytes]:
    definition = Definition(schema=wide_schema())
    for text in (encode(definition), "[" * len(LONG)):
        yield LEARN_ROW.encode(DATASETS.key, Row(WIDE, text))
    for data, _ in _records():
        yield LEARN_ROW.encode(CCQS.key, Row("large", data))


def _one(request: Message | bytes) -> Callable[[], Iterator[Message | bytes]]:
    return lambda: iter([request])


_QUERY = "vertices or operators of the query by entries of the synopses"
_TEXT = "length of a text"
_SMALL = "length of names"
_NOTHING = "nothing of the caller"

_NAMES = frozenset({"ccq_id", "channel", "dataset", "digest", "name", "node", "to"})
"""Texts of requests that are looked up, and not read."""
_NUMBERS = (bool, int, float)


def _small_requests() -> Iterator[tuple[str, Message | bytes]]:
    """The requests of methods that take names, numbers and flags alone, with the longest names."""
    for method in (method for service in NODE_SERVICES for method in service.methods):
        fields, kind = method.input_type.fields, GetMessageClass(method.input_type)
        if all(map(_is_small, fields)):
            names = [field.name for field in fields if field.type == FieldDescriptor.TYPE_STRING]
            request = kind(**dict.fromkeys(names, NAME))
            yield f"{method.containing_service.name}/{method.name}", request
    for call in SERVICE.calls.values():
        kinds = get_type_hints(getattr(Internal, call.name), include_extras=True)
        del kinds["return"]
        texts = {name for name, kind in kinds.items() if kind not in _NUMBERS}
        if texts <= _NAMES and all(kinds[name] is str for name in texts):
            values = {name: NAME if name in texts else kind(1) for name, kind in kinds.items()}
            yield short_name(call.path), call.encode(**values)


def _is_small(field: FieldDescriptor) -> bool:
    if field.is_repeated or field.message_type is not None:
        return False
    if field.type == FieldDescriptor.TYPE_STRING:
        return field.name in _NAMES
    return field.type != FieldDescriptor.TYPE_BYTES


RPCS: Mapping[str, WorstCall] = MappingProxyType(
    {name: WorstCall(_SMALL, _one(request)) for name, request in _small_requests()}
    | {
        "Storage/Ingest": WorstCall("columns by batches, rows by columns", _ingest),
        "Storage/Read": WorstCall("rows of parts; operators of the query", _read),
        "Storage/Select": WorstCall(f"{_QUERY}; names by columns", _select),
        "Storage/Page": WorstCall(f"{_QUERY}; names by columns", _page),
        "Storage/ReadTable": WorstCall("keys by partitions", _read_table),
        "Storage/Scan": WorstCall("items by operators", _scan),
        "Query/Run": WorstCall(f"{_QUERY}; partitions", _run),
        "Analytics/Analyse": WorstCall(
            f"{_QUERY}; bins; statistics by groups; children, rows or features by nodes", _analyse
        ),
        "Analytics/Estimate": WorstCall(f"{_QUERY}; quantiles by groups", _estimate),
        "Continuous/Submit": WorstCall(_QUERY, _submit),
        "Continuous/Fetch": WorstCall(_TEXT, _fetch),
        "Continuous/Watch": WorstCall(_TEXT, _fetch),
        "Continuous/List": WorstCall("continuous queries", _one(continuous_pb2.ListRequest())),
        "Cluster/CreateDataset": WorstCall("features; operators of a template", _create_dataset),
        "Cluster/AddFeatures": WorstCall("features by features", _add_features),
        "Cluster/ListDatasets": WorstCall(
            "datasets by features", _one(cluster_pb2.ListDatasetsRequest())
        ),
        "Cluster/Status": WorstCall("datasets by partitions", _one(cluster_pb2.StatusRequest())),
        "Cluster/AddNode": WorstCall(
            _TEXT, _one(cluster_pb2.AddNodeRequest(name=NAME, address="localhost:1", group="g"))
        ),
        "Cluster/SetRanges": WorstCall("ranges by ranges", _ranges),
        "Cluster/SetReplicas": WorstCall(
            _NOTHING, _one(cluster_pb2.SetReplicasRequest(replicas=2**32 - 1))
        ),
        "Cluster/SetRetention": WorstCall(
            _TEXT,
            _one(cluster_pb2.SetRetentionRequest(dataset=WIDE, retention_json="[" * len(LONG))),
        ),
        "Channels/Follow": WorstCall("partitions", _follow),
        "Channels/DescribeChannel": WorstCall(
            "partitions", _one(channels_pb2.DescribeChannelRequest(dataset=CHANNEL))
        ),
        "Samplers/Upload": WorstCall("members by bytes", _upload),
        "internal/analyse": WorstCall(f"{_QUERY}; partitions", _analyse_share),
        "internal/commit": WorstCall("rows by columns", _commit),
        "internal/find_batches": WorstCall("places", _find_batches),
        "internal/scan": WorstCall("items by operators", _tasks(SCAN)),
        "internal/scan_small": WorstCall("items by operators", _tasks(SCAN_SMALL)),
        "internal/register_queries": WorstCall("queries by operators", _register),
        "internal/observations": WorstCall("rows of parts; operators of the query", _observations),
        "internal/match": WorstCall("items by partitions", _match),
        "internal/read": WorstCall("rows of parts; operators of the query", _read_parts),
        "internal/read_table": WorstCall("keys by partitions", _table_keys),
        "internal/read_executions": WorstCall("partitions", _executions),
        "internal/fetch": WorstCall(_TEXT, lambda: iter([FETCH.encode("absent", LONG, 1.0, 1)])),
        "internal/handed_off_cache": WorstCall("partitions", _handed_off),
        "internal/gossip": WorstCall("nodes, entries, moves", _gossip),
        "internal/replicate": WorstCall(
            "messages, logs", _replicate(SMALL_REQUEST_BYTES_MAX, REPLICATE.encode)
        ),
        "internal/replicate_frames": WorstCall(
            "messages, logs", _replicate(REPLICATE_HEAD_BYTES_MAX, REPLICATE_FRAMES.encode)
        ),
        "internal/describe_channel": WorstCall(
            "partitions", lambda: iter([DESCRIBE_CHANNEL.encode(CHANNEL)])
        ),
        "internal/apply_retention": WorstCall(
            _TEXT, lambda: iter([APPLY_RETENTION.encode(WIDE, "[" * len(LONG))])
        ),
        "internal/digests": WorstCall("ranges", _digests),
        "internal/change_row": WorstCall("features", _change_row),
        "internal/change_rows": WorstCall("changes by bytes of a record", _change_rows),
        "internal/rows_after": WorstCall(
            "bytes of a page",
            lambda: iter([ROWS_AFTER.encode(DATASETS.key, Position(name=NAME), NAME)]),
        ),
        "internal/learn_row": WorstCall("features", _learn_row),
        "internal/known_row": WorstCall(
            "bytes of a row", lambda: iter([KNOWN_ROW.encode(CCQS.key, "large")])
        ),
        "internal/known_rows": WorstCall(
            "bytes of a page", lambda: iter([KNOWN_ROWS.encode(DATASETS.key, "")])
        ),
    }
)
"""By method, "Service/Method"; `_small_requests` makes those that are not named."""


# --- routes --------------------------------------------------------------------------------------

HttpRequests: TypeAlias = Iterator[HttpRequest]
_DATASET = f"/collections/{WIDE}"
_LONG_PATH = "y" * HEAD_BYTES


def _get(*paths: str) -> Callable[[], HttpRequests]:
    return lambda: (HttpRequest(path) for path in paths)


def _filtered(path: str, *, method: str = "GET", **parameters: str) -> Callable[[], HttpRequests]:
    """A request without a filter, and one with each of `short_queries`."""

    def requests() -> HttpRequests:
        yield HttpRequest(f"{_DATASET}/{path}?{urlencode(parameters)}", method)
        for query in short_queries():
            text = urlencode({**parameters, "filter": query}, quote_via=quote, safe="(),:<>=")
            yield HttpRequest(f"{_DATASET}/{path}?{text}", method)

    return requests


def _edr(kind: str, **parameters: str) -> Callable[[], HttpRequests]:
    def requests() -> HttpRequests:
        for format in ("coveragejson", "geojson"):
            given = {**parameters, "f": format}
            yield HttpRequest(f"{_DATASET}/{kind}?{urlencode(given, safe='(),')}")

    return requests


def _line(vertices: int) -> str:
    points = [f"{-179 + 358 * i / vertices:.2f} {80 * (-1) ** i}" for i in range(vertices)]
    return f"LINESTRING({','.join(points)})"


_STATISTICS = ",".join(f"n{i:03}:{s}" for i in range(NAMED) for s in ("count", "sum", "mean"))


def _posted_items() -> HttpRequests:
    rows = wide_rows(4_000)
    yield HttpRequest(f"{_DATASET}/items", "POST", galileo.to_geojson(rows).encode(), _GEOJSON)
    yield HttpRequest(f"{_DATASET}/items", "POST", many_batches(), _ARROW)
    name = json.dumps({"type": "Feature", "properties": {f"k{i}": i for i in range(500_000)}})
    yield HttpRequest(f"{_DATASET}/items", "POST", name.encode(), _GEOJSON)
    header = ",".join(f"c{i}" for i in range(200_000))
    yield HttpRequest(f"{_DATASET}/items", "POST", f"{header}\n".encode() * 20, "text/csv")
    lines = "\n".join(json.dumps({f"k{i}": i}) for i in range(20_000))
    yield HttpRequest(f"{_DATASET}/items", "POST", lines.encode(), "application/x-ndjson")


def _posted_subscriptions() -> HttpRequests:
    path = f"/channels/{CHANNEL}/subscriptions"
    many = [{"id": f"i{i}", "broker": "b", "least": i, "most": 1} for i in range(60_000)]
    yield HttpRequest(path, "POST", json.dumps(many).encode(), "application/json")
    named = [{f"k{i}": i} for i in range(60_000)]
    yield HttpRequest(path, "POST", json.dumps(named).encode(), "application/json")


def _bodies(path: str, method: str = "POST", media_type: str = "application/json") -> HttpRequests:
    """Large documents, wide and deep."""
    for text in (json.dumps({f"k{i}": i for i in range(50_000)}), "[" * 500_000):
        yield HttpRequest(path, method, text.encode(), media_type)


def _posted_ccqs() -> HttpRequests:
    for query in queries():
        document = {"dataset": WIDE, "query": query, "interval": "1h", "expiration": "2h"}
        yield HttpRequest("/ccqs", "POST", json.dumps(document).encode(), "application/json")
    yield from _bodies("/ccqs")


def _put_channel() -> HttpRequests:
    template = " OR ".join(f"n{i % NAMED:03} > :least AND n001 < {i}" for i in range(900))
    document = {"dataset": WIDE, "template": template, "period": "1h"}
    yield HttpRequest("/channels/c9", "PUT", json.dumps(document).encode(), "application/json")
    yield from _bodies("/channels/c9", "PUT")


_GEOJSON, _ARROW = "application/geo+json", "application/vnd.apache.arrow.stream"
_BROKER = f"/channels/{CHANNEL}/brokers/b"
_PAGES = ("", "?f=html")

ROUTES: Mapping[tuple[str, str], WorstRequest] = MappingProxyType(
    {
        ("landing", "GET"): WorstRequest(_NOTHING, _get(*(f"/{p}" for p in _PAGES))),
        ("conformance", "GET"): WorstRequest(_NOTHING, _get("/conformance")),
        ("api", "GET"): WorstRequest(_NOTHING, _get("/api")),
        ("collections", "GET"): WorstRequest(
            "datasets by features", _get(*(f"/collections{p}" for p in _PAGES))
        ),
        ("collection", "GET"): WorstRequest("features", _get(*(f"{_DATASET}{p}" for p in _PAGES))),
        ("queryables", "GET"): WorstRequest(
            "features", _get(*(f"{_DATASET}/queryables{p}" for p in _PAGES))
        ),
        ("schema", "GET"): WorstRequest(
            "features", _get(*(f"{_DATASET}/schema{p}" for p in _PAGES))
        ),
        ("items", "GET"): WorstRequest(
            f"{_QUERY}; rows by columns",
            lambda: (
                *_filtered("items", limit="10000")(),
                *_filtered("items", limit="10000", f="html")(),
                *_get(f"{_DATASET}/items?f=csv")(),
                *_get(f"{_DATASET}/items?properties={','.join(['n000'] * 10_000)}")(),
            ),
        ),
        ("items", "POST"): WorstRequest("names by lines, columns by batches", _posted_items),
        ("items", "DELETE"): WorstRequest(_QUERY, _filtered("items", method="DELETE")),
        ("item", "GET"): WorstRequest(_TEXT, _get(f"{_DATASET}/items/{_LONG_PATH}")),
        ("item", "DELETE"): WorstRequest(
            _TEXT, lambda: iter([HttpRequest(f"{_DATASET}/items/{_LONG_PATH}", "DELETE")])
        ),
        ("position", "GET"): WorstRequest(
            "points by rows",
            _edr("position", coords="MULTIPOINT(" + ",".join(f"({i} 9)" for i in range(20)) + ")"),
        ),
        ("area", "GET"): WorstRequest("vertices by cells", _edr("area", coords=polygon(3_500))),
        ("cube", "GET"): WorstRequest("columns by rows", _edr("cube", bbox="-180,-90,180,90")),
        ("radius", "GET"): WorstRequest(
            "columns by rows",
            _edr("radius", coords="POINT(0 0)", within="20000", **{"within-units": "km"}),
        ),
        ("trajectory", "GET"): WorstRequest(
            "vertices by cells, vertices by rows", _edr("trajectory", coords=_line(1_000))
        ),
        ("corridor", "GET"): WorstRequest(
            "vertices by cells, vertices by rows",
            _edr(
                "corridor",
                coords=_line(1_000),
                **{
                    "corridor-width": "100",
                    "width-units": "km",
                    "corridor-height": "1",
                    "height-units": "m",
                },
            ),
        ),
        ("locations", "GET"): WorstRequest("locations by columns", _get(f"{_DATASET}/locations")),
        ("location", "GET"): WorstRequest(
            "columns by rows",
            _get(f"{_DATASET}/locations/s1", f"{_DATASET}/locations/{_LONG_PATH}"),
        ),
        ("sparql", "GET"): WorstRequest(
            "labels by features",
            _get(f"{_DATASET}/sparql?query={quote('SELECT * WHERE { ?s ?p ?o } LIMIT 1000')}"),
        ),
        ("sparql", "POST"): WorstRequest(
            _TEXT,
            lambda: iter(
                [
                    HttpRequest(
                        f"{_DATASET}/sparql",
                        "POST",
                        b"SELECT * WHERE { ?s ?p ?o }" + b" " * 900_000,
                        "application/sparql-query",
                    )
                ]
            ),
        ),
        ("cells", "GET"): WorstRequest(
            f"{_QUERY}; statistics by groups",
            _filtered("cells", precision="6", statistics=_STATISTICS),
        ),
        ("series", "GET"): WorstRequest(
            f"{_QUERY}; statistics by groups",
            _filtered("series", window="1m", statistics=_STATISTICS),
        ),
        ("latest", "GET"): WorstRequest(
            f"{_QUERY}; cells by columns", _filtered("latest", by=TEXT)
        ),
        ("summary", "GET"): WorstRequest(
            f"{_QUERY}; bins",
            lambda: (
                *_filtered("summary", feature="n000", bins="10000")(),
                *_get(f"{_DATASET}/summary")(),
            ),
        ),
        ("estimate", "GET"): WorstRequest(
            f"{_QUERY}; quantiles by groups",
            _filtered(
                "estimate",
                feature="n000",
                quantiles=",".join(f"{i / 1_000:g}" for i in range(QUANTILES_MAX)),
            ),
        ),
        ("explain", "GET"): WorstRequest(_QUERY, _filtered("explain")),
        ("tile_matrix_sets", "GET"): WorstRequest(_NOTHING, _get("/tileMatrixSets")),
        ("tile_matrix_set", "GET"): WorstRequest(
            _NOTHING, _get("/tileMatrixSets/WebMercatorQuad?f=html")
        ),
        ("tilesets", "GET"): WorstRequest(_NOTHING, _get(f"{_DATASET}/tiles?f=html")),
        ("tileset", "GET"): WorstRequest(
            _NOTHING, _get(f"{_DATASET}/tiles/WebMercatorQuad?f=html")
        ),
        ("tile", "GET"): WorstRequest(
            f"{_QUERY}; statistics by cells",
            _filtered("tiles/WebMercatorQuad/0/0/0", statistics=_STATISTICS),
        ),
        ("ccqs", "GET"): WorstRequest("continuous queries", _get("/ccqs", "/ccqs?f=html")),
        ("ccqs", "POST"): WorstRequest(_QUERY, _posted_ccqs),
        ("ccq", "GET"): WorstRequest(_TEXT, _get(f"/ccqs/{_LONG_PATH}")),
        ("ccq", "DELETE"): WorstRequest(
            _TEXT, lambda: iter([HttpRequest(f"/ccqs/{_LONG_PATH}", "DELETE")])
        ),
        ("ccq_labels", "GET"): WorstRequest(_TEXT, _get(f"/ccqs/absent/labels?after={_LONG_PATH}")),
        ("ccq_events", "GET"): WorstRequest(_TEXT, _get(f"/ccqs/absent/events?after={_LONG_PATH}")),
        ("events", "POST"): WorstRequest("queries", lambda: _bodies("/events")),
        ("channels", "GET"): WorstRequest("channels", _get("/channels", "/channels?f=html")),
        ("channel", "GET"): WorstRequest("features", _get(f"/channels/{CHANNEL}?f=html")),
        ("channel", "PUT"): WorstRequest("operators of a template", _put_channel),
        ("channel", "DELETE"): WorstRequest(
            _TEXT, lambda: iter([HttpRequest(f"/channels/{_LONG_PATH}", "DELETE")])
        ),
        ("subscriptions", "POST"): WorstRequest("columns by rows", _posted_subscriptions),
        ("subscription", "GET"): WorstRequest(
            _TEXT, _get(f"/channels/{CHANNEL}/subscriptions/{_LONG_PATH}")
        ),
        ("subscription", "DELETE"): WorstRequest(
            _TEXT,
            lambda: iter(
                [HttpRequest(f"/channels/{CHANNEL}/subscriptions/{_LONG_PATH}", "DELETE")]
            ),
        ),
        ("notifications", "GET"): WorstRequest(
            _TEXT, _get(f"{_BROKER}/notifications?token={_LONG_PATH}")
        ),
        ("notification_events", "GET"): WorstRequest(
            _TEXT, _get(f"{_BROKER}/events?token={_LONG_PATH}")
        ),
        ("broker_position", "GET"): WorstRequest(_NOTHING, _get(f"{_BROKER}/position")),
        ("broker_position", "PUT"): WorstRequest(
            _TEXT, lambda: _bodies(f"{_BROKER}/position", "PUT")
        ),
        ("asyncapi", "GET"): WorstRequest("channels", _get("/asyncapi", "/asyncapi?f=html")),
        ("cluster", "GET"): WorstRequest("datasets by nodes", _get("/cluster", "/cluster?f=html")),
        ("whoami", "GET"): WorstRequest(_NOTHING, _get("/whoami")),
        ("samplers", "GET"): WorstRequest("samplers", _get("/samplers")),
    }
)
"""By the name of a route and a method of HTTP."""

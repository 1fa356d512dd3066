"""Channels: continuous queries with parameters, each for all of its subscriptions at once.

A channel has a template, such as `temperature > :threshold`, over one dataset. Its subscriptions
are the rows of a table: an id, a broker, and a value for each parameter. At each multiple of its
period an *execution* finds the new observations that match, and for which subscriptions. (Wang,
Carey and Tsotras, "Subscribing to Big Data at Scale", 2020, section 4.1.4.)

What nodes store of a channel is the log of its executions. It has the partitions of the table, and
partition p has the executions for the subscriptions of partition p. A commit is one execution: a
row with the *cut*, the commits of the dataset that it looked at, then a row for each broker that
has matches. A second table has what an endpoint has refused. The positions of brokers are rows of
`galileo.model.reader.POSITIONS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import one_array, within
from galileo.errors import InputError, InvalidSchema, reason_of
from galileo.model.enrichment import (
    Lookup,
    Step,
    added_fields,
    check_steps,
    lookups_of,
    lookups_to_dict,
    needed_columns,
    step_from_dict,
    step_to_dict,
    steps_of,
)
from galileo.model.schema import Schema, StoredSchema, dataset_name, read_json
from galileo.model.table import ColumnType, Table
from galileo.model.times import MICROS, TIME_TYPE, Duration, latest_us, seconds

SUBSCRIPTIONS, DEAD_LETTERS = ".subscriptions", ".dead-letters"
"""What the names of a channel's tables have behind the channel's name."""
_OF_TABLES = (SUBSCRIPTIONS, DEAD_LETTERS)
NAME_MAX = 64 - len(SUBSCRIPTIONS)
ID, BROKER = "id", "broker"
"""The columns of a subscription before its parameters."""
SUBSCRIPTION = "subscription"
"""The column of notifications with the id of the subscription."""
LEFT = "left"
"""The column of matches that says that they match no longer."""
NO_BROKER = ""
"""In place of a broker: the row with the cut."""
PERIOD_MIN_S, PERIOD_MAX_S = 0.1, 366 * 86_400.0
KEEP_MIN_S = 1.0

_EXECUTION_SCHEMA = pa.schema(
    [
        pa.field("execution", pa.int64(), nullable=False),
        pa.field("broker", pa.string(), nullable=False),
        pa.field("partitions", pa.list_(pa.int32())),
        pa.field("after", pa.list_(pa.int64())),
        pa.field("until", pa.list_(pa.int64())),
        pa.field("subscriptions", pa.int64()),
        pa.field("observations", pa.binary()),
        pa.field("matches", pa.binary()),
    ]
)
_DEAD_LETTER_COLUMNS: dict[str, ColumnType] = {
    ID: "text",
    BROKER: "text",
    "subscription": "text",
    "reason": "text",
    "at": "time",
    "notification": "text",
}
_REFERENCE_FIELDS = [
    pa.field("references", pa.list_(pa.string())),
    pa.field("reference_partitions", pa.list_(pa.int32())),
    pa.field("reference_until", pa.list_(pa.int64())),
]
"""Of an execution that reads tables: up to which commit of each partition."""
_DUE_FIELD = pa.field("due", TIME_TYPE)
"""Of a repetitive channel: at which multiple of the period the execution was due."""
_EXECUTED_AT_SCHEMA = pa.schema(
    [
        pa.field("at", TIME_TYPE, nullable=False),
        pa.field("subscriptions", pa.int64(), nullable=False),
    ]
)
MATCHES_SCHEMA = pa.schema(
    [
        pa.field("rows", pa.list_(pa.int32()), nullable=False),
        pa.field("subscriptions", pa.list_(pa.string()), nullable=False),
        pa.field(LEFT, pa.bool_(), nullable=False),
    ]
)
"""The matches of a broker: each row stands for the pairs of all its rows, numbers of observations,
with all its subscriptions; `left`: they match no longer."""
SHARE_BYTES_MAX = 1 << 30
"""Unpacked bytes of the observations, and of the matches, that a broker gets by an execution."""

_Numbers: TypeAlias = npt.NDArray[np.integer[Any]]
New = Literal["observations", "both", "either", "none"]


@dataclass(frozen=True, slots=True, init=False)
class Channel(StoredSchema):
    """A continuous query with parameters; once the channel exists, it never changes.

    Args:
        name: as of a dataset, at most 50 characters.
        dataset: whose new observations are matched.
        template: CQL2 text with parameters, such as `temperature > :threshold`; see `Template`.
        period: time between two executions, which begin at its multiples.
        columns: of the observations that are delivered; none: all.
        keep: for how long the results of an execution are kept, unless a broker holds them for
            longer, and how much longer than by the dataset's retention observations that are not
            matched yet; at least a second.
        new: what has to be new in a pair of an observation and a subscription since the last
            execution: "observations", with any subscription; "both", of the subscription its row
            in the table, or one that it looks up; "either": subscriptions that are new or were
            changed, or have a row that was, also get the observations that are there, and of these
            each once while it matches; "none": nothing, so that each execution delivers all
            observations that match at that time.
        enrich: steps that add rows of tables to the observations that are delivered, such as
            `galileo.Lookup("ratings", on="country")`; each has another table.
        leave: with "either", whether a change of a subscription, of its row, or of an observation
            of a keyed dataset also delivers which of the observations that matched before match no
            longer.
        lookup: tables whose columns the template names, such as `officers.place`, and for each the
            parameter with the key of a subscription's row: `{"officers": ":officer"}`. If the key
            has several columns, a dict of parameters and columns.
        age_max: with "none", how long the time of an observation may lie before the multiple of
            the period at which an execution is due; none: there is no bound.

    Attributes:
        period_us: microseconds.
        keep_us: microseconds.
        age_max_us: microseconds; None: there is no bound.
        schema: of the dataset when the channel was created; the cluster sets it, and all below.
        references: the tables of `lookup` and `enrich`, in their order.
        parameters: names and types of the parameters of a subscription.
        start: the commits of the dataset before the first execution: partition and sequence.
        partitions: over how many partitions subscriptions are spread.

    Example:
        >>> alerts = galileo.Channel("alerts", "weather", "temperature > :threshold", period="5s")
        >>> alerts.subscription_table
        'alerts.subscriptions'
    """

    dataset: str
    template: str
    period_us: int
    columns: tuple[str, ...]
    keep_us: int
    new: New
    leave: bool
    age_max_us: int | None
    enrich: tuple[Step, ...]
    lookup: tuple[Lookup, ...]
    schema: Schema | None
    references: tuple[Table, ...]
    parameters: tuple[tuple[str, ColumnType], ...]
    start: tuple[tuple[int, int], ...]
    partitions: int

    def __init__(
        self,
        name: str,
        dataset: str,
        template: str,
        *,
        period: Duration = "10s",
        columns: Sequence[str] = (),
        keep: Duration = "7d",
        new: New = "observations",
        leave: bool = False,
        enrich: Sequence[Step] = (),
        lookup: Mapping[str, str | Mapping[str, str]] | None = None,
        age_max: Duration | None = None,
    ) -> None:
        object.__setattr__(self, "name", _channel_name(name))
        object.__setattr__(self, "generation", 0)
        object.__setattr__(self, "added", 0)
        object.__setattr__(self, "dataset", dataset_name(dataset))
        object.__setattr__(self, "template", _text(template))
        object.__setattr__(self, "period_us", _period_us(period))
        object.__setattr__(self, "columns", _names(columns))
        object.__setattr__(self, "keep_us", _keep_us(keep))
        object.__setattr__(self, "new", _new(new, leave=leave))
        object.__setattr__(self, "leave", leave)
        object.__setattr__(self, "age_max_us", _age_max_us(age_max, new=new))
        object.__setattr__(self, "enrich", _steps(enrich))
        object.__setattr__(self, "lookup", _lookups(lookup or {}, enrich=self.enrich))
        object.__setattr__(self, "schema", None)
        object.__setattr__(self, "references", ())
        object.__setattr__(self, "parameters", ())
        object.__setattr__(self, "start", ())
        object.__setattr__(self, "partitions", 0)

    def bound(
        self,
        schema: Schema,
        parameters: Sequence[tuple[str, ColumnType]],
        *,
        start: Mapping[int, int],
        partitions: int,
        references: Sequence[Table] = (),
    ) -> Channel:
        """The channel as a cluster creates it.

        Args:
            schema: of the dataset.
            parameters: names and types.
            start: the commits of the dataset that are not matched.
            partitions: of the cluster.
            references: the tables of `lookup` and `enrich`, in their order.

        Raises:
            InputError: the dataset lacks one of the columns, or a step does not fit.

        Example:
            >>> weather = galileo.Schema("weather", [galileo.Feature("temperature")])
            >>> hot = galileo.Channel("hot", "weather", "temperature > :least")
            >>> hot.bound(weather, [("least", "float")], start={}, partitions=4).parameters
            (('least', 'float'),)
        """
        known = schema.observation_schema.names
        unknown = [name for name in self.columns if name not in known]
        if unknown:
            raise InputError(
                f"expected columns of dataset {schema.name!r} ({', '.join(known)}), got "
                f"{', '.join(unknown)}",
                parameter="columns",
            )
        tables = {table.name: table for table in references}
        check_steps(self.enrich, schema.observation_schema, tables)
        return self._with(
            schema=schema,
            references=tuple(references),
            parameters=tuple((name, kind) for name, kind in parameters),
            start=tuple(sorted(start.items())),
            partitions=partitions,
        )

    @property
    def period_s(self) -> float:
        """Seconds between two executions.

        Example:
            >>> galileo.Channel("hot", "weather", "temperature > :t", period="250ms").period_s
            0.25
        """
        return self.period_us / MICROS

    @property
    def is_repetitive(self) -> bool:
        """Whether each execution delivers all that matches, and not only what is new."""
        return self.new == "none"

    @property
    def compares(self) -> bool:
        """Whether changes of subscriptions, and of the rows that they have, count as news."""
        return self.new in ("both", "either")

    def due_us(self, now_s: float) -> int:
        """When an execution was due last: a multiple of the period, microseconds since 1970.

        Args:
            now_s: the time, seconds since 1970.

        Example:
            >>> galileo.Channel("hot", "weather", "temperature > :t", period="10s").due_us(57.5)
            50000000
        """
        now_us = round(now_s * MICROS)
        return now_us - now_us % self.period_us

    @property
    def subscription_table(self) -> str:
        """The name of the table of its subscriptions."""
        return self.name + SUBSCRIPTIONS

    @property
    def subscriptions(self) -> Table:
        """The table of its subscriptions, as it is created."""
        columns: dict[str, ColumnType] = {ID: "text", BROKER: "text", **dict(self.parameters)}
        return Table(self.subscription_table, columns, key=ID).spread(self.partitions)

    @property
    def dead_letters(self) -> Table:
        """The table of notifications that an endpoint has refused, as it is created.

        Example:
            >>> galileo.Channel("hot", "weather", "temperature > :t").dead_letters.name
            'hot.dead-letters'
        """
        name = self.name + DEAD_LETTERS
        return Table(name, _DEAD_LETTER_COLUMNS, key=ID).spread(self.partitions)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All of its tables."""
        return self.subscriptions, self.dead_letters

    @property
    def observed_schema(self) -> pa.Schema:
        """The columns of the observations that are delivered, without those of `enrich`."""
        assert self.schema is not None, "a channel of no cluster has no columns"
        whole = self.schema.observation_schema
        return pa.schema([whole.field(name) for name in self.columns]) if self.columns else whole

    @property
    def delivered_schema(self) -> pa.Schema:
        """The columns that are delivered: those of the observations, and what `enrich` adds."""
        return pa.schema([*self.observed_schema, *added_fields(self.enrich, self.reference_tables)])

    @property
    def steps(self) -> tuple[Step, ...]:
        """Those of `lookup` and `enrich`, each of which has another table."""
        return *self.lookup, *self.enrich

    @property
    def sources(self) -> frozenset[str]:
        """The dataset, and the tables whose changes are news."""
        tables = [self.subscription_table, *(step.table for step in self.lookup)]
        return frozenset([self.dataset, *(tables if self.compares else [])])

    @property
    def reference_tables(self) -> dict[str, Table]:
        """The tables of `references`, by their names."""
        return {table.name: table for table in self.references}

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """The columns of the observations that `enrich` reads."""
        return needed_columns(self.enrich)

    @property
    def observation_schema(self) -> pa.Schema:
        """The rows of an execution.

        The first one has no broker, and the cut: of each partition of the dataset the commits
        (after, until], and the commit of the subscription table, as `subscriptions`. The others
        have the observations and the matches of a broker as Arrow IPC streams. If it reads tables,
        the first row also has the commits up to which it has read them, by name and partition. If
        the channel is repetitive, the first row has when the execution was due.
        """
        further = _REFERENCE_FIELDS if self.steps else []
        further = [*further, _DUE_FIELD] if self.is_repetitive else further
        return pa.schema([*_EXECUTION_SCHEMA, *further]) if further else _EXECUTION_SCHEMA

    @property
    def path_schema(self) -> pa.Schema:
        """One row: when the execution was, and up to which commit of the subscriptions."""
        return _EXECUTED_AT_SCHEMA

    def newest_us(self, paths: pa.RecordBatch) -> int:
        """When the last of some executions was, microseconds since 1970.

        Example:
            >>> import pyarrow as pa
            >>> hot = galileo.Channel("hot", "weather", "temperature > :least")
            >>> columns = {"at": [1_000_000, 3_000_000], "subscriptions": [2, 5]}
            >>> hot.newest_us(pa.RecordBatch.from_pydict(columns, schema=hot.path_schema))
            3000000
        """
        return latest_us(paths.column("at"))

    def is_wanted(self, wanted: StoredSchema) -> bool:
        """Whether this is what a call wants to create, in whatever cluster and generation.

        Example:
            >>> hot = galileo.Channel("hot", "weather", "temperature > :least")
            >>> hot.is_wanted(galileo.Channel("hot", "weather", "temperature < :most"))
            False
        """
        return isinstance(wanted, Channel) and self.unbound == wanted.unbound

    @property
    def unbound(self) -> Channel:
        """The channel without what a cluster has set."""
        return self._with(
            generation=0, schema=None, references=(), parameters=(), start=(), partitions=0
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, which `from_dict` reads.

        Example:
            >>> galileo.Channel("hot", "weather", "temperature > :t").to_dict()["template"]
            'temperature > :t'
        """
        raw: dict[str, Any] = {
            "name": self.name,
            "dataset": self.dataset,
            "template": self.template,
            "period_us": self.period_us,
            "columns": list(self.columns),
            "keep_us": self.keep_us,
            "new": self.new,
            "leave": self.leave,
        }
        if self.age_max_us is not None:
            raw["age_max_us"] = self.age_max_us
        if self.enrich:
            raw["enrich"] = [step_to_dict(step) for step in self.enrich]
        if self.lookup:
            raw["lookup"] = lookups_to_dict(self.lookup)
        if self.generation:
            raw["generation"] = self.generation
        if self.schema is not None:
            raw["schema"] = self.schema.to_dict()
            if self.references:
                raw["references"] = [table.to_dict() for table in self.references]
            raw["parameters"] = [list(parameter) for parameter in self.parameters]
            raw["start"] = [list(position) for position in self.start]
            raw["partitions"] = self.partitions
        return raw

    @staticmethod
    def from_dict(raw: dict[str, Any]) -> Channel:
        """The inverse of `to_dict`.

        Example:
            >>> hot = galileo.Channel("hot", "weather", "temperature > :t")
            >>> galileo.Channel.from_dict(hot.to_dict()) == hot
            True
        """
        try:
            channel = Channel(
                raw["name"],
                raw["dataset"],
                raw["template"],
                period=int(raw["period_us"]) / MICROS,
                columns=raw["columns"],
                keep=int(raw["keep_us"]) / MICROS,
                new=raw["new"],
                leave=raw["leave"],
                enrich=[step_from_dict(step) for step in raw.get("enrich", ())],
                lookup=raw.get("lookup"),
                age_max=int(raw["age_max_us"]) / MICROS if "age_max_us" in raw else None,
            )._with(generation=int(raw.get("generation", 0)))
            if "schema" not in raw:
                return channel
            return channel.bound(
                Schema.from_dict(raw["schema"]),
                [(str(name), kind) for name, kind in raw["parameters"]],
                start={int(partition): int(sequence) for partition, sequence in raw["start"]},
                partitions=int(raw["partitions"]),
                references=[Table.from_dict(table) for table in raw.get("references", ())],
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidSchema(
                f"expected a channel as `Channel.to_dict` gives it: {reason_of(error)}",
                expected="channel",
            ) from error

    @staticmethod
    def from_json(text: str) -> Channel:
        """The inverse of `to_json`.

        Raises:
            InvalidSchema: the text is no channel.

        Example:
            >>> hot = galileo.Channel("hot", "weather", "temperature > :t")
            >>> galileo.Channel.from_json(hot.to_json()) == hot
            True
        """
        return Channel.from_dict(read_json(text, "channel"))


def pairs_of(matches: pa.Table) -> tuple[_Numbers, _Numbers, pa.Array]:
    """Each pair of a row and a subscription: of which match, the number of the row, and the id.

    The pairs of a match follow each other, and those of a row in them.

    Args:
        matches: with the columns `rows` and `subscriptions` of `MATCHES_SCHEMA`.
    """
    rows, ids = (one_array(matches.column(name)) for name in ("rows", "subscriptions"))
    of_rows, of_ids = (lists.value_lengths().to_numpy().astype(np.int64) for lists in (rows, ids))
    counts = of_rows * of_ids
    match = np.repeat(np.arange(len(counts)), counts)
    number = within(counts)
    row = (np.cumsum(of_rows) - of_rows)[match] + number // of_ids[match]
    place = (np.cumsum(of_ids) - of_ids)[match] + number % of_ids[match]
    return match, rows.flatten().to_numpy()[row], ids.flatten().take(pa.array(place))


def matches_between(matches: pa.Table, start: int, stop: int) -> pa.Table:
    """The matches whose pairs are those with the numbers from `start` to `stop`.

    Pairs are counted in the order of `pairs_of`. Of the first and the last match, a part of the
    pairs may remain: some rows with all subscriptions, and at each end one row with a part of them.

    Args:
        matches: with the columns `rows` and `subscriptions` of `MATCHES_SCHEMA`.
        start: the first number.
        stop: the number behind the last one; more than `start`.
    """
    lengths = [pc.list_value_length(matches.column(name)) for name in ("rows", "subscriptions")]
    of_ids = lengths[1].to_numpy().astype(np.int64)
    ends = np.cumsum(lengths[0].to_numpy() * of_ids)
    stop = min(stop, int(ends[-1]))
    first, last = (int(np.searchsorted(ends, place, "right")) for place in (start, stop - 1))
    parts = []
    for match in sorted({first, last}):
        before, width = int(ends[match - 1]) if match else 0, int(of_ids[match])
        pieces = list(_blocks(max(start - before, 0), min(stop, int(ends[match])) - before, width))
        parts.append(_part_of_match(matches.slice(match, 1), pieces))
    parts.insert(1, matches.slice(first + 1, max(last - first - 1, 0)))
    return pa.concat_tables(parts)


def _blocks(start: int, stop: int, width: int) -> Iterator[tuple[slice, slice]]:
    """The rows and columns of the blocks that the pairs (start, stop) of a match make."""
    row, place = divmod(start, width)
    last_row, last_place = divmod(stop, width)
    if row == last_row:
        yield slice(row, row + 1), slice(place, last_place)
        return
    if place:
        yield slice(row, row + 1), slice(place, width)
        row += 1
    if row < last_row:
        yield slice(row, last_row), slice(0, width)
    if last_place:
        yield slice(last_row, last_row + 1), slice(0, last_place)


def _part_of_match(match: pa.Table, blocks: Sequence[tuple[slice, slice]]) -> pa.Table:
    """One match as several, each of some of its rows and subscriptions."""
    rows, ids = (one_array(match.column(name)).flatten() for name in ("rows", "subscriptions"))
    columns = dict(zip(match.column_names, match.take([0] * len(blocks)).columns, strict=True))
    columns["rows"] = pa.array([rows[some] for some, _ in blocks], match.schema.field("rows").type)
    columns["subscriptions"] = pa.array(
        [ids[some] for _, some in blocks], match.schema.field("subscriptions").type
    )
    return pa.table(columns, schema=match.schema)


def channel_of(table: str) -> str:
    """The channel to which a table of this name would belong; "" if no channel has such a table."""
    suffix = next((suffix for suffix in _OF_TABLES if table.endswith(suffix)), table)
    return table.removesuffix(suffix)


def _channel_name(name: str) -> str:
    if len(dataset_name(name)) > NAME_MAX or name.endswith(_OF_TABLES):
        raise InvalidSchema(
            f"expected a name of at most {NAME_MAX} characters that does not end with "
            f"{', '.join(_OF_TABLES)}, which its tables add, got {name!r}",
            expected="channel_name",
            bound=NAME_MAX,
        )
    return name


def _text(template: Any) -> str:
    if not isinstance(template, str) or not template.strip():
        raise InvalidSchema(
            "expected a template as CQL2 text with parameters, such as 'temperature > :threshold', "
            f"got {template!r}",
            expected="template",
        )
    return template


def _period_us(period: Duration) -> int:
    period_s = seconds(period)
    if not PERIOD_MIN_S <= period_s <= PERIOD_MAX_S:
        raise InvalidSchema(
            f"expected a period from {PERIOD_MIN_S:g} seconds to a year, got {period!r}",
            expected="period",
        )
    return round(period_s * MICROS)


def _keep_us(keep: Duration) -> int:
    keep_s = seconds(keep)
    if keep_s < KEEP_MIN_S:
        raise InvalidSchema(
            f"expected results to be kept for at least {KEEP_MIN_S:g} second, got {keep!r}",
            expected="keep",
            bound=KEEP_MIN_S,
        )
    return round(keep_s * MICROS)


def _new(new: Any, *, leave: Any) -> Any:
    if new not in get_args(New):
        raise InvalidSchema(
            f"expected {', '.join(get_args(New))} to be new, got {new!r}", expected="new"
        )
    if not isinstance(leave, bool) or (leave and new != "either"):
        raise InvalidSchema(
            f"expected leave=True with new='either' alone, since other channels do not know what "
            f"matched before, got {leave!r} with {new!r}",
            expected="leave",
        )
    return new


def _lookups(lookup: Any, *, enrich: Sequence[Step]) -> tuple[Lookup, ...]:
    lookups = lookups_of(lookup)
    known = [step.table for step in enrich]
    for step in lookups:
        if step.table in known or step.table.endswith(_OF_TABLES):
            raise InvalidSchema(
                f"expected lookup= with tables that are of no channel and not in enrich=, got "
                f"{step.table!r}",
                expected="table",
            )
    return lookups


def _age_max_us(age_max: Duration | None, *, new: New) -> int | None:
    if age_max is None:
        return None
    if new != "none":
        raise InvalidSchema(
            f"expected age_max= with new='none' alone, got {age_max!r} with {new!r}",
            expected="age_max",
        )
    return max(1, round(seconds(age_max) * MICROS))


def _steps(enrich: Any) -> tuple[Step, ...]:
    steps = steps_of(enrich)
    for step in steps:
        of_channel = step.table.endswith(_OF_TABLES)
        if of_channel or step.table in (SUBSCRIPTION, LEFT):
            raise InvalidSchema(
                f"expected enrich= with tables that are of no channel and not named "
                f"{SUBSCRIPTION!r} or {LEFT!r}, which are columns of results, got {step.table!r}",
                expected="table",
            )
    return steps


def _names(columns: Any) -> tuple[str, ...]:
    is_list = not isinstance(columns, str) and all(isinstance(name, str) for name in columns)
    if not is_list or len(set(columns)) < len(columns):
        raise InvalidSchema(
            f"expected a list of different columns, such as ['time', 'temperature'], got "
            f"{columns!r}",
            expected="columns",
        )
    return tuple(columns)

"""The options of the data source, from `.option(name, value)`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.model.reader import check_reader_name, reader_hold_us
from galileo.model.schema import nearest_name
from galileo.spark.source.blocking_client import parse_addresses
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

OBSERVATIONS, LABELS = "observations", "labels"
ROWS, CHANGES = "rows", "changes"
FAIL, SKIP = "fail", "skip"
EARLIEST, LATEST = "earliest", "latest"
PUSH_QUERY, PUSH_ALL, PUSH_NONE = "query", "all", "none"
SORTED, AS_GIVEN = "sorted", "as_given"

ROWS_PER_TASK = 1_000_000
COMMITS_PER_TASK = 256
BATCH_ROWS = 65_536

# Options that Spark adds.
_SPARKS = frozenset({"path", "checkpointlocation", "querynameoption", "queryname"})
_READ = ("address", "dataset", "table", "query", "columns", "what", "pushdown", "rows_per_task")
_CREDENTIALS = ("tls", "token_file")
_STREAM = ("starting", "commits_per_batch", "commits_per_task", "on_gap", "reader", "hold")
_WRITE = ("job", "order", "batch_rows")
NAMES = (*_READ, *_CREDENTIALS, *_STREAM, *_WRITE)

_OF_OBSERVATIONS = ("query", "pushdown", "commits_per_batch", "on_gap")
"""Options that changes do not take. What has changed may have matched a query before, and has to be
deleted from a copy then; and the commits between two cursors are not read one by one."""

_GENERATION = "generation"
"""The key of the dataset's generation in an offset; the other keys are partitions."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options.

    Attributes:
        addresses: "host:port" of nodes.
        dataset: its name; "" if it is a table.
        table: its name; "" if it is a dataset.
        query: CQL2.
        columns: of the result; empty for all.
        what: "observations" or "labels" of a dataset, "rows" of a table, or "changes" of a table or
            keyed dataset.
        pushdown: Spark's filters that nodes evaluate: those that the "query" implies, "all" that
            nodes can evaluate, or "none".
        rows_per_task: approximate rows of a task of a batch read.
        starting: the start of a stream: "earliest", "latest", or a cursor as JSON.
        commits_per_batch: bound of a micro-batch; 0 for none.
        commits_per_task: commits of a micro-batch for one task.
        on_gap: "fail" or "skip" if retention dropped commits before they were read.
        reader: under which name a stream stores its position in the cluster; "" if it does not.
        hold_us: for how long retention or cleaning waits for the reader, microseconds.
        job: name of a batch write, so that a repeated write stores nothing twice; "" for a new one.
        order: "sorted" or "as_given", the order of a task's rows.
        batch_rows: rows of a stored batch.
        keys: credentials of the tasks, with the same paths on all hosts.
    """

    addresses: tuple[str, ...]
    dataset: str
    table: str = ""
    query: str = ""
    columns: tuple[str, ...] = ()
    what: str = OBSERVATIONS
    pushdown: str = PUSH_QUERY
    rows_per_task: int = ROWS_PER_TASK
    starting: str = EARLIEST
    commits_per_batch: int = 0
    commits_per_task: int = COMMITS_PER_TASK
    on_gap: str = FAIL
    reader: str = ""
    hold_us: int = 0
    job: str = ""
    order: str = SORTED
    batch_rows: int = BATCH_ROWS
    keys: TlsFiles = NO_TLS_FILES

    @property
    def name(self) -> str:
        """That of the dataset or table."""
        return self.table or self.dataset

    def check_not_stream(self) -> None:
        """Raises InputError for options of streams that would promise something elsewhere."""
        if self.what == CHANGES:
            raise InputError(
                "expected no option what=changes in a batch read or a write: the changes of a "
                "table or keyed dataset are a stream; use readStream",
                option="what",
            )
        if self.reader:
            raise InputError(
                "expected the options 'reader' and 'hold' with readStream alone: a batch read has "
                "read everything when it ends, and a write reads nothing; leave them out",
                option="reader",
            )

    @staticmethod
    def from_spark(raw: Mapping[str, str]) -> SourceOptions:
        """Parses the options of a read or write; names in any case.

        Raises:
            InputError: one is unknown, missing or invalid.
        """
        options = {name.lower(): value for name, value in raw.items()}
        _check_names(options)
        table = _table(options)
        reader, hold_us = _reader(options)
        return SourceOptions(
            addresses=parse_addresses(_required(options, "address")),
            dataset="" if table else _required(options, "dataset"),
            table=table,
            query=options.get("query", ""),
            columns=tuple(
                filter(None, (part.strip() for part in options.get("columns", "").split(",")))
            ),
            what=_one_of(options, "what", *((ROWS,) if table else (OBSERVATIONS, LABELS)), CHANGES),
            pushdown=_one_of(options, "pushdown", PUSH_QUERY, PUSH_ALL, PUSH_NONE),
            rows_per_task=_count(options, "rows_per_task", ROWS_PER_TASK, least=1),
            starting=options.get("starting", EARLIEST),
            commits_per_batch=_count(options, "commits_per_batch", 0, least=0),
            commits_per_task=_count(options, "commits_per_task", COMMITS_PER_TASK, least=1),
            on_gap=_one_of(options, "on_gap", FAIL, SKIP),
            reader=reader,
            hold_us=hold_us,
            job=options.get("job", ""),
            order=_one_of(options, "order", SORTED, AS_GIVEN),
            batch_rows=_count(options, "batch_rows", BATCH_ROWS, least=1),
            keys=TlsFiles.of(tls=options.get("tls", ""), token_file=options.get("token_file", "")),
        )


def cursor_of(offset: Mapping[str, int]) -> Cursor:
    """The cursor of a stream's offset."""
    sequences = {key: sequence for key, sequence in offset.items() if key != _GENERATION}
    return Cursor({int(partition): sequence for partition, sequence in sequences.items()})


def generation_of(offset: Mapping[str, int]) -> int:
    """The generation of the dataset of a stream's offset."""
    return offset.get(_GENERATION, 0)


def offset_of(cursor: Cursor, *, generation: int = 0) -> dict[str, int]:
    """A stream's offset: sequences by partition, ascending, so that equal ones are equal as JSON.

    The generation of the dataset comes last, unless it is 0.
    """
    offset = {str(partition): sequence for partition, sequence in cursor.items()}
    return offset | {_GENERATION: generation} if generation else offset


def cursor_of_text(text: str) -> Cursor:
    """The cursor of the option `starting`.

    Raises:
        InputError: it is not a cursor.
    """
    try:
        return cursor_of(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            "expected the option 'starting' to be 'earliest', 'latest' or a cursor such as "
            f'{{"0": 12, "1": 7}}, got {text!r}',
            option="starting",
        ) from error


def _check_names(options: Mapping[str, str]) -> None:
    for name in options:
        if name not in NAMES and name not in _SPARKS:
            close = nearest_name(name, NAMES)
            hint = f"; did you mean {close!r}?" if close else ""
            raise InputError(
                f"expected options of {', '.join(NAMES)}; got {name!r}{hint}",
                option=name,
                nearest=close,
            )


def _table(options: Mapping[str, str]) -> str:
    """The name of a table. With one, and of changes, options of observations are refused."""
    table, is_changes = options.get("table", ""), options.get("what", "").lower() == CHANGES
    others = ("dataset",) * bool(table) + _OF_OBSERVATIONS * (bool(table) or is_changes)
    wrong = next((name for name in others if options.get(name)), None)
    if wrong is None:
        return table
    given, of = ("the option 'table'", "datasets") if table else ("what=changes", "observations")
    hint = "; filter in Spark, and delete what no longer matches" if is_changes else ""
    raise InputError(
        f"expected no option {wrong!r} with {given}; it is of {of}{hint * (wrong == 'query')}",
        option=wrong,
    )


def _reader(options: Mapping[str, str]) -> tuple[str, int]:
    """The name and the hold of a reader, which belong together."""
    reader, hold = options.get("reader", ""), options.get("hold", "")
    if bool(reader) != bool(hold):
        given, missing = ("reader", "hold") if reader else ("hold", "reader")
        raise InputError(
            f"expected the options 'reader' and 'hold' together, such as reader=nightly and "
            f"hold=7d, got {given!r} without {missing!r}; add .option({missing!r}, ...)",
            option=missing,
        )
    return check_reader_name(reader) if reader else "", reader_hold_us(hold) if hold else 0


def _required(options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise InputError(
            f"expected the option {name!r}, got none; add .option({name!r}, ...)", option=name
        )
    return options[name]


def _one_of(options: Mapping[str, str], name: str, default: str, *others: str) -> str:
    value = options.get(name, default).lower()
    if value not in (default, *others):
        raise InputError(
            f"expected the option {name!r} to be one of {', '.join((default, *others))}; "
            f"got {value!r}",
            option=name,
        )
    return value


def _count(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = options.get(name, str(default))
    try:
        value = int(text)
    except ValueError as error:
        raise InputError(
            f"expected the option {name!r} to be a number, got {text!r}", option=name
        ) from error
    if value < least:
        raise InputError(
            f"expected the option {name!r} to be at least {least}, got {value}",
            option=name,
            bound=least,
        )
    return value

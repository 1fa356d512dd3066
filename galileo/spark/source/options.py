"""The options of the data source, as analysts give them with `.option(name, value)`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.model.schema import nearest_name
from galileo.spark.source.nodes import addresses_of
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

OBSERVATIONS, LABELS = "observations", "labels"
FAIL, SKIP = "fail", "skip"
EARLIEST, LATEST = "earliest", "latest"
PUSH_QUERY, PUSH_ALL, PUSH_NONE = "query", "all", "none"
SORTED, AS_GIVEN = "sorted", "as_given"

ROWS_PER_TASK = 1_000_000
COMMITS_PER_TASK = 256
BATCH_ROWS = 65_536

# Spark adds some of its own, which are none of ours to check.
_SPARKS = frozenset({"path", "checkpointlocation", "querynameoption", "queryname"})
_READ = ("address", "dataset", "query", "columns", "what", "pushdown", "rows_per_task")
_PROOF = ("tls", "token_file")
_STREAM = ("starting", "commits_per_batch", "commits_per_task", "on_gap")
_WRITE = ("job", "order", "batch_rows")
NAMES = (*_READ, *_PROOF, *_STREAM, *_WRITE)

_GENERATION = "generation"
"""Of the dataset, in an offset beside the partitions."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What was asked for.

    Attributes:
        addresses: "host:port" of nodes.
        dataset: its name.
        query: CQL2.
        columns: of the answer; all where none is named.
        what: "observations" or "labels".
        pushdown: which of Spark's filters are taken on: those that "query" says anyway, "all" that
            nodes can check, or "none".
        rows_per_task: about so many rows are one task of a batch read.
        starting: where a stream begins: "earliest", "latest", or a cursor as JSON.
        commits_per_batch: bound of a micro-batch; 0 for none.
        commits_per_task: so many commits of a micro-batch are one task.
        on_gap: "fail" or "skip" what retention dropped before it was read.
        job: names a batch write, so that a repetition stores nothing twice; "" for a fresh name.
        order: "sorted" or "as_given", in which a task's rows are numbered in batches.
        batch_rows: rows of a stored batch.
        keys: the files with which tasks prove who they are, on every host of them.
    """

    addresses: tuple[str, ...]
    dataset: str
    query: str = ""
    columns: tuple[str, ...] = ()
    what: str = OBSERVATIONS
    pushdown: str = PUSH_QUERY
    rows_per_task: int = ROWS_PER_TASK
    starting: str = EARLIEST
    commits_per_batch: int = 0
    commits_per_task: int = COMMITS_PER_TASK
    on_gap: str = FAIL
    job: str = ""
    order: str = SORTED
    batch_rows: int = BATCH_ROWS
    keys: TlsFiles = NO_TLS_FILES

    @staticmethod
    def of(raw: Mapping[str, str]) -> SourceOptions:
        """The options of a read or write; names in any case.

        Raises:
            InputError: one is unknown, missing or wrong; the message names it.
        """
        given = {name.lower(): value for name, value in raw.items()}
        _check_names(given)
        return SourceOptions(
            addresses=addresses_of(_required(given, "address")),
            dataset=_required(given, "dataset"),
            query=given.get("query", ""),
            columns=tuple(
                filter(None, (part.strip() for part in given.get("columns", "").split(",")))
            ),
            what=_one_of(given, "what", OBSERVATIONS, LABELS),
            pushdown=_one_of(given, "pushdown", PUSH_QUERY, PUSH_ALL, PUSH_NONE),
            rows_per_task=_count(given, "rows_per_task", ROWS_PER_TASK, least=1),
            starting=given.get("starting", EARLIEST),
            commits_per_batch=_count(given, "commits_per_batch", 0, least=0),
            commits_per_task=_count(given, "commits_per_task", COMMITS_PER_TASK, least=1),
            on_gap=_one_of(given, "on_gap", FAIL, SKIP),
            job=given.get("job", ""),
            order=_one_of(given, "order", SORTED, AS_GIVEN),
            batch_rows=_count(given, "batch_rows", BATCH_ROWS, least=1),
            keys=TlsFiles.of(tls=given.get("tls", ""), token_file=given.get("token_file", "")),
        )


def cursor_of(offset: Mapping[str, int]) -> Cursor:
    """The cursor of a stream's offset."""
    places = {place: sequence for place, sequence in offset.items() if place != _GENERATION}
    return Cursor({int(partition): sequence for partition, sequence in places.items()})


def generation_of(offset: Mapping[str, int]) -> int:
    """The generation of the dataset that a stream's offset is of."""
    return offset.get(_GENERATION, 0)


def offset_of(cursor: Cursor, *, generation: int = 0) -> dict[str, int]:
    """A stream's offset: partitions as text, ascending, so that equal ones are equal as JSON.

    The generation of the dataset comes last, unless it is 0.
    """
    offset = {str(partition): sequence for partition, sequence in cursor.items()}
    return offset | {_GENERATION: generation} if generation else offset


def cursor_of_text(text: str) -> Cursor:
    """The cursor that the option `starting` names.

    Raises:
        InputError: it is none.
    """
    try:
        return cursor_of(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            "expected the option 'starting' to be 'earliest', 'latest' or a cursor such as "
            f'{{"0": 12, "1": 7}}, got {text!r}'
        ) from error


def _check_names(given: Mapping[str, str]) -> None:
    for name in given:
        if name not in NAMES and name not in _SPARKS:
            close = nearest_name(name, NAMES)
            hint = f"; did you mean {close!r}?" if close else ""
            raise InputError(f"expected options of {', '.join(NAMES)}; got {name!r}{hint}")


def _required(given: Mapping[str, str], name: str) -> str:
    if not given.get(name):
        raise InputError(f"expected the option {name!r}, got none; add .option({name!r}, ...)")
    return given[name]


def _one_of(given: Mapping[str, str], name: str, default: str, *others: str) -> str:
    value = given.get(name, default).lower()
    if value not in (default, *others):
        raise InputError(
            f"expected the option {name!r} to be one of {', '.join((default, *others))}; "
            f"got {value!r}"
        )
    return value


def _count(given: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = given.get(name, str(default))
    try:
        value = int(text)
    except ValueError as error:
        raise InputError(f"expected the option {name!r} to be a number, got {text!r}") from error
    if value < least:
        raise InputError(f"expected the option {name!r} to be at least {least}, got {value}")
    return value

"""The options of the data source."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from expected_errors import raises
from pyspark.sql.types import StructType

from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.model.schema import DELETED, Feature, Schema
from galileo.spark.source import columns
from galileo.spark.source.options import (
    SourceOptions,
    cursor_of,
    cursor_of_text,
    generation_of,
    offset_of,
)
from galileo.spark.source.source import GalileoSource, StreamReader
from galileo.spark.source.tables import ChangeReader

NEEDED = {"address": "127.0.0.1:7701, 127.0.0.1:7702", "dataset": "air"}


def test_source_options_are_read_in_any_case() -> None:
    found = SourceOptions.from_spark({**NEEDED, "COLUMNS": "a, b", "Commits_Per_Batch": "5"})
    assert found.addresses == ("127.0.0.1:7701", "127.0.0.1:7702")
    assert (found.columns, found.commits_per_batch) == (("a", "b"), 5)
    assert found == SourceOptions.from_spark({**NEEDED, "columns": "a,b", "commits_per_batch": "5"})
    assert SourceOptions.from_spark({**NEEDED, "checkpointLocation": "/x", "path": "y"}).query == ""


@pytest.mark.parametrize(
    ("changed", "details"),
    [
        ({"address": ""}, {"option": "address"}),
        ({"address": " , "}, {}),
        ({"dataset": ""}, {"option": "dataset"}),
        ({"on_gab": "skip"}, {"option": "on_gab", "nearest": "on_gap"}),
        ({"on_gap": "ignore"}, {"option": "on_gap"}),
        ({"rows_per_task": "0"}, {"option": "rows_per_task", "bound": 1}),
        ({"batch_rows": "1e3"}, {"option": "batch_rows"}),
        ({"what": "rows"}, {"option": "what"}),
        ({"what": "changes", "query": "t > 1"}, {"option": "query"}),
        ({"what": "Changes", "on_gap": "skip"}, {"option": "on_gap"}),
        ({"what": "changes", "commits_per_batch": "5"}, {"option": "commits_per_batch"}),
        ({"what": "changes", "pushdown": "all"}, {"option": "pushdown"}),
    ],
)
def test_source_options_that_are_invalid_are_refused(
    changed: dict[str, str], details: dict[str, Any]
) -> None:
    with raises(InputError, **details):
        SourceOptions.from_spark({**NEEDED, **changed})


def test_source_option_changes_is_of_streams_of_keyed_datasets() -> None:
    changes = SourceOptions.from_spark({**NEEDED, "what": "changes"})
    with raises(InputError, option="what"):
        changes.check_not_stream()
    plain, keyed = (Schema("air", [Feature("s", type="text")], key=key) for key in ((), "s"))
    with raises(InputError, expected="key", dataset="air"):
        columns.arrow_columns(plain, changes.what)
    assert columns.arrow_columns(keyed, changes.what).names == [
        *keyed.observation_schema.names,
        DELETED,
    ]
    state: Any = SimpleNamespace(schema=keyed)
    with raises(InputError, option="what"):
        ChangeReader(SourceOptions.from_spark(NEEDED), state, StructType())


def test_offset_of_round_trips_cursor() -> None:
    cursor = Cursor({11: 4, 2: 7})
    assert list(offset_of(cursor)) == ["2", "11"]
    later = offset_of(cursor, generation=3)
    assert (generation_of(offset_of(cursor)), generation_of(later)) == (0, 3)
    assert cursor_of(later) == cursor
    assert cursor_of(offset_of(cursor)) == cursor_of_text('{"11": 4, "2": 7}') == cursor


@pytest.mark.parametrize("text", ["now", "[1]", '{"a": 1}', '{"1": "x"}', '{"1": -1}'])
def test_cursor_of_text_of_an_invalid_text_is_refused(text: str) -> None:
    with raises(InputError, option="starting"):
        cursor_of_text(text)


def test_stream_offset_of_a_dropped_dataset_is_refused() -> None:
    """Another dataset may have its name now, whose commits have the same numbers."""
    schema = Schema("air", [Feature("t")])
    reader = StreamReader.__new__(StreamReader)
    reader._options = SourceOptions.from_spark(NEEDED)
    reader._state = SimpleNamespace(schema=schema.of_generation(1))  # type: ignore[assignment]
    offset = reader._offset(Cursor({2: 7}))
    assert reader._cursor(offset) == Cursor({2: 7})
    with raises(InputError):
        reader._cursor({"2": 7})


def test_source_writer_with_overwrite_is_refused() -> None:
    with raises(InputError):
        GalileoSource(NEEDED).writer(StructType(), overwrite=True)

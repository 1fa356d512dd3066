"""The options of the data source."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.sql.types import StructType

from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.model.schema import Feature, Schema
from galileo.spark.source.options import (
    SourceOptions,
    cursor_of,
    cursor_of_text,
    generation_of,
    offset_of,
)
from galileo.spark.source.source import GalileoSource, StreamReader

NEEDED = {"address": "127.0.0.1:7701, 127.0.0.1:7702", "dataset": "air"}


def test_options_are_read_in_any_case() -> None:
    found = SourceOptions.from_spark({**NEEDED, "COLUMNS": "a, b", "Commits_Per_Batch": "5"})
    assert found.addresses == ("127.0.0.1:7701", "127.0.0.1:7702")
    assert (found.columns, found.commits_per_batch) == (("a", "b"), 5)
    assert found == SourceOptions.from_spark({**NEEDED, "columns": "a,b", "commits_per_batch": "5"})
    assert SourceOptions.from_spark({**NEEDED, "checkpointLocation": "/x", "path": "y"}).query == ""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"address": ""}, "expected the option 'address', got none"),
        ({"address": " , "}, "to name nodes as host:port"),
        ({"dataset": ""}, "expected the option 'dataset'"),
        ({"on_gab": "skip"}, "got 'on_gab'; did you mean 'on_gap'"),
        ({"on_gap": "ignore"}, "to be one of fail, skip; got 'ignore'"),
        ({"rows_per_task": "0"}, "to be at least 1, got 0"),
        ({"batch_rows": "1e3"}, "to be a number, got '1e3'"),
    ],
)
def test_wrong_options_are_named(changed: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SourceOptions.from_spark({**NEEDED, **changed})


def test_offsets_are_cursors() -> None:
    cursor = Cursor({11: 4, 2: 7})
    assert list(offset_of(cursor)) == ["2", "11"]
    later = offset_of(cursor, generation=3)
    assert (generation_of(offset_of(cursor)), generation_of(later)) == (0, 3)
    assert cursor_of(later) == cursor
    assert cursor_of(offset_of(cursor)) == cursor_of_text('{"11": 4, "2": 7}') == cursor


@pytest.mark.parametrize("text", ["now", "[1]", '{"a": 1}', '{"1": "x"}', '{"1": -1}'])
def test_a_text_that_is_no_cursor(text: str) -> None:
    with pytest.raises(InputError, match="expected the option 'starting' to be"):
        cursor_of_text(text)


def test_a_checkpoint_of_a_dropped_dataset_is_refused() -> None:
    """Another dataset may have its name now, whose commits have the same numbers."""
    schema = Schema("air", [Feature("t")])
    reader = StreamReader.__new__(StreamReader)
    reader._options = SourceOptions.from_spark(NEEDED)
    reader._state = SimpleNamespace(schema=schema.of_generation(1))  # type: ignore[assignment]
    offset = reader._offset(Cursor({2: 7}))
    assert reader._cursor(offset) == Cursor({2: 7})
    with pytest.raises(InputError, match="is of a dropped dataset"):
        reader._cursor({"2": 7})


def test_nothing_is_overwritten() -> None:
    with pytest.raises(InputError, match="expected mode 'append'"):
        GalileoSource(NEEDED).writer(StructType(), overwrite=True)

"""The options of the data source."""

from __future__ import annotations

import pytest

from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.spark.source.options import SourceOptions, cursor_of, cursor_of_text, offset_of

NEEDED = {"address": "127.0.0.1:7701, 127.0.0.1:7702", "dataset": "air"}


def test_options_are_read_in_any_case() -> None:
    found = SourceOptions.of({**NEEDED, "COLUMNS": "a, b", "Commits_Per_Batch": "5"})
    assert found.addresses == ("127.0.0.1:7701", "127.0.0.1:7702")
    assert (found.columns, found.commits_per_batch) == (("a", "b"), 5)
    assert found == SourceOptions.of({**NEEDED, "columns": "a,b", "commits_per_batch": "5"})
    assert SourceOptions.of({**NEEDED, "checkpointLocation": "/x", "path": "y"}).query == ""


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
        SourceOptions.of({**NEEDED, **changed})


def test_offsets_are_cursors() -> None:
    cursor = Cursor({11: 4, 2: 7})
    assert list(offset_of(cursor)) == ["2", "11"]
    assert cursor_of(offset_of(cursor)) == cursor_of_text('{"11": 4, "2": 7}') == cursor


@pytest.mark.parametrize("text", ["now", "[1]", '{"a": 1}', '{"1": "x"}', '{"1": -1}'])
def test_a_text_that_is_no_cursor(text: str) -> None:
    with pytest.raises(InputError, match="expected the option 'starting' to be"):
        cursor_of_text(text)

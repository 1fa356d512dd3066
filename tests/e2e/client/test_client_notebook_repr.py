from __future__ import annotations

import datetime as dt
import re
from html.parser import HTMLParser

import pyarrow as pa
import pytest

import galileo
from galileo.client import notebook_repr
from galileo.client.analytics_results import (
    Children,
    Estimate,
    FeatureSummary,
    NearestResult,
    Quantile,
    Vertex,
)
from galileo.client.results import ClusterStatus, NodeStatus
from galileo.cursor import EMPTY_CURSOR

EVIL = "<script>alert('x')</script>&\""
VOID = {"br"}


class Checked(HTMLParser):
    """Every element that is opened is closed, in order; keeps names of elements and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def evil_labels(rows: int) -> galileo.Labels:
    schema = galileo.Schema("nam", [galileo.Feature("name", type="text")], geohash_precision=2)
    columns = {
        "cell": [1] * rows,
        "bucket": [dt.datetime(2014, 3, 1, tzinfo=dt.UTC)] * rows,
        "name": [EVIL] * rows,
        "row": range(rows),
        "rows": [1] * rows,
        "partition": [0] * rows,
        "sequence": [1] * rows,
    }
    return galileo.Labels(schema, pa.table(columns, schema=schema.label_schema), missing=[4])


def test_labels_html_shows_first_rows_escaped() -> None:
    page = evil_labels(12)._repr_html_()
    found = Checked(page)
    assert "script" not in found.names
    assert EVIL in found.text
    assert "nam: 12 labels" in found.text
    assert "partitions missing: 4" in found.text
    assert "2014-03-01T00:00:00Z" in found.text
    assert "… and 2 more" in found.text
    assert page.count("<tr>") == 1 + notebook_repr.ROWS_SHOWN


def test_html_representations_have_no_colours() -> None:
    styles = set(re.findall('style="([^"]*)"', evil_labels(3)._repr_html_()))
    assert styles == {"border-collapse:collapse", notebook_repr._CELL}
    assert "color:" not in notebook_repr._CELL
    assert "background" not in notebook_repr._CELL


def test_labels_html_of_many_labels_is_small() -> None:
    assert len(evil_labels(5000)._repr_html_()) < 10_000


def test_labels_html_of_no_labels_has_no_table() -> None:
    assert Checked(evil_labels(0)._repr_html_()).names == {"div", "b", "br"}


def test_update_html_shows_its_labels() -> None:
    update = galileo.Update(evil_labels(2), "token", age_s=1.25, more=True)
    found = Checked(update._repr_html_())
    assert "as of 1.2 s ago" in found.text
    assert "more waits: yes" in found.text
    assert "nam: 2 labels" in found.text
    assert "token" not in found.text


def test_status_html_shows_every_node() -> None:
    nodes = (
        NodeStatus("n1", "g", "h:1", "up", datasets=({"rows": 5}, {"rows": 6})),
        NodeStatus(EVIL, "g", "h:2", "unreachable"),
    )
    found = Checked(ClusterStatus(nodes)._repr_html_())
    assert "1 of 2 nodes are up" in found.text
    assert "11" in found.text
    assert EVIL in found.text


def test_analytics_html_shows_the_results() -> None:
    summary = FeatureSummary(
        "t", "true", 1, 2, 0, 3.0, 4.0, 7.0, (3.0, 4.0), (2,), frontier=EMPTY_CURSOR, missing=()
    )
    near = NearestResult(pa.table({"name": [EVIL], "distance_m": [3.5]}), "true", EMPTY_CURSOR, ())
    schema = evil_labels(0).schema
    table = pa.table({"value": [EVIL], "paths": [1], "observations": [2]})
    children = Children(schema, ("name",), (), table, False, ())
    quantiles = (Quantile(0.5, 1.0, 2.0, 1.5),)
    estimate = Estimate("true", 1, 2, "t", quantiles)
    pages = [Checked(one._repr_html_()) for one in (summary, near, children, estimate)]
    assert [("script" in page.names) for page in pages] == [False] * 4
    assert "mean 3.5" in pages[0].text
    assert "3.5" in pages[1].text
    assert "1 of level name" in pages[2].text
    assert "1 to 2 paths" in pages[3].text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (True, "yes"), (1234, "1,234"), (0.5, "0.5"), ((1, 2), "1, 2"), ("a" * 99, "…")],
)
def test_html_cell_shows_values_plainly(value: object, shown: str) -> None:
    assert shown in Checked(notebook_repr.table([{"x": value}])).text


def vertices() -> list[Vertex]:
    def vertex(*path: str) -> Vertex:
        return Vertex(path, f"l{len(path)}", 1, 2, "/".join(path))

    return [vertex("a"), vertex("a", "b"), vertex("a", "c"), vertex("a", "c", "<x>"), vertex("d")]


def test_tree_repr_draws_the_tree() -> None:
    result = "  1 paths, 2 observations"
    assert str(galileo.TreeView(vertices())) == "\n".join(
        [
            f"├── l1 a{result}",
            f"│   ├── l2 b{result}",
            f"│   └── l2 c{result}",
            f"│       └── l3 <x>{result}",
            f"└── l1 d{result}",
        ]
    )


def test_tree_html_unfolds() -> None:
    page = galileo.TreeView(vertices())._repr_html_()
    found = Checked(page)
    assert found.names == {"details", "summary", "div", "b"}
    assert page.count("<details") == 2
    assert "<x>" in found.text


def test_tree_of_a_prefix_begins_at_its_root() -> None:
    below = galileo.TreeView(vertices()[1:4])
    assert str(below).startswith("├── l2 b")
    Checked(below._repr_html_())


def test_tree_repr_fetches_what_it_shows_only() -> None:
    asked = []

    def walk():  # type: ignore[no-untyped-def]
        try:
            for vertex in vertices():
                asked.append(vertex)
                yield vertex
        finally:
            asked.append(None)

    view = galileo.TreeView(walk(), limit=2)
    assert (len(view), view.more, asked[-1], len(asked)) == (2, True, None, 4)
    assert str(view).endswith("\n…")
    assert str(galileo.TreeView([])) == galileo.TreeView([])._repr_html_() == ""


def test_tree_repr_of_a_dataset(client: galileo.Client, explored: object) -> None:
    name = explored.name  # type: ignore[attr-defined]
    view = galileo.TreeView(client.tree(name, depth=2), limit=30)
    text = str(view)
    assert text.count("geohash ") >= 1
    assert text.count("datetime 2014-03-0") >= 4
    Checked(view._repr_html_())

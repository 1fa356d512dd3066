"""The metadata graph as a tree on a page: text in a terminal, folded lists in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import islice

from galileo.client.analytics_results import Vertex

VERTICES_SHOWN = 1_000


class TreeView:
    """Vertices as `client.tree` gives them, each before its own children.

    `str` draws them with lines, a notebook shows lists that unfold.

    Args:
        vertices: at most `limit` of them are asked for.
        limit: how many are shown.

    Example:
        >>> print(galileo.TreeView(client.tree("weather", order=["station"])))
        ├── station EDDB  1 paths, 1 observations
        ├── station KCYS  1 paths, 1 observations
        └── station KDEN  2 paths, 2 observations
    """

    def __init__(self, vertices: Iterable[Vertex], *, limit: int = VERTICES_SHOWN) -> None:
        walked = iter(vertices)
        self.vertices = tuple(islice(walked, limit))
        self.more = next(walked, None) is not None
        close = getattr(walked, "close", None)
        if close is not None:
            close()

    def __len__(self) -> int:
        return len(self.vertices)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        open_: list[bool] = []
        lines = []
        for vertex, depth, last in self._placed():
            del open_[depth:]
            stem = "".join("│   " if follows else "    " for follows in open_)
            lines.append(f"{stem}{'└── ' if last else '├── '}{_value(vertex)}  {_counts(vertex)}")
            open_.append(not last)
        return "\n".join([*lines, *(["…"] if self.more else [])])

    def _repr_html_(self) -> str:
        parts: list[str] = []
        above = -1
        placed = list(self._placed())
        for number, (vertex, depth, _) in enumerate(placed):
            parts.append("</details>" * (above - depth + 1 if depth <= above else 0))
            is_leaf = number + 1 == len(placed) or placed[number + 1][1] <= depth
            summary = f"<b>{escape(_value(vertex))}</b> {escape(_counts(vertex))}"
            if is_leaf:
                parts.append(f'<div style="margin-left:2.2em">{summary}</div>')
            else:
                parts.append(f'<details style="margin-left:1em"><summary>{summary}</summary>')
            above = depth - 1 if is_leaf else depth
        parts.append("</details>" * (above + 1))
        return "".join(parts) + ("<div>…</div>" if self.more else "")

    def _placed(self) -> Iterator[tuple[Vertex, int, bool]]:
        """Each vertex with its depth, and whether it is the last of its siblings."""
        depths = [len(vertex.path) for vertex in self.vertices]
        root = min(depths, default=0)
        followed: set[int] = set()
        last: list[bool] = []
        for depth in reversed(depths):
            followed = {known for known in followed if known <= depth}
            last.append(depth not in followed)
            followed.add(depth)
        for vertex, depth, ends in zip(self.vertices, depths, reversed(last), strict=True):
            yield vertex, depth - root, ends


def _value(vertex: Vertex) -> str:
    return f"{vertex.level} {vertex.text.rpartition('/')[2]}"


def _counts(vertex: Vertex) -> str:
    partial = ", partial" if vertex.missing else ""
    return f"{vertex.paths:,} paths, {vertex.observations:,} observations{partial}"

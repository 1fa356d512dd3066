"""Loops that go on after an error of a call pause, and those of callers have a deadline.

The test reads the source. A loop, `while` or over a range, goes on after an error if it suppresses
the error, or has a handler that does not end by `raise`, `return` or `break`. Such a loop has to
pause. In the packages of callers the pauses are those of a `Backoff`, which ends with the deadline
of the call. Loops that take the next piece of work instead of repeating the last one stand in
`NEXT_PIECE`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import galileo

ROOT = Path(galileo.__file__).parent
PACKAGES = ("client", "gateway", "node", "rpc", "server", "spark", "wire", "worker")
CALLERS = ("client/", "spark/source/", "wire/")
OF_BACKOFF = {"after", "pause_s"}
PAUSES = {"sleep", "_wait_after", "poll", *OF_BACKOFF}
NEXT_PIECE = {
    "client/blocking_portal:serve": "each item is asked for by the reader",
    "node/channel_observations:fetch": "the next read begins after what retention dropped",
    "node/cluster_analytics:_local": "the search begins with what the index has now",
    "node/table_reader:_read": "the rows are looked for anew where the cleaner has put them",
    "node/system_tables:run": "news or the end of a wait begins the next look",
    "node/scrub_runner:_run": "a request ends the wait and begins a round",
    "server/peer_messaging:_deliver": "an exchange takes all that is due, whether it fails or not",
    "worker/into:_refused": "each half of rows that are refused is checked once",
    "spark/launcher:keep": "a request for the evaluator, or the end of a wait, begins a look",
    "spark/source/reading:batches": "the next read begins after what retention dropped",
}
"""Loops without a pause, and what ends them."""


@pytest.fixture(scope="module")
def loops() -> dict[str, ast.AST]:
    """The loops that go on after an error, by module and function."""
    return dict(loops_of_packages())


def loops_of_packages() -> Iterator[tuple[str, ast.AST]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = path.relative_to(ROOT).with_suffix("").as_posix()
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for loop in filter(is_retry, nodes_of(function)):
                        yield f"{module}:{function.name}", loop


def nodes_of(parent: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or loop without those of functions within, nor of loops in a loop."""
    for child in ast.iter_child_nodes(parent):
        yield child
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        if not is_function and not (is_loop(parent) and is_loop(child)):
            yield from nodes_of(child)


def is_loop(node: ast.AST) -> bool:
    if isinstance(node, ast.For):
        return isinstance(node.iter, ast.Call) and "range" in calls(node.iter)
    return isinstance(node, ast.While)


def is_retry(node: ast.AST) -> bool:
    return is_loop(node) and any(map(goes_on, nodes_of(node)))


def goes_on(node: ast.AST) -> bool:
    if isinstance(node, ast.With):
        return any("suppress" in calls(item) for item in node.items)
    is_handler = isinstance(node, ast.ExceptHandler)
    return is_handler and not isinstance(node.body[-1], ast.Raise | ast.Return | ast.Break)


def calls(loop: ast.AST) -> set[str]:
    """The names of what a loop calls."""
    functions = [node.func for node in ast.walk(loop) if isinstance(node, ast.Call)]
    return {
        one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in functions
    }


def test_loops_that_go_on_after_an_error_pause(loops: dict[str, ast.AST]) -> None:
    without_pause = [
        place
        for place, loop in loops.items()
        if not calls(loop) & (OF_BACKOFF if place.startswith(CALLERS) else PAUSES)
    ]
    assert [place for place in without_pause if place not in NEXT_PIECE] == []


def test_loops_without_a_pause_are_named(loops: dict[str, ast.AST]) -> None:
    assert {"client/routing:ingest", "spark/source/writing:results", "wire/caller:call"} < {*loops}
    assert set(NEXT_PIECE) < set(loops)

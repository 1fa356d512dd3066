"""The case files of tests/cases, through each door of a cluster."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from case_files import Door, Question, Refused, Row, parse, run
from doors import VERBS, ClientDoor, CommandDoor, HttpDoor
from parameters import keep_quick

import galileo
from galileo.local_services import LocalGateway

FILES = sorted((Path(__file__).parents[1] / "cases").glob("*.case"))
LONGEST = {
    ("channels", "command"),
    ("channels", "http"),
    ("conditions", "blocking"),
    ("conditions", "command"),
    ("exploration", "command"),
    ("tables", "command"),
}


@pytest.fixture(scope="module")
def doors(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    gateway: LocalGateway,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Door]]:
    def call(method: str, *values: Any, **options: Any) -> Any:
        return getattr(client, method)(*values, **options)

    def call_asynchronously(method: str, *values: Any, **options: Any) -> Any:
        async def answer() -> Any:
            return await getattr(asynchronous, method)(*values, **options)

        return runner.run(answer())

    blocking = ClientDoor("Client", call)
    asynchronous = galileo.AsyncClient(*cluster.addresses)
    with asyncio.Runner() as runner:
        yield {
            "async": ClientDoor("AsyncClient", call_asynchronously),
            "blocking": blocking,
            "command": CommandDoor(cluster.addresses[0], tmp_path_factory.mktemp("cases")),
            "http": HttpDoor(gateway.url, blocking),
        }
        runner.run(asynchronous.close())


@pytest.mark.parametrize(
    ("path", "door"),
    keep_quick(
        itertools.product(FILES, ["async", "blocking", "command", "http"]),
        *(
            (path, door)
            for path in FILES
            # The blocking client calls the other one.
            for door in ("blocking", "command", "http")
            if (path.stem, door) not in LONGEST
        ),
    ),
    ids=lambda value: getattr(value, "stem", value),
)
def test_cases_have_their_answers(
    doors: dict[str, Door], fresh_name: Callable[[str], str], path: Path, door: str
) -> None:
    differences = run(path, doors[door], fresh_name)
    assert not differences, "\n".join(differences)


def test_cases_ask_each_verb() -> None:
    assert {step.question.verb for path in FILES for step in parse(path)} == {*VERBS}


# --- the runner ----------------------------------------------------------------------------------


class Parrot:
    """A door with one answer for each verb."""

    name = "the parrot"

    def __init__(self, **answers: Sequence[Row] | Refused) -> None:
        self._answers = answers

    def ask(self, question: Question) -> Sequence[Row]:
        answer = self._answers[question.verb]
        if isinstance(answer, Refused):
            raise answer
        return answer


CASES = """\
# A comment.

dataset air t

select air columns=id,t where t > 1
id      t
a       1.5
'b c' null

match air id
all => a
t > 1 AND
  t < 2 => a

refuse count air
where heat > 1 => unknown_property property=heat no property
"""
ROWS: list[Row] = [{"id": "b c", "t": None}, {"id": "a", "t": 1.5}]
UNKNOWN = Refused("unknown_property", "there is no property 'heat'", {"property": "heat"})


@pytest.mark.parametrize(
    ("answers", "lines"),
    [
        ({"select": ROWS, "count": UNKNOWN}, {11, 12}),
        ({"select": ROWS[:1], "count": UNKNOWN}, {5, 11, 12}),
        ({"select": [{"t": 1.5, "id": "a"}, ROWS[0]], "count": UNKNOWN}, {5, 11, 12}),
        ({"select": [ROWS[1]], "count": [{"count": 1}]}, {5, 16}),
        ({"select": [ROWS[1]], "count": [{"count": 2}]}, {5, 11, 12, 16}),
        ({"select": UNKNOWN, "count": UNKNOWN}, {5, 11, 12}),
        ({"select": ROWS, "count": Refused("invalid_input", "no property", {})}, {11, 12, 16}),
    ],
)
def test_run_names_line_and_door_of_each_difference(
    tmp_path: Path, answers: dict[str, Any], lines: set[int]
) -> None:
    path = tmp_path / "air.case"
    path.write_text(CASES)
    differences = run(path, Parrot(dataset=[], **answers), lambda name: f"{name}-1")
    heads = {difference.partition(": ")[0] for difference in differences}
    assert heads == {f"air.case:{line} through the parrot" for line in lines}


def test_run_shows_expected_and_actual_rows(tmp_path: Path) -> None:
    path = tmp_path / "air.case"
    path.write_text("count air\ncount\n3\n")
    [difference] = run(path, Parrot(count=[{"count": 4}]), str)
    assert difference == "air.case:1 through the parrot: expected\n  3\n  got\n  4"


def test_parse_of_a_line_without_an_answer_names_it(tmp_path: Path) -> None:
    path = tmp_path / "air.case"
    path.write_text("# Conditions\n\nmatch air id\nt > 1\n")
    with pytest.raises(ValueError, match="line 4: expected a question => its answer, got 't > 1'"):
        list(parse(path))

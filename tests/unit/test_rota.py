from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import rota
from rota import EXPECTED_S, TURN_S, Turn, in_turn

FILES = {"a": 1, "b": 400, "c": 7, **{f"d{number}": 4 for number in range(130)}}
ITEMS = [(name, number) for name, count in FILES.items() for number in range(count)]


def ordered(turn: int) -> list[tuple[str, int]]:
    return in_turn(ITEMS, turn, file_of=lambda item: item[0])


def test_turn_has_every_test_once_in_their_order() -> None:
    for turn in (0, 1, 17, 1_900_000_000):
        items = ordered(turn)
        begin = items.index(ITEMS[0])
        assert [*items[begin:], *items[:begin]] == ITEMS
    assert in_turn([], 5, file_of=str) == []


def test_turns_begin_at_every_file_and_all_over_a_long_one() -> None:
    begins = [ordered(turn)[0] for turn in range(1_000, 2_000)]
    assert {name for name, _ in begins} == set(FILES)
    assert len(set(begins[:60])) == 60
    assert {item for turn in range(1_000, 1_400) for item in ordered(turn)[:30]} >= set(ITEMS[401:])


def test_turn_starts_only_what_can_end_in_time() -> None:
    now = 5.0
    turn = Turn(lambda: now)
    assert turn.has_time(EXPECTED_S)
    assert not turn.has_time(TURN_S + 1)
    now += TURN_S - EXPECTED_S
    assert turn.has_time(EXPECTED_S)
    now += 1
    assert not turn.has_time(EXPECTED_S)


CONFTEST = """
import rota

def pytest_runtest_protocol(item, nextitem):
    if "without_time" in item.name:
        rota.pass_over(item, nextitem)
        return True
"""
FIRST = """
import pytest

@pytest.fixture(scope="module")
def shared():
    yield
    print("ended")

def test_first(shared): pass
def test_without_time(shared): pass
"""


def test_passing_over_a_test_ends_the_fixtures_of_its_file(tmp_path: Path) -> None:
    files = {"conftest.py": CONFTEST, "test_a.py": FIRST, "test_b.py": "def test_other(): pass\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    kit = {"PYTHONPATH": str(Path(rota.__file__).parent)}
    ran = subprocess.run(command, capture_output=True, text=True, env=kit, cwd=tmp_path)
    assert (ran.returncode, "2 passed" in ran.stdout) == (0, True), ran.stdout
    assert "ended" in ran.stdout

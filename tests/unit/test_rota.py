from __future__ import annotations

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

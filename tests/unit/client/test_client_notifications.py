"""Notifications in parts, and as JSON."""

from __future__ import annotations

import json
import random

import pytest
from made_up_notifications import notifications

from galileo.client.notification_json import document, features


def made_up(state: random.Random) -> list[tuple[list[int], list[str]]]:
    return [
        (
            [state.randrange(30) for _ in range(state.randint(1, 4))],
            [f"s{state.randrange(50)}" for _ in range(state.randint(1, 4))],
        )
        for _ in range(state.randint(1, 5))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_slice_has_notifications_of_a_range(seed: int) -> None:
    state = random.Random(seed)
    whole = notifications(made_up(state))
    expected = whole.to_arrow()
    for _ in range(10):
        start = state.randrange(len(whole))
        stop = state.randint(start + 1, len(whole) + 2)
        part = whole.slice(start, stop)
        assert part.to_arrow().equals(expected.slice(start, stop - start))
        assert part.subscriptions().equals(expected["subscription"].combine_chunks()[start:stop])
        assert part.token == whole.token


def test_slice_has_needed_observations_alone() -> None:
    whole = notifications([([0, 1, 2], ["anna", "bert"])])
    part = whole.slice(3, 4)
    assert part.observations["station"].to_pylist() == ["S1"]
    assert part.groups().to_pylist() == [{"rows": [0], "subscriptions": ["bert"]}]


def test_document_has_observations_matches_and_further_members() -> None:
    whole = json.loads(document(notifications([([0, 1], ["anna"])]), channel="ß"))
    assert [one["properties"]["station"] for one in whole["features"]] == ["S0", "S1"]
    assert whole["matches"] == [{"rows": [0, 1], "subscriptions": ["anna"]}]
    assert (whole["notifications"], whole["execution"], whole["channel"]) == (2, 7, "ß")


def test_features_are_one_for_each_notification() -> None:
    found = [json.loads(str(text)) for text in features(notifications([([1], ['an"na', "bert"])]))]
    assert [one["subscription"] for one in found] == ['an"na', "bert"]
    assert found[0]["geometry"] == {"type": "Point", "coordinates": [8, 48]}
    assert found[0]["properties"]["station"] == "S1"

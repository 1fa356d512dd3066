"""A node offers what the leader lacks, and takes nothing from what the leader has."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import Feature, Schema
from galileo.model.system_rows import Draft, Listing, OfferRow, Rows
from galileo.node.definitions import DEFINITION_ROWS, Definition, encode, merged

NARROW = Schema("nam", [Feature("depth")])
DAY = VersionedRetention(2, Retention("1d"))
STATES = [
    Definition(0, NARROW, "id", "ann"),
    Definition(0, NARROW.with_features([Feature("gust")]), "id", "ann", DAY),
    Definition(1, creator="ann"),
    Definition(1, NARROW.of_generation(1), "other", "ann"),
]
"""What is agreed on about a name, one after the other."""


def as_known(definition: Definition) -> Definition:
    """What a node keeps of a definition on its disk."""
    return replace(definition, creation="", creator="")


@pytest.mark.parametrize("state", STATES, ids=range(len(STATES)))
def test_node_that_knows_what_is_agreed_on_offers_nothing(state: Definition) -> None:
    assert not list(Listing(DEFINITION_ROWS, {"nam": state}).missing({"nam": as_known(state)}))


@pytest.mark.parametrize(("first", "last"), [*itertools.combinations(range(len(STATES)), 2)])
def test_offer_brings_the_later_state_and_keeps_the_creator(first: int, last: int) -> None:
    earlier, later = STATES[first], STATES[last]
    for known, other in ((earlier, as_known(later)), (later, as_known(earlier))):
        result = merged(known, other)
        assert as_known(result) == as_known(later)
        assert result.creator == "ann"
    definitions = Rows(DEFINITION_ROWS)
    definitions.put("nam", earlier, 1)
    draft = Draft(definitions)
    OfferRow("nam", encode(as_known(later))).apply(draft)
    assert draft.total("ann") == 1

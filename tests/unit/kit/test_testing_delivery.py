from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from fault_injection.delivery import Deliveries
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.client import Labels, Update
from galileo.cursor import Cursor
from galileo.model.schema import Feature, Schema

SCHEMA = Schema("numbered", [Feature("t")], geohash_precision=4)
Place = tuple[int, int, int]

LOG: list[Place] = [(0, 1, 0), (0, 1, 5), (0, 3, 0), (0, 4, 0), (2, 1, 0), (2, 2, 0), (2, 2, 7)]
"""All labels that are to be handed out, by partition, sequence and row."""


def labels(places: list[Place], cursor: dict[int, int], missing: tuple[int, ...] = ()) -> Labels:
    columns = {
        name: pa.array([place[at] for place in places], pa.int64())
        for at, name in enumerate(("partition", "sequence", "row"))
    }
    arrays = [
        columns.get(one.name, pa.nulls(len(places), pa.int64())).cast(one.type, safe=False)
        if one.name in columns
        else pa.nulls(len(places), one.type)
        for one in SCHEMA.label_schema
    ]
    table = pa.table(arrays, schema=SCHEMA.label_schema)
    return Labels(SCHEMA, table, frontier=Cursor(cursor), missing=missing)


def update(
    places: list[Place],
    cursor: dict[int, int],
    *,
    frontier: dict[int, int] | None = None,
    more: bool = False,
    missing: tuple[int, ...] = (),
) -> Update:
    made = labels(places, cursor, missing)
    return Update(made, "token", frontier=Cursor(frontier or cursor), more=more)


def audited(*updates: Update) -> dict[str, int]:
    deliveries = Deliveries()
    deliveries.begin(labels([], {}))
    for one in updates:
        deliveries.take(one)
    audit = deliveries.audit(labels(LOG, {}))
    assert audit.labels == len(deliveries) == sum(len(one.labels) for one in updates)
    return audit.wrong


FIRST, SECOND, THIRD = LOG[:2], LOG[2:5], LOG[5:]


def test_audit_honest_reader_is_clean() -> None:
    assert (
        audited(
            update(FIRST, {0: 2}),
            update([], {0: 2}),
            update(SECOND, {0: 5, 2: 1}, frontier={0: 5, 2: 2}, more=True),
            update(THIRD, {0: 5, 2: 9}),
        )
        == {}
    )


def test_audit_lost_label_is_missed_and_lied() -> None:
    assert audited(update(FIRST, {0: 5}), update(LOG[4:], {0: 5, 2: 2})) == {
        "missed": 2,
        "lied": 2,  # Both answers claim partition 0.
    }
    assert audited(update(FIRST, {0: 2})) == {"missed": 5}


def test_audit_frontier_ahead_of_labels_is_lie() -> None:
    honest = update(SECOND, {0: 4, 2: 1}), update(THIRD, {0: 4, 2: 2})
    assert audited(update(FIRST, {0: 2}, frontier={0: 2, 2: 1}), *honest) == {"lied": 1}
    assert audited(update(FIRST, {0: 2}, frontier={0: 3, 2: 1}), *honest) == {"lied": 2}
    cut = update(FIRST, {0: 2}, frontier={0: 9, 2: 9}, more=True)
    assert audited(cut, *honest) == {}
    partial = update(FIRST, {0: 2}, frontier={0: 2, 2: 9}, missing=(2,))
    assert audited(partial, *honest) == {}


def test_audit_token_ahead_of_labels_is_lie() -> None:
    wrong = audited(
        update(FIRST, {0: 3}, more=True), update(SECOND, {0: 4, 2: 1}), update(THIRD, {0: 4, 2: 2})
    )
    assert wrong == {"lied": 1, "disordered": 1}


def test_audit_repeated_labels_are_counted() -> None:
    whole = update(LOG, {0: 4, 2: 2})
    assert audited(whole, update(FIRST, {0: 4, 2: 2})) == {"repeated": 2, "disordered": 2}


def test_audit_uncommitted_label_is_foreign() -> None:
    assert audited(update([*LOG, (1, 1, 0)], {0: 4, 1: 1, 2: 2})) == {"foreign": 1}


def test_audit_receding_token_is_counted() -> None:
    assert audited(update(LOG, {0: 4, 2: 2}), update([], {0: 4, 2: 1})) == {"receded": 1}


def test_audit_label_past_token_is_disordered() -> None:
    assert audited(update(LOG, {0: 4, 2: 1})) == {"disordered": 2}


def test_audit_initial_result_counts() -> None:
    deliveries = Deliveries()
    deliveries.begin(labels(FIRST, {0: 2}))
    deliveries.take_stored(labels(LOG[2:], {}), Cursor({0: 4, 2: 2}))
    audit = deliveries.audit(labels(LOG, {}))
    assert (audit.wrong, audit.labels, audit.updates) == ({}, len(LOG), 2)


def test_deliveries_too_many_commits_raises_value_error() -> None:
    deliveries = Deliveries()
    with pytest.raises(ValueError, match="67 million"):
        deliveries.begin(labels([(0, 1 << 26, 0)], {}))


@examples(50)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, len(LOG) - 1), max_size=4),
            st.dictionaries(st.sampled_from([0, 2]), st.integers(0, 5)),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_audit_random_deliveries_equal_slow_judge(
    drawn: list[tuple[list[int], dict[int, int], bool]],
) -> None:
    updates = [update([LOG[i] for i in some], cursor, more=more) for some, cursor, more in drawn]
    deliveries = Deliveries()
    for one in updates:
        deliveries.take(one)
    audit = deliveries.audit(labels(LOG, {}))
    handed = [LOG[i] for some, _, _ in drawn for i in some]
    assert audit.missed == len(set(LOG) - set(handed))
    assert audit.repeated == len(handed) - len(set(handed))
    lies = 0
    for number, (_, cursor, _) in enumerate(drawn):
        so_far = {LOG[i] for some, _, _ in drawn[: number + 1] for i in some}
        for partition, sequence in cursor.items():
            claimed = {one for one in LOG if one[0] == partition and one[1] <= sequence}
            lies += bool(claimed - so_far)
    assert audit.lied == lies
    assert np.all([count >= 0 for count in audit.wrong.values()])

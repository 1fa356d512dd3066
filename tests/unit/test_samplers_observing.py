"""How labels are cut for samplers that look at observations, against a loop over commits."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from galileo.labels import LabelSet
from galileo.samplers import apply, needs_observations, observed_parts
from galileo.testing.conformance import identities, sample_labels, sample_observations

LABELS = sample_labels()


def commits_of(labels: LabelSet) -> dict[tuple[int, int], int]:
    """The observations of each commit."""
    found: dict[tuple[int, int], int] = {}
    counts = labels.table.column("rows").to_pylist()
    for (partition, sequence, _), rows in zip(identities(labels), counts, strict=True):
        found[partition, sequence] = found.get((partition, sequence), 0) + rows
    return found


@given(st.lists(st.booleans(), min_size=len(LABELS), max_size=len(LABELS)), st.integers(1, 5_000))
def test_observed_parts_random_labels_are_whole_commits(chosen: list[bool], most: int) -> None:
    labels = LABELS.where(np.array(chosen))
    expected: list[list[tuple[int, int]]] = []
    held = 0
    for commit, rows in sorted(commits_of(labels).items()):
        if not expected or held + rows > most:
            expected.append([])
            held = 0
        expected[-1].append(commit)
        held += rows
    parts = list(observed_parts(labels, most))
    assert [sorted(commits_of(part)) for part in parts] == expected
    together = [place for part in parts for place in identities(part)]
    assert together == sorted(identities(labels))


def test_observed_parts_no_labels_is_empty() -> None:
    assert list(observed_parts(LabelSet.empty(LABELS.schema))) == []


class Crowded:
    needs_observations = True

    def sample(self, labels, *, observations, seed):
        counts = np.bincount(observations.column("label").to_numpy(), minlength=len(labels))
        return counts > 4


class Plain:
    def sample(self, labels, *, seed):
        return labels.rows % 2 == 0


def test_apply_observing_sampler_gets_observations() -> None:
    assert needs_observations(Crowded())
    assert not needs_observations(Plain())
    kept = apply(Crowded(), LABELS, seed=1, observations=sample_observations(LABELS))
    crowded = LABELS.where(LABELS.table.column("rows").to_numpy() > 4)
    assert set(identities(kept)) == set(identities(crowded))
    plain = apply(Plain(), LABELS, seed=1)
    assert set(identities(plain)) == set(identities(LABELS.where(LABELS.rows % 2 == 0)))

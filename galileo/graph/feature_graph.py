"""The feature graph: a low-resolution synopsis of the whole cluster on every node.

It selects the partitions that a query must be sent to. False positives are possible, false
negatives are not: a partition is pruned only up to the commit sequence that its synopsis covers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.graph.quantiles import Bounded, QuantileBounds, check_quantiles, quantiles
from galileo.graph.synopsis import SynopsisDelta, SynopsisState, SynopsisVersion
from galileo.graph.synopsis_entries import Counts, Entries, log_bucket_ends, zones_from_bounds
from galileo.model.schema import Schema
from galileo.query.columns import Mask
from galileo.query.query import Query, parse
from galileo.query.zone_maps import Zones


@dataclass(frozen=True, slots=True)
class Candidates:
    """The partitions that a query must be sent to.

    Attributes:
        maybe: may hold matching paths.
        pruned: pruned partitions: no matching path up to and including this commit sequence.
        since: of the pruned ones; commits up to here, which retention dropped, may have matched.
    """

    maybe: frozenset[int]
    pruned: dict[int, int]
    since: dict[int, int]


@dataclass(frozen=True, slots=True)
class PathBounds:
    """Bounds of the number of paths that match a query, from the synopses.

    Attributes:
        low: lower bound.
        high: upper bound.
        covered: for each known partition the commit sequence up to which the bounds hold; commits
            that retention dropped since count, too.
    """

    low: int
    high: int
    covered: Cursor


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """The synopses of all partitions concatenated: zones, partition and number of paths of each."""

    states: dict[int, SynopsisState]
    partitions: npt.NDArray[np.int64]
    zones: Zones
    paths: Counts

    @classmethod
    def of(cls, schema: Schema, states: dict[int, SynopsisState]) -> _Known:
        parts = [Entries.empty(schema), *(state.entries for state in states.values())]
        bounds = [np.concatenate(stack) for stack in zip(*(p.bounds for p in parts), strict=True)]
        sizes = [len(part) for part in parts[1:]]
        partitions = np.repeat(np.array(list(states), dtype=np.int64), sizes)
        return cls(states, partitions, zones_from_bounds(schema, bounds), bounds[-1])


class FeatureGraph:
    """The known synopses of all partitions of one dataset.

    One thread applies deltas; any thread may query.

    Args:
        schema: of the dataset.

    Attributes:
        entries: number of entries of all synopses.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.entries = 0
        self._states: dict[int, SynopsisState] = {}
        self._known: _Known | None = None

    def with_features(self, schema: Schema) -> FeatureGraph:
        """The feature graph of a dataset to which features were added."""
        other, features = FeatureGraph(schema), schema.indexed[len(self.schema.indexed) :]
        other._states = {p: state.with_features(features) for p, state in self._states.items()}
        other.entries = self.entries
        return other

    def apply(self, delta: SynopsisDelta) -> SynopsisVersion:
        """Apply a delta of an owner if it continues from the known version.

        Returns:
            The known version of the partition now, to be acknowledged to the owner.

        Raises:
            InputError: the delta is of another dataset.
        """
        if delta.dataset != self.schema.key:
            raise InputError(
                f"expected a synopsis of dataset {self.schema.name!r}, "
                f"got one of {delta.dataset!r}",
                expected="same_dataset",
                dataset=delta.dataset,
            )
        known = self._states.get(delta.partition) or _empty_state(self.schema, delta)
        state = known.apply(delta)
        if state is not known:
            self._states = {**self._states, delta.partition: state}
            self.entries += len(state.entries) - len(known.entries)
            self._known = None
        return state.version

    def version(self, partition: int) -> SynopsisVersion | None:
        """The known version of a partition; None if there is none."""
        state = self._states.get(partition)
        return None if state is None else state.version

    def candidates(self, query: Query, partitions: Iterable[int]) -> Candidates:
        """Split `partitions` into candidates and pruned ones."""
        known = self._current()
        might = (
            query.may_match_zones(known.zones) if len(known.zones) else np.zeros(0, dtype=np.bool_)
        )
        hit = set(np.unique(known.partitions[might]).tolist())
        requested = frozenset(partitions)
        pruned = {
            partition: known.states[partition].version.sequence
            for partition in sorted(requested)
            if partition in known.states and partition not in hit
        }
        since = {partition: known.states[partition].since for partition in pruned}
        return Candidates(requested - pruned.keys(), pruned, since)

    def estimate(self, query: Query) -> PathBounds:
        """Bounds on the number of matching paths in all known partitions.

        An entry in which every path matches counts in the lower bound, one in which a path may
        match in the upper bound.
        """
        known = self._current()
        covered = Cursor({p: state.version.sequence for p, state in known.states.items()})
        if len(known.zones) == 0:
            return PathBounds(0, 0, covered)
        might, must = query.may_match_zones(known.zones), _must_match(query, known.zones)
        high = int(log_bucket_ends(known.paths[might]).sum())
        high += sum(known.states[p].cuts for p in np.unique(known.partitions[might]).tolist())
        return PathBounds(int(known.paths[must].sum()), high, covered)

    def quantiles(
        self, query: Query, feature: str, shares: Sequence[float]
    ) -> tuple[QuantileBounds, ...]:
        """Bounds on quantiles of a feature over the matching paths that have a value.

        Args:
            query: of this dataset.
            feature: indexed, of type float, int or bool; a bool counts as 0 and 1.
            shares: of the paths, each from 0 to 1.

        Returns:
            One for each share; empty if no path can match.

        Raises:
            InputError: the feature is not numeric, or a share is out of range.
        """
        check_quantiles(self.schema, feature, shares)
        known = self._current()
        least, most = query.number_bounds(feature)
        if len(known.zones) == 0 or least > most:
            return ()
        zones = known.zones.features[feature]
        might = query.may_match_zones(known.zones) & zones.has_value
        # Of an entry with nulls any number of paths, though not all, may lack a value.
        full = _must_match(query, known.zones) & ~zones.has_null
        low = np.where(full, known.paths, 0)[might]
        assert zones.lo is not None
        assert zones.hi is not None
        high = log_bucket_ends(known.paths[might])
        # What matches lies between the bounds of the conditions on the feature, too.
        lo, hi = (np.clip(bound[might], least, most) for bound in (zones.lo, zones.hi))
        return quantiles(Bounded(lo, hi, low, high), shares)

    def _current(self) -> _Known:
        known = self._known
        states = self._states
        if known is None or known.states is not states:
            known = self._known = _Known.of(self.schema, states)
        return known


def _must_match(query: Query, zones: Zones) -> Mask:
    """Mask of zones in which every path matches: no null where it matters, and NOT cannot match."""
    opposite = parse({"op": "not", "args": [json.loads(query.to_json())]}, query.schema)
    certain = ~opposite.may_match_zones(zones)
    for name in query.features:
        certain &= ~zones.features[name].has_null
    return certain


def _empty_state(schema: Schema, delta: SynopsisDelta) -> SynopsisState:
    """The state before the first delta; a delta with a base does not continue it."""
    return SynopsisState(SynopsisVersion(delta.state.version.epoch, 0), 0, Entries.empty(schema))

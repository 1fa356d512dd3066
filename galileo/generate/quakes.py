"""A catalogue like those of earthquakes, made up, in the order in which it is published.

Agencies first publish what a machine made of the records, within minutes, and hours or days later
what a person found: another magnitude, depth, place and time of an earthquake that is long over, or
that there was none. As in the feeds of agencies, a bulletin names an event once, with its latest
solution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError
from galileo.generate.lambert import Floats
from galileo.model.schema import Feature, Schema
from galileo.model.times import (
    MICROS,
    Duration,
    Instant,
    iso,
    micros,
    seconds,
    times_from_micros,
)

PER_DAY = 60.0
MAGNITUDE_MIN = 2.5
B_VALUE = 1.0
"""Of the law of Gutenberg and Richter: ten times fewer for each whole magnitude."""
MAGNITUDE_MAX = 9.0
REVIEWED_SHARE = 0.6
FALSE_SHARE = 0.04
"""Of events that were no earthquakes."""
FIRST_REPORT_MIN = (3.0, 20.0)
"""Minutes from an earthquake to its first report."""
REVIEW_H = 9.0
"""Median hours from the first report to the review."""
REVIEW_H_MAX = 72.0
AUTOMATIC, REVIEWED = "automatic", "reviewed"

# Standard deviations of automatic solutions. Automatic ones without a depth have ten kilometres.
_MAGNITUDE_ERROR = 0.25
_PLACE_ERROR_DEG = 0.1
_TIME_ERROR_S = 2.0
_DEPTH_KM = 10.0

# Corners of boundaries between plates, roughly: longitude and latitude in degrees.
_FAULTS = (
    ((-178, 51), (-165, 53), (-152, 58), (-140, 60)),
    ((-125, 48), (-124, 40), (-116, 33), (-106, 20)),
    ((-105, 19), (-92, 14), (-84, 9), (-80, 0)),
    ((-80, -2), (-76, -14), (-70, -22), (-73, -38)),
    ((142, 44), (143, 38), (140, 33), (145, 18)),
    ((121, 24), (126, 8), (120, -9), (104, -6)),
    ((94, 10), (97, 2), (104, -6), (120, -9)),
    ((20, 38), (28, 36), (40, 39), (52, 30)),
)


@dataclass(frozen=True, slots=True)
class Bulletin:
    """What is published at one time; each event is in it once.

    Attributes:
        published: ISO 8601.
        reports: observations, the latest of each event; their times are those of the earthquakes.
        deleted: ids of events that were no earthquakes.
    """

    published: str
    reports: pa.Table
    deleted: tuple[str, ...] = ()


class QuakesLike:
    """Catalogues of earthquakes with corrections.

    Args:
        seed: equal seeds make equal catalogues.
        per_day: events on an average day.
        magnitude_min: the least magnitude of an earthquake; its first report may have a lower one.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        per_day: float = PER_DAY,
        magnitude_min: float = MAGNITUDE_MIN,
    ) -> None:
        if not per_day > 0:
            raise InputError(
                f"expected more than 0 earthquakes a day, got {per_day}", option="per_day"
            )
        if not magnitude_min <= MAGNITUDE_MAX:
            raise InputError(
                f"expected a magnitude_min of at most {MAGNITUDE_MAX}, got {magnitude_min}",
                option="magnitude_min",
            )
        self._seed = seed
        self._per_day = per_day
        self._magnitude_min = magnitude_min

    def schema(
        self, name: str = "quakes", *, geohash_precision: int = 3, time_bucket: Duration = "1d"
    ) -> Schema:
        """Of a keyed dataset: the event is the key.

        A correction of the place or time can lead into another block, and so to another key. In
        large blocks, that is rare.
        """
        features = [
            Feature("magnitude"),
            Feature("depth", unit="km"),
            Feature("status", type="text"),
            Feature("event", type="text"),
        ]
        return Schema(
            name,
            features,
            geohash_precision=geohash_precision,
            time_bucket=time_bucket,
            key=["event"],
        )

    def bulletins(
        self, start: Instant, *, days: float, every: Duration = "6h"
    ) -> Iterator[Bulletin]:
        """Everything that is published about the events of `days` days, until the last review.

        First reports have the status "automatic"; later ones, "reviewed". If an event is published
        twice between two bulletins, the second one counts. Bulletins that would be empty are left
        out.
        """
        start_us, every_us = micros(start), round(seconds(every) * MICROS)
        news = self._news(start_us, days)
        issue = -((start_us - news.published_us) // every_us)
        latest = _latest(issue, news)
        for number in np.unique(issue):
            rows = latest[issue[latest] == number]
            is_deletion = news.is_deletion[rows]
            yield Bulletin(
                iso(int(start_us + number * every_us)),
                news.reports.take(rows[~is_deletion]),
                tuple(news.reports["event"].take(rows[is_deletion]).to_pylist()),
            )

    def _news(self, start_us: int, days: float) -> _News:
        """All first reports, and after them all reviews and deletions."""
        generator = np.random.default_rng([self._seed, abs(start_us)])
        count = int(generator.poisson(self._per_day * days))
        true = self._solutions(generator, count, until_s=days * 86_400)
        automatic = _automatic(generator, true)
        draw = generator.random(count)
        later = np.flatnonzero(draw < FALSE_SHARE + REVIEWED_SHARE)
        first_s = true.seconds + 60 * generator.uniform(*FIRST_REPORT_MIN, count)
        hours = np.minimum(REVIEW_H * np.exp(generator.normal(0, 0.8, count)), REVIEW_H_MAX)
        published_s = np.concatenate([first_s, first_s[later] + 3600 * hours[later]])
        event = np.concatenate([np.arange(count), later])
        is_first = np.arange(len(event)) < count
        return _News(
            start_us + (published_s * MICROS).astype(np.int64),
            event,
            ~is_first & (draw[event] < FALSE_SHARE),
            self._table(_after(automatic, true, later), event, is_first, start_us=start_us),
        )

    def _solutions(
        self, generator: np.random.Generator, count: int, *, until_s: float
    ) -> _Solutions:
        """The true solutions, ordered by time."""
        times = np.sort(generator.uniform(0, until_s, count))
        latitude, longitude = _places(generator, count)
        scale = 1 / (B_VALUE * np.log(10))
        magnitude = np.minimum(
            self._magnitude_min + generator.exponential(scale, count), MAGNITUDE_MAX
        )
        depth = np.clip(np.exp(generator.normal(np.log(18), 0.9, count)), 1.0, 680.0)
        return _Solutions(latitude, longitude, times, magnitude, depth)

    def _table(
        self,
        solutions: _Solutions,
        event: npt.NDArray[np.intp],
        is_first: npt.NDArray[np.bool_],
        *,
        start_us: int,
    ) -> pa.Table:
        numbers = pc.utf8_lpad(pa.array(event).cast(pa.string()), 5, "0")
        return pa.table(
            [
                pa.array(np.round(solutions.latitude, 2)),
                pa.array(np.round((solutions.longitude + 180) % 360 - 180, 2)),
                times_from_micros(start_us + (solutions.seconds * MICROS).astype(np.int64)),
                pa.array(np.round(solutions.magnitude, 1)),
                pa.array(np.round(solutions.depth)),
                pa.array(np.where(is_first, AUTOMATIC, REVIEWED)),
                pc.binary_join_element_wise("ev", numbers, ""),
            ],
            schema=self.schema().observation_schema,
        )


class _Solutions(NamedTuple):
    """Degrees, seconds after the start of the catalogue, magnitudes and km, one of each row."""

    latitude: Floats
    longitude: Floats
    seconds: Floats
    magnitude: Floats
    depth: Floats


class _News(NamedTuple):
    """All that is published; of a deletion, the report only names the event."""

    published_us: npt.NDArray[np.int64]
    event: npt.NDArray[np.intp]
    is_deletion: npt.NDArray[np.bool_]
    reports: pa.Table


def _latest(issue: npt.NDArray[np.int64], news: _News) -> npt.NDArray[np.intp]:
    """Rows of the last news of each event in each issue, in the order of publication."""
    order = np.argsort(news.published_us, kind="stable")
    backwards = order[::-1]
    pairs = issue * len(news.event) + news.event
    _, firsts = np.unique(pairs[backwards], return_index=True)
    latest: npt.NDArray[np.intp] = backwards[np.sort(firsts)[::-1]]
    return latest


def _after(first: _Solutions, then: _Solutions, rows: npt.NDArray[np.intp]) -> _Solutions:
    """The first solutions, and after them some rows of others."""
    pairs = zip(first, then, strict=True)
    return _Solutions(*(np.concatenate([one, other[rows]]) for one, other in pairs))


def _automatic(generator: np.random.Generator, true: _Solutions) -> _Solutions:
    """What a machine makes of the records."""
    count = len(true.seconds)
    return _Solutions(
        true.latitude + generator.normal(0.0, _PLACE_ERROR_DEG, count),
        true.longitude + generator.normal(0.0, _PLACE_ERROR_DEG, count),
        true.seconds + generator.normal(0.0, _TIME_ERROR_S, count),
        true.magnitude + generator.normal(0.0, _MAGNITUDE_ERROR, count),
        np.full(count, _DEPTH_KM),
    )


def _places(generator: np.random.Generator, count: int) -> tuple[Floats, Floats]:
    """Latitudes and longitudes along the boundaries, some degrees off them."""
    corners = np.array(_FAULTS, dtype=float)
    fault = generator.integers(0, len(corners), count)
    along = generator.uniform(0, corners.shape[1] - 1, count)
    first = along.astype(int)
    share = (along - first)[:, None]
    middle = (1 - share) * corners[fault, first] + share * corners[fault, first + 1]
    longitude, latitude = (middle + generator.normal(0.0, 0.8, (count, 2))).T
    return latitude, longitude

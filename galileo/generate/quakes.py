"""A catalogue like those of earthquakes, made up, in the order in which it is published.

Agencies first publish what a machine made of the records, within minutes, and hours or days later
what a person found: another magnitude and depth for an earthquake that is long over. The second
report has the time of the earthquake, not of its publication, and so is late wherever one counts
by time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
FIRST_REPORT_MIN = (3.0, 20.0)
"""Minutes from an earthquake to its first report."""
REVIEW_H = 9.0
"""Median hours to the revised one."""
REVIEW_H_MAX = 72.0

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
    """What is published at one time.

    Attributes:
        published: ISO 8601.
        reports: observations; their times are those of the earthquakes.
    """

    published: str
    reports: pa.Table


class QuakesLike:
    """Catalogues of earthquakes with revisions.

    Args:
        seed: equal seeds make equal catalogues.
        per_day: earthquakes of magnitude 2.5 and more on an average day.
    """

    def __init__(self, seed: int = 0, *, per_day: float = PER_DAY) -> None:
        if not per_day > 0:
            raise InputError(
                f"expected more than 0 earthquakes a day, got {per_day}", option="per_day"
            )
        self._seed = seed
        self._per_day = per_day

    def schema(
        self, name: str = "quakes", *, geohash_precision: int = 3, time_bucket: Duration = "1h"
    ) -> Schema:
        features = [
            Feature("magnitude"),
            Feature("depth", unit="km"),
            Feature("revision", type="int"),
            Feature("event", type="text"),
        ]
        return Schema(name, features, geohash_precision=geohash_precision, time_bucket=time_bucket)

    def bulletins(
        self, start: Instant, *, days: float, every: Duration = "6h"
    ) -> Iterator[Bulletin]:
        """Everything that is published about the earthquakes of `days` days, until the last review.

        First reports have revision 0, reviewed ones 1. Bulletins that would be empty are left out.
        """
        start_us, every_us = micros(start), round(seconds(every) * MICROS)
        reports, published_us = self._reports(start_us, days)
        order = np.argsort(published_us, kind="stable")
        issue = -((start_us - published_us[order]) // every_us)
        for number in np.unique(issue):
            rows = order[issue == number]
            yield Bulletin(iso(int(start_us + number * every_us)), reports.take(rows))

    def _reports(self, start_us: int, days: float) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Every report, with the time of its publication in microseconds."""
        generator = np.random.default_rng([self._seed, abs(start_us)])
        count = int(generator.poisson(self._per_day * days))
        times_us = start_us + np.sort(generator.uniform(0, days * 86_400, count) * MICROS)
        events = np.char.add("ev", np.char.zfill(np.arange(count).astype(str), 5))
        latitude, longitude = _places(generator, count)
        size = np.minimum(
            MAGNITUDE_MIN + generator.exponential(1 / (B_VALUE * np.log(10)), count), MAGNITUDE_MAX
        )
        depth = np.clip(np.exp(generator.normal(np.log(18), 0.9, count)), 1.0, 680.0)
        guessed = size + generator.normal(0.0, 0.25, count)
        minutes = generator.uniform(*FIRST_REPORT_MIN, count)
        hours = np.minimum(REVIEW_H * np.exp(generator.normal(0, 0.8, count)), REVIEW_H_MAX)
        seen = np.flatnonzero(generator.random(count) < REVIEWED_SHARE)
        both = np.concatenate([np.arange(count), seen])
        is_review = np.arange(len(both)) >= count
        table = pa.table(
            [
                pa.array(latitude[both]),
                pa.array(longitude[both]),
                times_from_micros(times_us.astype(np.int64)[both]),
                pa.array(np.round(np.where(is_review, size[both], guessed[both]), 1)),
                # Automatic solutions without a depth have ten kilometres.
                pa.array(np.round(np.where(is_review, depth[both], 10.0))),
                pa.array(is_review.astype(np.int64)),
                pa.array(events[both]),
            ],
            schema=self.schema().observation_schema,
        )
        delay_s = np.concatenate([minutes * 60, hours[seen] * 3600])
        return table, (times_us[both] + delay_s * MICROS).astype(np.int64)


def _places(generator: np.random.Generator, count: int) -> tuple[Floats, Floats]:
    """Latitudes and longitudes along the boundaries, some degrees off them."""
    corners = np.array(_FAULTS, dtype=float)
    fault = generator.integers(0, len(corners), count)
    along = generator.uniform(0, corners.shape[1] - 1, count)
    first = along.astype(int)
    share = (along - first)[:, None]
    middle = (1 - share) * corners[fault, first] + share * corners[fault, first + 1]
    longitude, latitude = (middle + generator.normal(0.0, 0.8, (count, 2))).T
    return np.round(latitude, 2), np.round((longitude + 180) % 360 - 180, 2)

"""Weather without memory: paths of independent features, the hardest case for pruning by bounds.

Ten days over a part of the Great Plains, in commits of consecutive hours. Each feature is drawn
without regard to place and time, so that no zone map can rule anything out by features.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from galileo.geo import geohash
from galileo.model.schema import Feature, Schema
from galileo.model.times import MICROS, micros, times_from_micros

START_US = micros("2014-03-01T00:00:00Z")
HOUR_US = 3600 * MICROS
HOURS = 240
LATITUDES, LONGITUDES = (35.0, 45.0), (-110.0, -95.0)
PARTITIONS = 4

SCHEMA = Schema(
    "weather",
    [
        Feature("humidity", "%"),
        Feature("temperature", "K"),
        Feature("wind", "m/s"),
        Feature("snow", "m"),
    ],
    geohash_precision=5,
    time_bucket="1h",
)


def path_batches(paths: int, *, size: int, seed: int) -> list[pa.RecordBatch]:
    """`paths` paths in commits of `size`, in the order of time."""
    generator = np.random.default_rng(seed)
    count = -(-paths // size)
    stretch = HOURS / count
    return [
        path_batch(min(size, paths - number * size), generator, hours=(number * stretch, stretch))
        for number in range(count)
    ]


def path_batch(
    size: int, generator: np.random.Generator, *, hours: tuple[float, float]
) -> pa.RecordBatch:
    """One commit, sorted as commits are.

    Args:
        size: paths.
        generator: of everything random.
        hours: where the stretch of time begins, in hours since the start, and its length.
    """
    latitude, longitude = generator.uniform(*LATITUDES, size), generator.uniform(*LONGITUDES, size)
    cells = geohash.encode(latitude, longitude, SCHEMA.geohash_precision)
    hour = np.floor(hours[0] + generator.uniform(0.0, hours[1], size)).astype(np.int64)
    order = np.lexsort([hour, cells])
    features = [
        100.0 * np.sqrt(generator.random(size)),
        generator.normal(283.0, 12.0, size),
        np.abs(generator.normal(0.0, 6.0, size)),
        np.where(generator.random(size) < 0.8, 0.0, generator.uniform(0.0, 2.0, size)),
    ]
    columns = [
        pa.array(cells[order]),
        times_from_micros(START_US + hour[order] * HOUR_US),
        *[pa.array(values) for values in features],
        pa.array(np.arange(size, dtype=np.int32)),
        pa.array(np.ones(size, dtype=np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA.path_schema)


def place(number: int) -> dict[str, int]:
    """Partition and sequence of the commit of that number, as `MetadataGraph.insert` wants them."""
    return {"partition": number % PARTITIONS, "sequence": number // PARTITIONS + 1}

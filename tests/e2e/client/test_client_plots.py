from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises

import galileo
from galileo.errors import InputError, MissingExtra
from galileo.geo import geohash
from galileo.model.times import times_from_micros

SCHEMA = galileo.Schema(
    "buoys",
    [
        galileo.Feature("t", "K"),
        galileo.Feature("wet", type="bool"),
        galileo.Feature("name", type="text"),
    ],
    geohash_precision=3,
    time_bucket="1h",
)
HOUR_US = 3_600_000_000


@pytest.fixture(autouse=True)
def pyplot() -> Iterator[Any]:
    """Imported where it is used: each process that shares the tests imports this module."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("Agg")
    yield pyplot
    pyplot.close("all")


def labels(places: list[tuple[float, float]], t: list[Any], hours: list[int]) -> galileo.Labels:
    latitude, longitude = np.array(places, dtype=np.float64).reshape(-1, 2).T
    rows = len(places)
    columns = {
        "cell": geohash.encode(latitude, longitude, 3),
        "bucket": times_from_micros(np.array(hours, dtype=np.int64) * HOUR_US),
        "t": pa.array(t, pa.float64()),
        "wet": pa.array([True] * rows, pa.bool_()),
        "name": pa.array(["x"] * rows, pa.string()),
        "row": np.arange(rows, dtype=np.int32),
        "rows": np.arange(1, rows + 1, dtype=np.int32),
        "partition": np.zeros(rows, dtype=np.int32),
        "sequence": np.ones(rows, dtype=np.int64),
    }
    return galileo.Labels(SCHEMA, pa.table(columns, schema=SCHEMA.label_schema))


HERE, THERE = (40.0, -105.0), (10.0, 20.0)
SOME = labels([HERE, THERE, HERE, HERE], [280.0, 1.0, 290.0, None], [0, 0, 2, 2])


def drawn(axes: Any) -> tuple[list[tuple[float, ...]], list[float]]:
    """Bounds and values of the rectangles."""
    [collection] = axes.collections
    corners = [path.vertices for path in collection.get_paths()]
    bounds = [(*one.min(axis=0), *one.max(axis=0)) for one in corners]
    return bounds, collection.get_array().tolist()


def bounds_of(*places: tuple[float, float]) -> list[tuple[float, ...]]:
    latitude, longitude = np.array(places).T
    cells = np.sort(geohash.encode(latitude, longitude, 3))
    return [tuple(one) for one in np.stack(geohash.bounds(cells, 3), axis=1)]


def test_plot_shows_each_cell_once_with_its_observations() -> None:
    axes = SOME.plot()
    bounds, values = drawn(axes)
    assert bounds == bounds_of(HERE, THERE)
    assert sorted(values) == [2.0, 1.0 + 3.0 + 4.0]
    assert axes.get_title() == "buoys: 4 labels"
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert left < -105 < 20 < right
    assert bottom < 10 < 40 < top


def test_plot_of_a_feature_shows_its_mean() -> None:
    axes = SOME.plot("t")
    means = dict(zip(drawn(axes)[0], drawn(axes)[1], strict=True))
    [here] = bounds_of(HERE)
    assert means[here] == pytest.approx((1 * 280 + 3 * 290) / 4)
    assert axes.figure.axes[1].get_ylabel() == "t, K"


def test_plot_of_a_bool_shows_its_share() -> None:
    assert drawn(SOME.plot("wet"))[1] == [1.0, 1.0]


def test_plot_across_the_antimeridian_is_contiguous() -> None:
    bounds, _ = drawn(labels([(0.5, 179.9), (0.5, -179.9)], [1.0, 2.0], [0, 0]).plot())
    (west, east) = sorted((one[0], one[2]) for one in bounds)
    assert west[1] == 180.0 == east[0]
    assert east[1] < 183


def test_plot_time_shows_buckets() -> None:
    bars = SOME.plot_time().patches
    assert [bar.get_height() for bar in bars] == [3.0, 7.0]
    assert [bar.get_width() * 24 for bar in bars] == pytest.approx([1.0, 1.0])
    assert (bars[1].get_x() - bars[0].get_x()) * 24 == pytest.approx(2.0)


def test_plot_time_of_a_feature_shows_its_range() -> None:
    axes = SOME.plot_time("t")
    [line] = axes.lines
    assert line.get_ydata().tolist() == pytest.approx([(280 + 2 * 1) / 3, 290])
    [band] = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1.0, 290.0)


def test_plot_draws_on_given_axes(pyplot: Any) -> None:
    _, axes = pyplot.subplots(1, 2)
    assert SOME.plot(ax=axes[0], cmap="magma") is axes[0]
    assert axes[0].collections[0].get_cmap().name == "magma"
    assert SOME.plot_time(ax=axes[1]) is axes[1]


def test_plot_of_no_labels_is_empty(tmp_path: Any) -> None:
    none = labels([], [], [])
    for axes in (none.plot(), none.plot("t"), none.plot_time(), none.plot_time("t")):
        axes.figure.savefig(tmp_path / "x.png")
        assert axes.get_title() == "buoys: 0 labels"


def test_plot_of_a_partial_answer_says_so() -> None:
    partial = SOME.answering(frontier=SOME.frontier, missing=[3], query="")
    assert isinstance(partial, galileo.Labels)
    assert partial.plot().get_title() == "buoys: 4 labels (partial)"


def test_plot_at_a_pole_can_be_drawn(tmp_path: Any) -> None:
    axes = labels([(89.9, 3.0)], [1.0], [0]).plot()
    axes.figure.savefig(tmp_path / "pole.png")
    assert axes.get_aspect() == 10.0


@pytest.mark.parametrize("by", ["name", "none"])
def test_plot_of_a_feature_without_numbers_is_refused(by: str) -> None:
    for plot in (SOME.plot, SOME.plot_time):
        with raises(InputError):
            plot(by)


def test_plot_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with raises(MissingExtra, extra="plots"):
        SOME.plot()


def test_to_xarray_of_labels_uses_cell_centres() -> None:
    found = galileo.to_xarray(SOME)
    assert dict(found.sizes) == {"observation": 4}
    assert found.observations.values.tolist() == [1, 2, 3, 4]
    west, south, east, north = geohash.bounds(SOME.cells, 3)
    assert found.longitude.values.tolist() == ((west + east) / 2).tolist()
    assert found.latitude.values.tolist() == ((south + north) / 2).tolist()
    assert found.t.attrs == {"units": "K"}
    grid = [(lat, lon) for lat in (1.0, 2.5) for lon in (1.0, 2.5)]
    gridded = galileo.to_xarray(labels(grid, [1.0, 2.0, 3.0, 4.0], [0] * 4))
    assert gridded.t.dims == ("time", "latitude", "longitude")

"""Made-up earthquakes: reproducible, in the order of publication, revised later."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from galileo.errors import InputError
from galileo.generate import QuakesLike
from galileo.generate.quakes import REVIEW_H_MAX
from galileo.model.observations import normalise

START = "2014-04-01"


def catalogue(quakes: QuakesLike, days: float = 20) -> pd.DataFrame:
    """All reports in one table, with the time of publication."""
    return pd.concat(
        bulletin.reports.to_pandas().assign(published=pd.Timestamp(bulletin.published))
        for bulletin in quakes.bulletins(START, days=days)
    )


@pytest.fixture(scope="module")
def reports() -> pd.DataFrame:
    return catalogue(QuakesLike(seed=2, per_day=200))


def test_bulletins_are_normal_already() -> None:
    quakes = QuakesLike(seed=2)
    for bulletin in quakes.bulletins(START, days=2):
        assert normalise(quakes.schema(), bulletin.reports).equals(bulletin.reports)
        assert bulletin.reports.num_rows > 0


def test_equal_seeds_make_equal_catalogues() -> None:
    one, two, other = (list(QuakesLike(seed=s).bulletins(START, days=3)) for s in (2, 2, 3))
    assert one == two
    assert one != other


def test_bulletins_come_at_whole_intervals_in_order() -> None:
    times = [pd.Timestamp(one.published) for one in QuakesLike(1).bulletins(START, days=4)]
    assert times == sorted(set(times))
    assert all(one.hour % 6 == 0 and one.minute == 0 for one in times)


def test_how_often_bulletins_come_does_not_change_what_they_say() -> None:
    daily, hourly = (
        pa.concat_tables(one.reports for one in QuakesLike(1).bulletins(START, days=4, every=every))
        for every in ("1d", "1h")
    )
    assert daily.equals(hourly)


def test_nothing_is_published_before_it_happened(reports: pd.DataFrame) -> None:
    delay = reports["published"] - reports["time"]
    first, second = (delay[reports["revision"] == number] for number in (0, 1))
    assert delay.min() > pd.Timedelta(0)
    assert first.max() < pd.Timedelta("6h20min")
    assert second.max() <= pd.Timedelta(hours=REVIEW_H_MAX + 6)
    assert second.median() > pd.Timedelta("6h")


def test_a_revision_follows_a_first_report_of_the_same_place_and_time(
    reports: pd.DataFrame,
) -> None:
    first, second = (reports[reports["revision"] == number] for number in (0, 1))
    assert first["event"].is_unique
    assert second["event"].is_unique
    both = first.merge(second, on=["event", "latitude", "longitude", "time"])
    assert len(both) == len(second)
    assert 0.55 < len(second) / len(first) < 0.65
    changed = both["magnitude_y"] - both["magnitude_x"]
    assert 0.2 < changed.std() < 0.3
    assert abs(changed.mean()) < 0.03


def test_strong_earthquakes_are_rare_as_the_law_says(reports: pd.DataFrame) -> None:
    reviewed = reports[reports["revision"] == 1]["magnitude"]
    assert reviewed.between(2.5, 9.0).all()
    share = (reviewed >= 3.5).mean()
    assert np.isclose(share, 0.11, atol=0.03), "a tenth for each whole magnitude, rounded"


def test_places_are_on_the_globe(reports: pd.DataFrame) -> None:
    assert reports["latitude"].between(-90, 90).all()
    assert reports["longitude"].between(-180, 180).all()
    assert reports["depth"].between(1, 680).all()


def test_no_earthquakes_is_refused() -> None:
    with pytest.raises(InputError, match="expected more than 0 earthquakes a day, got 0"):
        QuakesLike(per_day=0)

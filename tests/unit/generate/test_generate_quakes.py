"""Made-up earthquakes: reproducible, in the order of publication, revised later."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises

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


def test_quakes_bulletin_is_normalised() -> None:
    quakes = QuakesLike(seed=2)
    for bulletin in quakes.bulletins(START, days=2):
        assert normalise(quakes.schema(), bulletin.reports).equals(bulletin.reports)
        assert bulletin.reports.num_rows > 0


def test_quakes_same_seed_gives_same_catalogue() -> None:
    one, two, other = (list(QuakesLike(seed=s).bulletins(START, days=3)) for s in (2, 2, 3))
    assert one == two
    assert one != other


def test_quakes_bulletins_come_at_intervals() -> None:
    times = [pd.Timestamp(one.published) for one in QuakesLike(1).bulletins(START, days=4)]
    assert times == sorted(set(times))
    assert all(one.hour % 6 == 0 and one.minute == 0 for one in times)


def test_quakes_bulletin_interval_keeps_reports() -> None:
    daily, hourly = (
        pa.concat_tables(one.reports for one in QuakesLike(1).bulletins(START, days=4, every=every))
        for every in ("1d", "1h")
    )
    assert daily.equals(hourly)


def test_quakes_reports_follow_events(reports: pd.DataFrame) -> None:
    delay = reports["published"] - reports["time"]
    first, second = (delay[reports["revision"] == number] for number in (0, 1))
    assert delay.min() > pd.Timedelta(0)
    assert first.max() < pd.Timedelta("6h20min")
    assert second.max() <= pd.Timedelta(hours=REVIEW_H_MAX + 6)
    assert second.median() > pd.Timedelta("6h")


def test_quakes_revision_follows_first_report(reports: pd.DataFrame) -> None:
    first, second = (reports[reports["revision"] == number] for number in (0, 1))
    assert first["event"].is_unique
    assert second["event"].is_unique
    both = first.merge(second, on=["event", "latitude", "longitude", "time"])
    assert len(both) == len(second)
    assert 0.55 < len(second) / len(first) < 0.65
    changed = both["magnitude_y"] - both["magnitude_x"]
    assert 0.2 < changed.std() < 0.3
    assert abs(changed.mean()) < 0.03


def test_quakes_magnitudes_follow_law(reports: pd.DataFrame) -> None:
    reviewed = reports[reports["revision"] == 1]["magnitude"]
    assert reviewed.between(2.5, 9.0).all()
    share = (reviewed >= 3.5).mean()
    assert np.isclose(share, 0.11, atol=0.03), "a tenth for each whole magnitude, rounded"


def test_quakes_places_are_valid(reports: pd.DataFrame) -> None:
    assert reports["latitude"].between(-90, 90).all()
    assert reports["longitude"].between(-180, 180).all()
    assert reports["depth"].between(1, 680).all()


def test_quakes_per_day_zero_raises() -> None:
    with raises(InputError, option="per_day"):
        QuakesLike(per_day=0)

"""Made-up seasons of storms: reproducible, with tracks and winds that a storm could have."""

from __future__ import annotations

import pandas as pd
import pytest
from expected_errors import raises

from galileo.errors import InputError
from galileo.generate import StormsLike
from galileo.generate.storms import CATEGORIES_M_S, DAYS_MAX, DAYS_MIN, STEP_H
from galileo.model.observations import normalise


@pytest.fixture(scope="module")
def season() -> pd.DataFrame:
    return StormsLike(seed=5).season(2014).to_pandas()


def test_storms_season_is_normalised() -> None:
    storms = StormsLike(seed=1)
    table = storms.season(2014)
    assert normalise(storms.schema(), table).equals(table)


def test_storms_same_seed_gives_same_season() -> None:
    one = StormsLike(seed=5)
    one.season(2013)
    assert one.season(2014).equals(StormsLike(seed=5).season(2014))
    assert not one.season(2014).equals(StormsLike(seed=6).season(2014))
    assert not one.season(2013).equals(one.season(2014).slice(0, one.season(2013).num_rows))


def test_storms_fixes_are_six_hours_apart(season: pd.DataFrame) -> None:
    assert season["time"].is_monotonic_increasing
    for _, track in season.groupby("storm"):
        steps = track["time"].diff().dropna().dt.total_seconds()
        assert (steps == STEP_H * 3600).all()
        days = (track["time"].iloc[-1] - track["time"].iloc[0]).total_seconds() / 86_400
        assert DAYS_MIN - 0.25 <= days <= DAYS_MAX


@pytest.mark.parametrize("seed", range(6))
def test_storms_tracks_have_plausible_speed(seed: int) -> None:
    season = StormsLike(seed=seed).season(2014).to_pandas()
    assert season["storm"].nunique() == 14
    assert season["latitude"].between(5, 62).all()
    assert season["longitude"].between(-105, 30).all()
    assert set(season["time"].dt.year) == {2014}
    for _, track in season.groupby("storm"):
        assert track["latitude"].iloc[-1] > track["latitude"].iloc[0]
        assert track["longitude"].iloc[4] < track["longitude"].iloc[0]
        moved = track[["latitude", "longitude"]].diff().dropna().abs().max(axis=None)
        assert moved < 8, "degrees in six hours"


def test_storms_wind_and_pressure_are_opposed(season: pd.DataFrame) -> None:
    for _, track in season.groupby("storm"):
        peak = track["wind_speed"].to_numpy().argmax()
        assert 0 < peak < len(track) - 1
    assert season[["wind_speed", "pressure"]].corr().iloc[0, 1] < -0.9
    assert season["pressure"].between(880, 1013).all()
    assert season["wind_speed"].between(8, 85).all()


def test_storms_categories_follow_scale(season: pd.DataFrame) -> None:
    for category, group in season.groupby("category"):
        number = int(str(category))
        assert number == 0 or group["wind_speed"].min() >= CATEGORIES_M_S[number - 1]
        assert number == 5 or group["wind_speed"].max() < CATEGORIES_M_S[number]
    assert season["category"].max() >= 2


def test_storms_zero_raises() -> None:
    with raises(InputError, option="storms"):
        StormsLike(storms=0)

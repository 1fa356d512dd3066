"""Reading a forecast file twice: how the demo maps it, and an independent reading by pandas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from galileo.errors import InputError
from galileo.formats import Mapping, Source
from galileo.optional_imports import library

# The first name that the file offers is taken.
TEMPERATURE = ("2t", "t2m", "temperature_2m", "T2", "temperature_2m_k", "temperature_surface_k")
HUMIDITY = ("2r", "r2", "relative_humidity_2m", "relative_humidity_2m_pct")
WIND = (("10u", "10v"), ("u10", "v10"), ("U10", "V10"))


def mapping_for(source: Source) -> Mapping:
    """Temperature, and humidity and wind where the file has them.

    Raises:
        InputError: it offers no temperature that the demo knows.
    """
    names = {variable.name.partition("@")[0] for variable in source.variables()}
    temperature = next((name for name in TEMPERATURE if name in names), None)
    if temperature is None:
        raise InputError(
            f"expected a temperature of {', '.join(TEMPERATURE)} in {source.path}, found "
            f"{', '.join(sorted(names)[:20])}; the demo needs one, `galileo ingest --map` does not"
        )
    features = [("temperature", temperature)]
    features += [("humidity", name) for name in HUMIDITY if name in names][:1]
    features += [("wind_speed", f"hypot({u}, {v})") for u, v in WIND if {u, v} <= names][:1]
    return Mapping(features=tuple(features))


def read_with_pandas(path: Path, file_format: str) -> pd.DataFrame:
    """latitude, longitude, temperature of every point, without any of Galileo's readers."""
    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        "grib": _read_grib,
        "netcdf": _read_netcdf,
        "csv": _read_csv,
    }
    if file_format not in readers:
        raise InputError(f"expected a GRIB, NetCDF or CSV file for the demo, got {file_format}")
    frame = readers[file_format](path)
    frame["longitude"] = np.where(
        frame["longitude"] > 180, frame["longitude"] - 360, frame["longitude"]
    )
    return frame.dropna(subset=["temperature"]).reset_index(drop=True)


def _read_grib(path: Path) -> pd.DataFrame:
    eccodes = library("eccodes", purpose="reading GRIB")
    frames = []
    with path.open("rb") as file:
        while (message := eccodes.codes_grib_new_from_file(file)) is not None:
            if eccodes.codes_get(message, "shortName") == "2t":
                eccodes.codes_set(message, "missingValue", -1e30)
                frames.append(
                    pd.DataFrame(
                        {
                            "latitude": eccodes.codes_get_array(message, "latitudes"),
                            "longitude": eccodes.codes_get_array(message, "longitudes"),
                            "temperature": eccodes.codes_get_array(message, "values"),
                        }
                    )
                )
            eccodes.codes_release(message)
    return pd.concat(frames).replace({"temperature": {-1e30: np.nan}})


def _read_netcdf(path: Path) -> pd.DataFrame:
    xarray = library("xarray", purpose="reading NetCDF")
    with xarray.open_dataset(path) as dataset:
        name = next(name for name in TEMPERATURE if name in dataset)
        frame = dataset[name].to_dataframe(name="temperature").reset_index()
    named = {"lat": "latitude", "lon": "longitude", "XLAT": "latitude", "XLONG": "longitude"}
    columns: pd.DataFrame = frame.rename(columns=named)[["latitude", "longitude", "temperature"]]
    return columns


def _read_csv(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path)
    name = next(name for name in TEMPERATURE if name in frame)
    named = {"lat": "latitude", "lon": "longitude", name: "temperature"}
    return frame.rename(columns=named)[["latitude", "longitude", "temperature"]]

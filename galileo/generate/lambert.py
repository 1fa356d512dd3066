"""Lambert conformal grids on a sphere, tangent at one parallel, as NCEP uses them.

Source: J. P. Snyder, "Map Projections: A Working Manual", USGS Professional Paper 1395 (1987),
pp. 104-110: forward (15-1) to (15-4), inverse (15-5), (14-9) and (14-11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

EARTH_RADIUS_M = 6_371_229.0


@dataclass(frozen=True, slots=True)
class LambertGrid:
    """A grid of `ny` rows, south to north, of `nx` points, west to east.

    Attributes:
        latitude_first: of the south-west point, degrees; `longitude_first` likewise.
        spacing_m: between neighbours, metres, true at the tangent parallel.
        longitude_central: the meridian that is parallel to the columns, degrees.
        latitude_tangent: where the cone touches the sphere, degrees.
    """

    nx: int
    ny: int
    latitude_first: float
    longitude_first: float
    spacing_m: float
    longitude_central: float = -95.0
    latitude_tangent: float = 25.0
    radius_m: float = EARTH_RADIUS_M

    def xy(self, latitude: npt.ArrayLike, longitude: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Metres east and north of the point where the central meridian meets the tangent."""
        phi = np.radians(np.asarray(latitude, dtype=np.float64))
        east = np.asarray(longitude, dtype=np.float64) - self.longitude_central
        theta: Floats = self._cone * np.radians((east + 180.0) % 360.0 - 180.0)
        rho: Floats = self._scale / np.tan(np.pi / 4 + phi / 2) ** self._cone
        x: Floats = rho * np.sin(theta)
        y: Floats = self._rho_tangent - rho * np.cos(theta)
        return x, y

    def latitude_longitude(self, x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Degrees of points given in metres; the inverse of `xy`."""
        across = np.asarray(x, dtype=np.float64)
        down = self._rho_tangent - np.asarray(y, dtype=np.float64)
        rho = np.hypot(across, down)
        phi = 2 * np.arctan((self._scale / rho) ** (1 / self._cone)) - np.pi / 2
        east = np.degrees(np.arctan2(across, down) / self._cone)
        latitude: Floats = np.degrees(phi)
        longitude: Floats = (east + self.longitude_central + 180.0) % 360.0 - 180.0
        return latitude, longitude

    def axes(self, *, stride: int = 1) -> tuple[Floats, Floats]:
        """Metres east of every column and north of every row; every `stride`-th only."""
        x, y = self.xy(self.latitude_first, self.longitude_first)
        columns: Floats = (
            float(x) + np.arange(0, self.nx, stride, dtype=np.float64) * self.spacing_m
        )
        rows: Floats = float(y) + np.arange(0, self.ny, stride, dtype=np.float64) * self.spacing_m
        return columns, rows

    def points(self, *, stride: int = 1) -> tuple[Floats, Floats]:
        """Latitudes and longitudes, degrees, each of shape (rows, columns)."""
        x, y = self.axes(stride=stride)
        return self.latitude_longitude(x[None, :], y[:, None])

    @property
    def _cone(self) -> float:
        return math.sin(math.radians(self.latitude_tangent))

    @property
    def _scale(self) -> float:
        phi = math.radians(self.latitude_tangent)
        return self._rho_tangent * math.pow(math.tan(math.pi / 4 + phi / 2), self._cone)

    @property
    def _rho_tangent(self) -> float:
        return self.radius_m / math.tan(math.radians(self.latitude_tangent))


# NCEP Office Note 388, table B: the 12 km and 80 km grids over the contiguous United States.
GRID_218 = LambertGrid(614, 428, 12.190, -133.459, 12_190.58)
GRID_211 = LambertGrid(93, 65, 12.190, -133.459, 81_270.5)

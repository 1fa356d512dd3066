"""Made-up observations at the size and shape of real ones, reproducible from a seed."""

from galileo.generate.lambert import GRID_211, GRID_218, LambertGrid
from galileo.generate.nam import NamLike
from galileo.generate.quakes import Bulletin, QuakesLike
from galileo.generate.stations import StationsLike
from galileo.generate.storms import StormsLike

__all__ = [
    "GRID_211",
    "GRID_218",
    "Bulletin",
    "LambertGrid",
    "NamLike",
    "QuakesLike",
    "StationsLike",
    "StormsLike",
]

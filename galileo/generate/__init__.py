"""Made-up observations at the size and shape of real ones, reproducible from a seed."""

from galileo.generate.lambert import GRID_211, GRID_218, LambertGrid
from galileo.generate.nam import NamLike

__all__ = ["GRID_211", "GRID_218", "LambertGrid", "NamLike"]

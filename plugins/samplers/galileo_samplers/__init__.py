"""Samplers for Galileo's queries, found by the names of `galileo sampler list`."""

from galileo_samplers.every import EveryNth
from galileo_samplers.reservoir import Reservoir
from galileo_samplers.stratified import Stratified
from galileo_samplers.thinning import Thinning
from galileo_samplers.uniform import Uniform
from galileo_samplers.weighted import Weighted

__all__ = ["EveryNth", "Reservoir", "Stratified", "Thinning", "Uniform", "Weighted"]

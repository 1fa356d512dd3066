"""Samplers for Galileo's continuous queries, found as `uniform` and `stratified`."""

from galileo_samplers.stratified import Stratified
from galileo_samplers.uniform import Uniform

__all__ = ["Stratified", "Uniform"]

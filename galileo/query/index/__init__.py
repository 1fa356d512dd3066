"""An index of very many continuous queries, matched against new paths in one pass."""

from galileo.query.index.candidates import CandidatePairs
from galileo.query.index.standing_queries import StandingQueries

__all__ = ["CandidatePairs", "StandingQueries"]

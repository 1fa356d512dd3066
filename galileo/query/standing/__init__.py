"""Standing queries: very many at once, matched against new paths in one pass, in columns."""

from galileo.query.standing.asks import Asks, Found
from galileo.query.standing.index import StandingQueries
from galileo.query.standing.pairs import Pairs

__all__ = ["Asks", "Found", "Pairs", "StandingQueries"]

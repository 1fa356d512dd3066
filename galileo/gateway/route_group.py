"""What answers requests: groups of routes, whose methods have the names of the routes."""

from __future__ import annotations

from galileo.gateway.callers import Callers
from galileo.gateway.formats import Encoders


class RouteGroup:
    """Answers the requests of some routes, by methods of their names; belongs to one event loop.

    Args:
        callers: of the gateway.
        encoders: of the gateway, which decode, too.
    """

    def __init__(self, callers: Callers, encoders: Encoders) -> None:
        self._callers = callers
        self._encoders = encoders

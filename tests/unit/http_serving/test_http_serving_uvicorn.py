"""What `galileo.http_serving.protocol` expects of uvicorn; a new version has to be tried."""

from __future__ import annotations

import importlib.metadata
import inspect

import h11
from uvicorn.config import Config
from uvicorn.protocols.http import h11_impl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from galileo.http_serving.protocol import BoundedProtocol, HttpLimits, protocol_config

OVERRIDDEN = {
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "handle_events": ["self"],
    "on_response_complete": ["self"],
    "send_400_response": ["self", "msg"],
    "timeout_keep_alive_handler": ["self"],
}
"""Methods of uvicorn's protocol that ours replaces, with their parameters."""
USED = ("shutdown", "_unset_keepalive_if_required")
"""Those that it calls."""


async def nothing(scope: object, receive: object, send: object) -> None:
    """An application."""


def test_uvicorn_is_the_version_that_was_tried() -> None:
    assert importlib.metadata.version("uvicorn").startswith("0.54.")


def test_uvicorn_protocol_has_the_overridden_methods() -> None:
    for name, parameters in OVERRIDDEN.items():
        assert list(inspect.signature(getattr(H11Protocol, name)).parameters) == parameters, name
    for name in USED:
        assert callable(getattr(H11Protocol, name))
    ours = {
        name for name in vars(BoundedProtocol) if inspect.isfunction(vars(BoundedProtocol)[name])
    }
    assert OVERRIDDEN.keys() == {name for name in ours if hasattr(H11Protocol, name)} - {"__init__"}


async def test_uvicorn_protocol_has_the_used_attributes() -> None:
    config = protocol_config(nothing, HttpLimits(connections_max=1, idle_timeout_s=7.0))
    protocol = H11Protocol(config, ServerState(), {})
    assert protocol.app is nothing, "no middleware of uvicorn's is around it"
    assert isinstance(protocol.conn, h11.Connection)
    assert protocol.timeout_keep_alive == 7.0
    assert {"logger", "access_log", "cycle", "flow", "transport", "loop"} <= vars(protocol).keys()
    assert isinstance(Config(nothing).timeout_keep_alive, int)


def test_uvicorn_protocol_refuses_within_the_handling_of_the_error() -> None:
    """The reason is read from `sys.exception()`."""
    source = inspect.getsource(H11Protocol.handle_events)
    assert "except h11.RemoteProtocolError" in source
    assert "self.send_400_response(" in source


def test_uvicorn_cycle_sets_what_is_read() -> None:
    source = inspect.getsource(RequestResponseCycle)
    assert "self.response_complete = True" in source
    assert "self.on_response()" in source
    assert "disconnected" in inspect.getsource(h11_impl.H11Protocol.connection_lost)

"""Logging of a process to standard error: one line per event, as text or JSON.

A line of JSON is one object: `time` (UTC), `level`, `logger`, `message`, `node`, and if known
`request` (see `galileo.request_id`), `trace` (see `galileo.spans`), `ccq`, further facts, and
`error`, a traceback. Secrets are removed from every line, also from unexpected exceptions.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from galileo import request_id, spans
from galileo.redaction import printable, redacted, visible

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FACTS = ("ccq", "method", "outcome", "took_ms", "peer")
"""Fields of an event beside its message: the keys allowed in `extra` of a logging call."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AuditSection:
    """`file`, relative to `node.directory`, is the audit log; empty disables it."""

    file: str = ""
    bytes_max: int = 64 << 20
    files_max: int = 16


class JsonFormatter(logging.Formatter):
    """Formats events as one JSON object per line.

    Args:
        node: name of the node whose log it is; empty where there is none.
    """

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        at = dt.datetime.fromtimestamp(record.created, tz=dt.UTC)
        fields: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "node": self._node,
        }
        fields["request"] = request_id.current()
        fields["trace"] = spans.trace_id()
        fields |= {fact: getattr(record, fact, "") for fact in FACTS}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        fields = {key: _redacted(value) for key, value in fields.items() if value != ""}
        return json.dumps(fields, default=lambda value: redacted(str(value)))


class TextFormatter(logging.Formatter):
    """Formats events as a line of text, with a traceback in indented lines if there is one.

    Control characters are escaped, so that no text of a stranger looks like an event, or is a
    command to the terminal that shows the log.
    """

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return visible(redacted(super().formatException(ei))).replace("\n", "\n  ")


def _redacted(value: object) -> object:
    return redacted(value) if isinstance(value, str) else value


def start_logging(kind: str = "text", *, level: str = "info", node: str = "") -> None:
    """Starts logging, also of unhandled exceptions of the process and its threads.

    Args:
        kind: "text" or "json".
        level: the minimum level, "debug" to "error".
        node: name of the node, for JSON.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(node) if kind == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("asyncio", "grpc", "py4j"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.root.level))
    sys.excepthook = _crashed
    threading.excepthook = _thread_crashed


def _crashed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Replaces Python's hook, which would write the message with its secrets."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log.critical("unhandled exception, the process ends", exc_info=(kind, error, trace))


def _thread_crashed(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
        log.error("unhandled exception in a thread", exc_info=args.exc_value)

"""How a node logs: one line an event, to standard error."""

from __future__ import annotations

import logging


def start_logging(level: int = logging.INFO) -> None:
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )

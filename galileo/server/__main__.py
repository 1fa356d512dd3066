"""`python -m galileo.server`: a node, without the command line's other commands."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from galileo import config
from galileo.errors import GalileoError
from galileo.logging_setup import start_logging
from galileo.redaction import redacted
from galileo.server.main import serve
from galileo.server.malloc_tuning import configure_malloc
from galileo.tracing import tracing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m galileo.server", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="TOML file of this node")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument(
        "--parent", type=int, default=0, help="stop when this process is no longer our parent"
    )
    arguments = parser.parse_args()
    configure_malloc()
    try:
        loaded = config.load(arguments.config, overrides=arguments.set)
        start_logging(loaded.logging.format, level=loaded.logging.level, node=loaded.node.name)
        with tracing(loaded.tracing, service="galileo-node", node=loaded.node.name):
            serve(loaded, parent=arguments.parent)
    except GalileoError as error:
        print(f"galileo: {redacted(str(error))}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

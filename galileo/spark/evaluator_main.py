"""`python -m galileo.spark.evaluator_main LOCK`: how a node starts the evaluator of its host.

Reads `EvaluatorOptions` as JSON from standard input, for they can hold secrets, which arguments
would show to everyone. LOCK is the inherited descriptor of the runtime directory's locked file.
"""

from __future__ import annotations

import logging
import sys

from galileo.errors import GalileoError
from galileo.logging_setup import start_logging
from galileo.spark.evaluator import main
from galileo.spark.options import EvaluatorOptions
from galileo.tracing import tracing

EXIT_REFUSED = 2


def start() -> int:
    start_logging()
    try:
        options = EvaluatorOptions.from_json(sys.stdin.read())
        start_logging(options.log_format, level=options.log_level)
        with tracing(options.tracing, service="galileo-evaluator"):
            return main(options, lock=int(sys.argv[1]))
    except GalileoError as error:
        logging.getLogger(__name__).error("%s", error.message)
        return EXIT_REFUSED


if __name__ == "__main__":
    sys.exit(start())

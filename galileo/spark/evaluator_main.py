"""`python -m galileo.spark.evaluator_main LOCK`: how a node starts the evaluator of its host.

Reads `EvaluatorOptions` as JSON from standard input, for they can hold secrets, which arguments
would show to everyone. LOCK is the inherited descriptor of the runtime directory's locked file.
"""

from __future__ import annotations

import logging
import sys

from galileo.errors import GalileoError
from galileo.spark.evaluator import main
from galileo.spark.options import EvaluatorOptions

EXIT_REFUSED = 2


def start() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        return main(EvaluatorOptions.from_json(sys.stdin.read()), lock=int(sys.argv[1]))
    except GalileoError as error:
        logging.getLogger(__name__).error("%s", error.message)
        return EXIT_REFUSED


if __name__ == "__main__":
    sys.exit(start())

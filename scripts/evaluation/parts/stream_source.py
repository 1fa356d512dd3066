"""A process that streams blocks evenly over some seconds, while others read.

`python -m evaluation.parts.stream_source ADDRESS DATASET BLOCKS SECONDS STRIDE` says when it is
ready, waits for a line, sends, and prints what came of it, as JSON. A block is one observation: a
grid point of a made-up forecast at one hour.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from benchmarks import clusters

import galileo
from galileo.cursor import Cursor

BATCHES_PER_S = 10
AT_ONCE = 4
READY = "ready"


@dataclass(frozen=True, slots=True)
class Sent:
    """Blocks, the seconds that it took, and how far the commits reach, partition by partition."""

    blocks: int
    took_s: float
    reached: dict[int, int]


@contextlib.contextmanager
def source(
    address: str, dataset: str, *, blocks: int, seconds: float, stride: int
) -> Iterator[subprocess.Popen[str]]:
    """A source that is ready; it starts with a line, and has ended behind the block."""
    words = [address, dataset, str(blocks), str(seconds), str(stride)]
    with subprocess.Popen(
        [sys.executable, "-m", __name__, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                raise AssertionError("expected a source of blocks, it failed")
            yield process
        except BaseException:
            process.kill()
            raise


def sent(line: str) -> Sent:
    """What a source printed at its end."""
    raw = json.loads(line)
    return Sent(raw["blocks"], raw["took_s"], {int(p): s for p, s in raw["reached"].items()})


def main(address: str, dataset: str, blocks: int, seconds: float, stride: int) -> None:
    table = clusters.forecast(blocks, stride=stride)
    batches = min(blocks, max(1, round(seconds * BATCHES_PER_S)))
    edges = [blocks * number // batches for number in range(batches + 1)]
    with galileo.connect(address, timeout=clusters.PATIENCE) as client:
        client.schema(dataset)
        print(READY, flush=True)
        sys.stdin.readline()
        started = time.monotonic()

        def send(number: int) -> Cursor:
            due = started + number * seconds / batches
            time.sleep(max(0.0, due - time.monotonic()))
            start, end = edges[number], edges[number + 1]
            return client.ingest(dataset, table.slice(start, end - start)).reached

        with ThreadPoolExecutor(AT_ONCE) as pool:
            receipts = list(pool.map(send, range(batches)))
        took_s = time.monotonic() - started
    reached = Cursor()
    for one in receipts:
        reached = reached.join(one)
    print(json.dumps(asdict(Sent(blocks, took_s, dict(reached.items())))))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))

"""A client in a process of its own that reads one answer, in batches or as a whole.

`python -m benchmarks.reader ADDRESS DATASET batches|whole|forever` says when it begins, and prints
what that took, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import galileo
from benchmarks.memory import Growth

NOTHING = "temperature < 0"
BEGINS = "begins"


@dataclass(frozen=True, slots=True)
class Read:
    """Seconds until the first labels and until the last, labels, bytes that the client grew by."""

    first_s: float
    all_s: float
    labels: int
    grown: int


def read(address: str, dataset: str, how: str) -> Read:
    """The answer, read by a fresh process."""
    with _reader(address, dataset, how) as process:
        output, _ = process.communicate()
        if process.returncode:
            raise AssertionError(f"a reader ended with status {process.returncode}")
    return Read(**json.loads(output))


@contextlib.contextmanager
def reading_on(address: str, dataset: str) -> Iterator[None]:
    """Beside it a fresh process reads the answer in batches, over and over."""
    with _reader(address, dataset, "forever") as process:
        yield
        if process.poll() is not None:
            raise AssertionError(f"a reader ended with status {process.returncode}")
        process.terminate()


@contextlib.contextmanager
def _reader(address: str, dataset: str, how: str) -> Iterator[subprocess.Popen[str]]:
    """A reader that has begun, and has ended behind the block."""
    words = [sys.executable, "-m", "benchmarks.reader", address, dataset, how]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != BEGINS:
            raise AssertionError("expected a reader to begin, it failed")
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def main(address: str, dataset: str, how: str) -> None:
    with galileo.connect(address) as client:
        client.query(dataset, NOTHING)
        print(BEGINS, flush=True)
        while how == "forever":
            sum(_counts(client, dataset, "batches"))
        with Growth(os.getpid()) as growth:
            started = time.perf_counter()
            first_s, labels = 0.0, 0
            for count in _counts(client, dataset, how):
                first_s = first_s or time.perf_counter() - started
                labels += count
            all_s = time.perf_counter() - started
    print(json.dumps(asdict(Read(first_s, all_s, labels, growth.bytes))))


def _counts(client: galileo.Client, dataset: str, how: str) -> Iterator[int]:
    if how == "whole":
        yield len(client.query(dataset))
        return
    batches = client.query_batches(dataset)
    yield from map(len, batches)
    if batches.end is None or not batches.end.complete:
        raise AssertionError(f"expected a complete answer, got one that ends with {batches.end}")


if __name__ == "__main__":
    main(*sys.argv[1:])

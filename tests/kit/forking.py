"""A program that forks in every way that programs fork, and prints what became of its children.

python forking.py ADDRESS DATASET [few]
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import galileo

ADDRESS, DATASET = sys.argv[1:3]
IS_FEW = len(sys.argv) > 3
"""Whether to leave out pools, threads and what needs another connection."""
TIMEOUT_S = 30


def outcome(work: Callable[[], Any]) -> str:
    try:
        return str(work())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def forked(work: Callable[[], Any]) -> str:
    """What `work` gives in a child that then ends as programs do, or the signal that ended it."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(TIMEOUT_S)
        os.write(writing, outcome(work).encode())
        gc.collect()
        sys.exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return text if code == 0 else f"exit {code}, {text}"


def count() -> int:
    with galileo.connect(ADDRESS) as client:
        return client.count(DATASET)


def cluster() -> None:
    galileo.LocalCluster(nodes=1, groups=1).start()


async def count_in_loop() -> int:
    async with galileo.AsyncClient(ADDRESS) as client:
        return await client.count(DATASET)


class Rows:
    """As the data sets of loaders that read in workers."""

    client: Any = None

    def eagerly(self, _: int) -> str:
        return outcome(lambda: self.client.count(DATASET))

    def lazily(self, _: int) -> str:
        return outcome(count)


def loaded(method: str, read: Callable[[Rows, int], str]) -> list[str]:
    """What is read in the worker of a pool that was started by that method."""
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.starmap(read, [(Rows(), 0), (Rows(), 1)])


def preexec() -> list[int]:
    command = [sys.executable, "-S", "-c", ""]
    return [subprocess.run(command, preexec_fn=os.getpid).returncode for _ in range(2)]


def report(name: str, work: Callable[[], Any]) -> None:
    print(f"{name}: {outcome(work)}", flush=True)


def main() -> None:
    report("never connected", lambda: forked(count))
    if not IS_FEW:
        report("pre-fork server", lambda: [forked(count) for _ in range(2)])

    made = galileo.connect(ADDRESS)
    report("made only", lambda: forked(count))
    report("made only, used", lambda: forked(lambda: made.count(DATASET)))
    made.count(DATASET)
    report("open", lambda: forked(count))
    report("open, closes", lambda: forked(made.close))
    if not IS_FEW:
        open_and_busy(made)

    try:
        made.count("unknown")
    except galileo.GalileoError as error:
        kept = error  # with its frames, which hold the channel
    made.close()
    if not IS_FEW:
        report("error kept", lambda: loaded("fork", Rows.lazily))
    del kept
    gc.collect()
    report("closed", lambda: [forked(count) for _ in range(2)])


def open_and_busy(made: galileo.Client) -> None:
    report("open, in a loop", lambda: forked(lambda: asyncio.run(count_in_loop())))
    report("open, its own", lambda: forked(lambda: made.count(DATASET)))
    report("open, cluster", lambda: forked(cluster))
    report("open, forks twice", lambda: forked(lambda: forked(count)))

    report("open, drops", lambda: forked(made.__dict__.clear))
    Rows.client = made
    report("loader, eager", lambda: loaded("fork", Rows.eagerly))
    report("loader, lazy", lambda: loaded("fork", Rows.lazily))
    report("loader, spawned", lambda: loaded("spawn", Rows.lazily))

    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            made.count(DATASET)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    report("busy", lambda: [forked(count) for _ in range(2)])
    report("busy, no client", lambda: [forked(os.getppid) == str(os.getpid()) for _ in range(2)])
    report("busy, preexec", preexec)
    is_over.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()

"""Spill files: cached results that were written to disk.

They are useless after a restart: nothing is synced, and existing files are deleted at the start. A
file that cannot be written or is damaged costs a rescan.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from galileo.ccq import events
from galileo.ccq.model import CcqDefinition
from galileo.ccq.pack_codec import from_bytes, to_bytes
from galileo.errors import GalileoError
from galileo.model.schema import Schema
from galileo.packing import Compression
from galileo.packs import PackedLabels

DIRECTORY = "spills"
_NAME = re.compile(r"[0-9]{1,20}\.packs")

Value = TypeVar("Value")

log = logging.getLogger(__name__)


class SpillFiles:
    """The spill files of one node, named by their numbers; one thread works on them.

    Args:
        directory: of the node; the files are in a directory within.
        schema: of the labels of a dataset with so many added features.
    """

    def __init__(self, directory: Path, *, schema: Callable[[str, int], Schema]) -> None:
        self._directory = directory / DIRECTORY
        self._schema = schema
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spills")
        self._clear()

    async def write(self, effect: events.SpillPacks) -> events.PacksSpilled:
        try:
            size = await self._in_thread(
                lambda: self._write(effect.number, effect.labels, effect.ccq.compression)
            )
        except Exception as error:  # Any error: the machine waits for its answer.
            name, template = effect.ccq.id, "cannot spill labels of %s: %s"
            log.warning(template, name, error, extra={"ccq": name}, exc_info=_unforeseen(error))
            size = None
        return events.PacksSpilled(effect.number, size)

    async def read(self, effect: events.LoadPacks) -> events.PacksLoaded:
        try:
            labels = await self._in_thread(lambda: self._read(effect.number, effect.ccq))
        except Exception as error:  # As above.
            name, template = (
                effect.ccq.id,
                "labels of %s are rescanned, since their file is lost: %s",
            )
            log.warning(template, name, error, extra={"ccq": name}, exc_info=_unforeseen(error))
            labels = None
        return events.PacksLoaded(effect.number, effect.ccq.id, labels)

    def drop(self, numbers: Iterable[int]) -> None:
        """Deletes files in the background."""
        self._thread.submit(self._drop, tuple(numbers))

    def close(self) -> None:
        """Waits for active operations and deletes all files."""
        self._thread.submit(self._clear)
        self._thread.shutdown(wait=True)

    # --- in the thread -------------------------------------------------------------------------

    def _write(self, number: int, labels: PackedLabels, compression: Compression) -> int:
        path = self._path(number)
        data = to_bytes(labels, compression)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                file.write(data)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return len(data)

    def _read(self, number: int, made: CcqDefinition) -> PackedLabels:
        schema = self._schema(made.dataset, made.added)
        return from_bytes(self._path(number).read_bytes(), schema)

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            try:
                self._path(number).unlink(missing_ok=True)
            except OSError as error:
                log.warning("cannot delete spill file %d: %s", number, error)

    def _clear(self) -> None:
        """Deletes the files of earlier runs."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._directory.iterdir():
            if _NAME.fullmatch(path.name):
                path.unlink(missing_ok=True)

    # --- inside --------------------------------------------------------------------------------

    def _path(self, number: int) -> Path:
        return self._directory / f"{number}.packs"

    async def _in_thread(self, work: Callable[[], Value]) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _unforeseen(error: Exception) -> Exception | None:
    """The error if it is unexpected, so that its traceback is logged."""
    return None if isinstance(error, OSError | GalileoError) else error

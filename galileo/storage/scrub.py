"""Reads one file of a running journal from the disk, and what a scrub keeps about its rounds.

Between a check and its report a file may be merged or dropped, and a log may begin anew. So a
check looks at what will never change: the published part of a file, if it is still the journal's.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from galileo.errors import CorruptData
from galileo.storage.compacted_segment import SUFFIX as MERGED
from galileo.storage.segment import corrupt_error
from galileo.storage.segment_verify import Corruption, FileCheck, check_compacted, check_segment
from galileo.storage.sequential_reader import DiskReader

FilePlace: TypeAlias = tuple[str, int, str]
"""Dataset, partition, and name of a file."""

NO_DAMAGE = (errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of an attempt to open a file that say nothing about the disk."""
ATTEMPTS = 2
"""A file is damaged if it reads wrong so often: memory and cables make errors, too."""


@dataclass(frozen=True, slots=True)
class ScrubState:
    """How far the scrub of a node is.

    Attributes:
        began_at: when the round under way, or the last one, began; seconds since 1970.
        last: the file that was read last in it; None at its begin.
        is_over: whether the round has read all files.
        complete_at: when the last complete round began: what was stored before was read since.
        damages: files that no other node can replace, and why.
    """

    began_at: float
    last: FilePlace | None = None
    is_over: bool = False
    complete_at: float = 0.0
    damages: Mapping[FilePlace, Corruption] = field(default_factory=lambda: MappingProxyType({}))

    def ended(self) -> ScrubState:
        return replace(self, last=None, is_over=True, complete_at=self.began_at)

    def begun(self, now: float) -> ScrubState:
        return replace(self, began_at=now, last=None, is_over=False)

    def with_damage(self, place: FilePlace, flaw: Corruption | None) -> ScrubState:
        """The state with what is wrong with a file; None if nothing is."""
        if flaw is None and place not in self.damages:
            return self
        others = {one: known for one, known in self.damages.items() if one != place}
        return replace(
            self, damages=MappingProxyType(others if flaw is None else {**others, place: flaw})
        )

    def to_bytes(self) -> bytes:
        damages = [
            [*place, flaw.offset, flaw.sequence, flaw.reason]
            for place, flaw in self.damages.items()
        ]
        return json.dumps(
            [self.began_at, self.last, self.is_over, self.complete_at, damages]
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ScrubState:
        began_at, last, is_over, complete_at, raw = json.loads(data)
        damages = {(one[0], one[1], one[2]): Corruption(*one[3:]) for one in raw}
        place = None if last is None else (last[0], last[1], last[2])
        return cls(began_at, place, is_over, complete_at, MappingProxyType(damages))


def order(place: FilePlace) -> tuple[str, int, int]:
    """Files are read in this order; a merged one is in the place of its first segment."""
    dataset, partition, name = place
    return dataset, partition, int(Path(name).stem)


def scrub_file(
    path: Path, *, partition: int, length: int, on_read: Callable[[int], None]
) -> Corruption | None:
    """Reads the published part of a file from the disk; returns its first damage.

    Args:
        path: of a segment, or of a merged one.
        partition: that its frames must be of.
        length: of the part, bytes.
        on_read: called with the bytes of each read, which it may delay, or end by an error.

    Raises:
        FileNotFoundError: it was merged or dropped meanwhile.
        OSError: the process cannot open it at the moment.
    """
    flaw = None
    for _ in range(ATTEMPTS):
        flaw = _first_flaw(path, partition, length, on_read)
        if flaw is None:
            break
    return flaw


def damage_error(path: Path, flaw: Corruption) -> CorruptData:
    return corrupt_error(path, flaw.offset, reason=flaw.reason)


def _first_flaw(
    path: Path, partition: int, length: int, on_read: Callable[[int], None]
) -> Corruption | None:
    try:
        check = _check(path, partition, partial(DiskReader, length=length, on_read=on_read))
    except OSError as error:
        if error.errno in NO_DAMAGE:
            raise
        return Corruption(0, None, f"the disk cannot read it: {error}")
    if check.flaws:
        return check.flaws[0]
    if check.size < length:
        return Corruption(check.size, None, f"expected {length} bytes, the file ends before")
    return None


def _check(path: Path, partition: int, open_file: partial[DiskReader]) -> FileCheck:
    if path.suffix == MERGED:
        return check_compacted(path, partition=partition, open_file=open_file)
    return check_segment(path, partition=partition, last=False, open_file=open_file)

"""Encoded tiles, kept while what they were made of stays the same.

A tile is valid while the commits that readers see of its partitions are those that it was made of.
Each caller asks the nodes for these (`AsyncClient.version`) with its own token, at most once in
`VERSION_AGE_MAX_S` for a dataset. So a tile is never older than that, and a caller who has lost the
right to read a dataset gets no tile of it after that time, also if another caller asked for the
tile first. Rights are of whole datasets, so callers who may read a dataset may share its tiles.

The entity tag is a digest of the bytes: sums of doubles depend on the order in which nodes answer,
so tiles of equal data can differ in the last digit.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakKeyDictionary

from galileo.client.analytics_results import DatasetVersion
from galileo.gateway.shared_calls import SharedCalls

VERSION_AGE_MAX_S = 1.0
"""How long a caller's knowledge of a dataset's version is used."""
CACHE_BYTES_MAX = 64 << 20
"""Encoded tiles of a gateway, with their keys."""
_ENTRY_BYTES = 512
_DIGEST_BYTES = 16

State = bytes
"""A digest of what readers see of some partitions."""


class VersionClient(Protocol):
    """What is needed of `AsyncClient`."""

    async def version(self, dataset: str) -> DatasetVersion: ...


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """The version of a dataset, and since when it was known.

    Attributes:
        version: of the dataset.
        asked_s: when it was asked for, on the clock of `ClientVersions`.
    """

    version: DatasetVersion
    asked_s: float
    _states: dict[tuple[int, ...], State | None] = field(default_factory=dict, repr=False)

    def state(self, partitions: tuple[int, ...]) -> State | None:
        """The state of some partitions; None if one of them is not known."""
        if partitions not in self._states:
            self._states[partitions] = self.state_of(partitions, ranges=self.version.ranges)
        return self._states[partitions]

    def state_of(
        self,
        partitions: Sequence[int],
        *,
        ranges: int,
        frontier: Mapping[int, int] | None = None,
    ) -> State | None:
        """The state of an answer that was begun after the version was known.

        What is dropped meanwhile gives the answer a state that never comes again.

        Args:
            partitions: of which the answer is.
            ranges: as the answer says.
            frontier: of the answer; None for that of the version.
        """
        known, parts = self.version.partitions, [self.version.schema.key, ranges]
        for partition in partitions:
            version = known.get(partition)
            if version is None:
                return None
            last = version.last if frontier is None else frontier.get(partition, 0)
            parts += [partition, version.epoch, version.dropped, last]
        return hashlib.blake2b(repr(parts).encode(), digest_size=_DIGEST_BYTES).digest()


class ClientVersions:
    """What each client knows of the versions of datasets; belongs to one event loop.

    Args:
        monotonic: a clock.
        age_max_s: see `VERSION_AGE_MAX_S`.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        age_max_s: float = VERSION_AGE_MAX_S,
    ) -> None:
        self._monotonic = monotonic
        self._age_max_s = age_max_s
        self._known = WeakKeyDictionary[VersionClient, dict[str, KnownVersion]]()
        self._calls = SharedCalls[tuple[VersionClient, str], KnownVersion]()

    async def known(self, client: VersionClient, dataset: str) -> KnownVersion:
        """The version that a client knows of a dataset, or learns now. Raises as the call does."""
        known = self._known.get(client, {}).get(dataset)
        if known is not None and self._monotonic() - known.asked_s < self._age_max_s:
            return known
        return await self._calls.call((client, dataset), lambda: self._ask(client, dataset))

    async def _ask(self, client: VersionClient, dataset: str) -> KnownVersion:
        asked_s = self._monotonic()
        self._known.get(client, {}).pop(dataset, None)
        known = KnownVersion(await client.version(dataset), asked_s)
        self._known.setdefault(client, {})[dataset] = known
        return known


@dataclass(frozen=True, slots=True)
class TileKey:
    """What a tile was asked for.

    Attributes:
        dataset: key of the dataset, which no later one of its name has.
        place: set, zoom, row and column.
        query: the parameters, as they were sent.
    """

    dataset: str
    place: tuple[str, int, int, int]
    query: str


@dataclass(frozen=True, slots=True)
class EncodedTile:
    """A tile.

    Attributes:
        body: its bytes.
        state: of the partitions that it was made of; None if it is not to be kept.
        partitions: that it was made of.
        missing: of these, that could not be asked.
    """

    body: bytes
    state: State | None
    partitions: tuple[int, ...]
    missing: tuple[int, ...] = ()
    etag: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.blake2b(self.body, digest_size=_DIGEST_BYTES).hexdigest()
        object.__setattr__(self, "etag", f'"{digest}"')


class TileCache:
    """The tiles that were asked for last, within a bound of bytes.

    Args:
        bytes_max: see `CACHE_BYTES_MAX`.
    """

    def __init__(self, *, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._tiles: OrderedDict[TileKey, EncodedTile] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._tiles)

    def get(self, key: TileKey, known: KnownVersion) -> EncodedTile | None:
        """The tile of a key, if it is still what the nodes would answer."""
        tile = self._tiles.get(key)
        if tile is None or tile.state != known.state(tile.partitions):
            return None
        self._tiles.move_to_end(key)
        return tile

    def put(self, key: TileKey, tile: EncodedTile) -> None:
        """Keeps a tile in place of an older one, unless it has no state."""
        if key in self._tiles:
            self.bytes -= _size(key, self._tiles.pop(key))
        if tile.state is None:
            return
        self._tiles[key] = tile
        self.bytes += _size(key, tile)
        while self.bytes > self._bytes_max:
            self.bytes -= _size(*self._tiles.popitem(last=False))


def _size(key: TileKey, tile: EncodedTile) -> int:
    return _ENTRY_BYTES + len(tile.body) + 4 * len(key.query) + 8 * len(tile.partitions)

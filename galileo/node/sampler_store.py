"""Samplers that users have sent: stored by digest, replicated to every node, and revoked.

A node stores an archive as two records, the bytes and the metadata, and a revocation as a third,
which outlives both. A node that lacks an archive fetches it from the others at the first use. A
revocation is final: a changed archive has another digest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

from galileo import samplers
from galileo.dht.topology_state import TopologyState
from galileo.errors import (
    GalileoError,
    InputError,
    NotPermitted,
    SamplerRevoked,
    SandboxUnavailable,
    TransientError,
    UnknownSampler,
)
from galileo.node.peers import Peers, UploadedSampler
from galileo.sampler_package import SamplerArchive
from galileo.sampler_runtime import (
    DEFAULT_LIMITS,
    SandboxLimits,
    open_runtime,
    unavailable_reason,
)
from galileo.samplers import Sampler, SamplerSpec
from galileo.storage.store import Store

SENDER_CHARACTERS_MAX = 128
ARCHIVES_LOADED_MAX = 16
"""Archives whose bytes stay in memory."""

_FACTS, _CODE, _REVOKED = "sampler", "sampler_code", "sampler_revoked"
_DIGEST = re.compile(r"[0-9a-f]{64}")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UploadOptions:
    """Whether users may send samplers to this node, and with which limits those run.

    Attributes:
        is_allowed: an administrator says so.
        limits: of the runtime.
        wall: seconds since 1970.
        archives_max: archives that the node keeps.
        bytes_max: bytes of all of them.
        revoked_max: revocations, which are kept for ever.
    """

    is_allowed: bool = False
    limits: SandboxLimits = DEFAULT_LIMITS
    wall: Callable[[], float] = time.time
    archives_max: int = 256
    bytes_max: int = 64 << 20
    revoked_max: int = 100_000


class SamplerStore:
    """Stores, serves, constructs and revokes samplers of users. `load` is thread-safe.

    Args:
        name: of this node.
        topology: names the other nodes.
        store: keeps the records.
        peers: how to reach the others.
        options: what is allowed.

    Attributes:
        on_revoked: called in the event loop with the digest of each that is revoked.
    """

    def __init__(
        self,
        name: str,
        topology: TopologyState,
        *,
        store: Store,
        peers: Peers,
        options: UploadOptions,
    ) -> None:
        self.on_revoked: Callable[[str], None] = _ignore
        self._name = name
        self._topology = topology
        self._store = store
        self._peers = peers
        self._options = options
        self._wall = options.wall
        self._is_allowed = options.is_allowed
        self._runtime = open_runtime(options.limits)
        self._changing = threading.Lock()
        self._loaded: dict[str, SamplerArchive] = {}
        # Both are replaced and never changed, since the event loop goes through them meanwhile.
        self._kept = _parse_records(store.load_records(_FACTS))
        self._revoked = _parse_records(store.load_records(_REVOKED))
        for digest in self._kept.keys() & self._revoked.keys():
            del self._kept[digest]
            self._delete(digest)  # A crash came in between.

    @property
    def _others(self) -> list[str]:
        nodes = self._topology.current.nodes
        return [node.name for node in nodes if node.name != self._name]

    def close(self) -> None:
        self._runtime.close()

    # --- what there is -----------------------------------------------------------------------

    def known(self) -> tuple[UploadedSampler, ...]:
        """What is kept or was revoked here, in the order in which it was sent."""
        everything = [*self._kept.values(), *self._revoked.values()]
        return tuple(sorted(everything, key=lambda sampler: (sampler.sent_at, sampler.digest)))

    def facts(self, digest: str) -> UploadedSampler:
        """What is said of one that this node keeps.

        Raises:
            SamplerRevoked: it was revoked.
            UnknownSampler: it is not kept here.
        """
        entry = self._kept.get(digest)
        self.check_not_revoked(digest)
        if entry is None:
            raise _unknown(digest)
        return entry

    def check_not_revoked(self, digest: str) -> None:
        """Raises `SamplerRevoked` where it was."""
        if digest in self._revoked:
            # A node that was away when it was sent knows only the revocation.
            name = f" {self._revoked[digest].name!r}" if self._revoked[digest].name else ""
            raise SamplerRevoked(
                f"the sampler{name} with the digest {digest[:12]} was revoked; submit the "
                "query again with another one",
                digest=digest,
            )

    async def check_allowed(self) -> None:
        """That code which users sent may and can run here.

        Raises:
            NotPermitted: the administrator does not allow it.
            SandboxUnavailable: this machine has no sandbox.
        """
        if not self._is_allowed:
            raise NotPermitted(
                f"node {self._name} takes no samplers that are sent; install them on the nodes, "
                'or have an administrator set samplers.uploads = "sandboxed"',
                node=self._name,
                key="samplers.uploads",
            )
        reason = await asyncio.to_thread(unavailable_reason)
        if reason is not None:
            raise SandboxUnavailable(
                f"node {self._name} cannot run uploaded samplers: {reason}", node=self._name
            )

    # --- using them --------------------------------------------------------------------------

    async def ready(self, spec: SamplerSpec) -> None:
        """Sees to it that `load` finds what it needs; nothing to do for an installed sampler.

        Raises:
            NotPermitted, SandboxUnavailable: as `check_allowed`.
            SamplerRevoked: it was revoked.
            UnknownSampler: no node has its archive.
        """
        if spec.archive:
            self.check_not_revoked(spec.archive)
            await self.check_allowed()
            await self.archive(spec.archive)

    def load(self, spec: SamplerSpec, *, owner: str = "") -> Sampler:
        """The sampler that `spec` names; one that was sent runs in a process of its own.

        Args:
            spec: `ready`, if it was sent.
            owner: whose labels it is shown; no other owner's call gets the same process.

        Raises:
            UnknownSampler: it is not installed, or its archive not here.
            SamplerRevoked: it was revoked.
            InputError: it refuses its options.
            SamplerFailed: its code raised when it was imported.
        """
        if not spec.archive:
            return samplers.load(spec)
        return self._runtime.load(self._load_archive(spec.archive), spec, owner=owner)

    async def archive(self, digest: str, *, only_here: bool = False) -> SamplerArchive:
        """The code of a digest, of this node or another, which this one then keeps, too.

        With `only_here` the archive is not fetched from other nodes.

        Raises:
            SamplerRevoked: it was revoked.
            UnknownSampler: no node that can be reached has it.
        """
        if digest not in self._kept and not only_here:
            await self._fetch(digest, self._others)
        return await asyncio.to_thread(self._load_archive, digest)

    def _load_archive(self, digest: str) -> SamplerArchive:
        self.facts(digest)
        archive = self._loaded.get(digest)
        if archive is None:
            data = self._store.load_record(_CODE, digest)
            if data is None:
                raise _unknown(digest)
            archive = _parse_archive(data, digest)
            if len(self._loaded) >= ARCHIVES_LOADED_MAX:
                self._loaded.clear()
            self._loaded[digest] = archive
        return archive

    async def _fetch(self, digest: str, nodes: Iterable[str]) -> None:
        for node in nodes:
            try:
                facts, data = await self._peers.get_sampler(node, digest)
            except (UnknownSampler, TransientError) as error:
                log.info("node %s gives no sampler %s: %s", node, digest[:12], error)
                continue
            await asyncio.to_thread(self._keep, facts, _parse_archive(data, digest))
            return

    # --- sending -----------------------------------------------------------------------------

    async def send(self, data: bytes, *, sent_by: str) -> UploadedSampler:
        """Keeps an archive here and at every node that can be reached; again is harmless.

        A node that is away gets it when it is back, or when it first needs it.

        Raises:
            InvalidArchive: it is none.
            NotPermitted, SandboxUnavailable: this node or another does not run what is sent.
            SamplerRevoked: it was revoked.
            InputError: as many are kept as may be.
        """
        await self.check_allowed()
        archive = await asyncio.to_thread(SamplerArchive.from_bytes, data)
        facts = self._kept.get(archive.digest) or UploadedSampler(
            digest=archive.digest,
            name=archive.name,
            entry=archive.entry,
            bytes=len(archive.data),
            sent_by=_printable(sent_by),
            sent_at=self._wall(),
        )
        await self.would_keep(facts)
        await asyncio.gather(*(self._offer(node, facts, b"") for node in self._others))
        await asyncio.to_thread(self._keep, facts, archive)
        await asyncio.gather(*(self._offer(node, facts, archive.data) for node in self._others))
        return facts

    async def would_keep(self, facts: UploadedSampler) -> None:
        """Raises what `keep` would: no node stores the archive before all have agreed."""
        await self.check_allowed()
        self._check_room(facts)

    async def keep(self, facts: UploadedSampler, data: bytes) -> None:
        """Keeps what another node has accepted; errors as `send`."""
        await self.would_keep(facts)
        archive = await asyncio.to_thread(_parse_archive, data, facts.digest)
        await asyncio.to_thread(self._keep, facts, archive)

    async def _offer(self, node: str, facts: UploadedSampler, data: bytes) -> None:
        try:
            await self._peers.keep_sampler(node, facts, data)
        except TransientError as error:
            log.warning("node %s will get sampler %s later: %s", node, facts.digest[:12], error)

    def _keep(self, facts: UploadedSampler, archive: SamplerArchive) -> None:
        """On disk when it returns; the facts last, which say that the code is there."""
        with self._changing:
            self._check_room(facts)
            if facts.digest not in self._kept:
                self._store.save_record(_CODE, facts.digest, archive.data)
                self._store.save_record(_FACTS, facts.digest, _record(facts))
                self._kept = {**self._kept, facts.digest: facts}

    def _check_room(self, facts: UploadedSampler) -> None:
        self.check_not_revoked(facts.digest)
        if facts.digest in self._kept:
            return
        size = facts.bytes + sum(sampler.bytes for sampler in self._kept.values())
        archives_max, bytes_max = self._options.archives_max, self._options.bytes_max
        if len(self._kept) >= archives_max or size > bytes_max:
            raise InputError(
                f"node {self._name} keeps at most {archives_max} sent samplers of {bytes_max:,} "
                f"bytes together, and has {len(self._kept)} already; revoke some",
                node=self._name,
                bound=archives_max,
            )

    # --- revoking ----------------------------------------------------------------------------

    async def revoke(self, digest: str) -> tuple[UploadedSampler, tuple[str, ...]]:
        """Ends every use of an archive, for good; again is harmless.

        Returns:
            What it was, and the nodes that are away: heartbeats inform them later.

        Raises:
            UnknownSampler: no reachable node has it.
        """
        if digest not in self._revoked:
            await self.archive(digest)
        facts = await self.revoke_here(digest)
        others = self._others
        revoked = await asyncio.gather(*(self._revoke_at(node, digest) for node in others))
        return facts, tuple(
            node for node, is_done in zip(others, revoked, strict=True) if not is_done
        )

    async def revoke_here(self, digest: str, *, revoked_at: float = 0.0) -> UploadedSampler:
        """The same at this node alone, whether it knows the archive or not."""
        if not _DIGEST.fullmatch(digest):
            raise InputError(f"expected a digest of 64 hexadecimal digits, got {digest!r}")
        if digest not in self._revoked:
            await asyncio.to_thread(self._revoke, digest, revoked_at or self._wall())
            self.on_revoked(digest)
        return self._revoked[digest]

    async def _revoke_at(self, node: str, digest: str) -> bool:
        try:
            await self._peers.revoke_sampler(node, digest)
        except GalileoError as error:
            log.warning("node %s will learn later that %s is revoked: %s", node, digest[:12], error)
            return False
        return True

    def _revoke(self, digest: str, revoked_at: float) -> None:
        """On disk before anything is ended or deleted."""
        with self._changing:
            if digest in self._revoked:
                return  # A concurrent call has revoked it.
            most = self._options.revoked_max
            if len(self._revoked) >= most:
                raise InputError(f"node {self._name} keeps at most {most} revocations")
            nothing = UploadedSampler(digest, name="", entry="", bytes=0, sent_by="", sent_at=0.0)
            gone = replace(self._kept.get(digest, nothing), revoked_at=revoked_at)
            self._store.save_record(_REVOKED, digest, _record(gone))
            self._revoked = {**self._revoked, digest: gone}
            self._kept = {name: sampler for name, sampler in self._kept.items() if name != digest}
        self._runtime.revoke(digest)
        self._delete(digest)

    def _delete(self, digest: str) -> None:
        self._loaded.pop(digest, None)
        self._store.delete_record(_FACTS, digest)
        self._store.delete_record(_CODE, digest)

    # --- heartbeats --------------------------------------------------------------------------

    def news(self) -> dict[str, float]:
        """The digests of all archives: kept ones with 0, revoked ones with the time of it."""
        revocations = dict.fromkeys(self._kept, 0.0)
        return revocations | {
            digest: sampler.revoked_at for digest, sampler in self._revoked.items()
        }

    async def apply_news(self, node: str, digest: str, *, revoked_at: float) -> bool:
        """Fetches what another node keeps, or revokes what it has revoked (`revoked_at` above 0).

        Returns:
            Whether that is done; else the next heartbeat repeats it.
        """
        try:
            if revoked_at:
                await self.revoke_here(digest, revoked_at=revoked_at)
            elif self._is_allowed and digest not in self._kept and digest not in self._revoked:
                await self._fetch(digest, [node])
                return digest in self._kept or digest in self._revoked
        except GalileoError as error:
            log.warning("%s is not taken over from %s: %s", digest[:12], node, error)
            return False
        return True


def _ignore(digest: str) -> None:
    """The default of `on_revoked`."""


def _parse_archive(data: bytes, digest: str) -> SamplerArchive:
    archive = SamplerArchive.from_bytes(data)
    if archive.digest != digest:
        raise InputError(
            f"expected the archive {digest[:12]}, got {archive.digest[:12]}", expected=digest
        )
    return archive


def _printable(text: str) -> str:
    return "".join(char for char in text if char.isprintable())[:SENDER_CHARACTERS_MAX]


def _record(facts: UploadedSampler) -> bytes:
    return json.dumps(asdict(facts)).encode()


def _parse_records(records: dict[str, bytes]) -> dict[str, UploadedSampler]:
    return {digest: UploadedSampler(**json.loads(data)) for digest, data in records.items()}


def _unknown(digest: str) -> UnknownSampler:
    return UnknownSampler(
        f"expected a sampler that was sent, got the digest {digest[:64]!r}, which no node in reach "
        "has",
        digest=digest[:64],
        remedy="send_sampler",
    )

"""Samplers that users have sent: uploaded, run, and revoked.

The facts and archives are rows of a system table (`galileo.node.sampler_rows`). A node keeps the
facts in memory alone. What it does not know, it looks up at the leader of the table before it runs
the code: so a node that has restarted runs nothing that was revoked meanwhile. It takes the archive
from its own log, if it keeps a copy of the table, or from another node.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping

import pyarrow as pa

from galileo import samplers
from galileo.clock import Clock
from galileo.errors import (
    InputError,
    NotPermitted,
    SandboxUnavailable,
    TransientError,
    Unavailable,
    UnknownSampler,
)
from galileo.node import sampler_rows
from galileo.node.sampler_rows import (
    NOTHING,
    SAMPLER_ROWS,
    KeepSampler,
    RevokeSampler,
    SamplerFacts,
    unknown,
)
from galileo.node.system_tables import SystemPartition, SystemTable
from galileo.sampler_package import SamplerArchive
from galileo.sampler_runtime import SandboxLimits, open_runtime, unavailable_reason
from galileo.samplers import Sampler, SamplerSpec

LIMITS = SandboxLimits(cpu_s=10.0, wall_s=10.0)
"""Limits of one call, where a query is asked once or evaluated again."""
SENDER_CHARACTERS_MAX = 128
ARCHIVES_LOADED_MAX = 16
"""Archives whose bytes stay in memory."""

_DIGEST = re.compile(r"[0-9a-f]{64}")

log = logging.getLogger(__name__)


class SamplerStore:
    """Takes, serves, constructs and revokes samplers of users.

    Args:
        partition: has the table.
        is_allowed: whether users may send samplers to this node.
        clock: of the uploads.
        on_revoked: called in the event loop with the digests of those that are revoked.

    Attributes:
        table: the system table.
    """

    def __init__(
        self,
        partition: SystemPartition,
        *,
        is_allowed: bool,
        clock: Clock,
        on_revoked: Callable[[frozenset[str]], None],
    ) -> None:
        self.table = SystemTable(
            SAMPLER_ROWS,
            partition,
            learn=self.learn,
            known=self._revoked,
            listed=self._forget_unlisted,
        )
        self._partition = partition
        self._is_allowed = is_allowed
        self._on_revoked = on_revoked
        self._wall = clock.wall
        self._runtime = open_runtime(LIMITS)
        self._known: dict[str, SamplerFacts] = {}
        self._loaded: dict[str, SamplerArchive] = {}

    def close(self) -> None:
        self._runtime.close()

    # --- what there is -----------------------------------------------------------------------

    def known(self) -> tuple[SamplerFacts, ...]:
        """What is kept or was revoked, as far as this node knows, in the order of the uploads."""
        return tuple(sorted(self._known.values(), key=lambda one: (one.sent_at, one.digest)))

    def _revoked(self) -> dict[str, SamplerFacts]:
        return {digest: facts for digest, facts in self._known.items() if facts.revoked_at}

    async def facts(self, digest: str) -> SamplerFacts:
        """What is said of a sampler; asks the leader of the table if this node does not know it.

        Raises:
            SamplerRevoked: it was revoked.
            UnknownSampler: there is none.
            Unavailable: there is no leader.
        """
        if digest not in self._known:
            await self._look_up(digest)
        self.check_not_revoked(digest)
        return self._known[digest]

    async def _look_up(self, digest: str) -> None:
        facts = await self.table.look_up(digest)
        if facts == NOTHING:
            self._known.pop(digest, None)
            raise unknown(digest)
        await self.learn({digest: facts})

    def check_not_revoked(self, digest: str) -> None:
        """Raises `SamplerRevoked` where it was."""
        sampler_rows.check_not_revoked(self._known.get(digest, NOTHING))

    async def check_allowed(self) -> None:
        """That code which users sent may and can run here.

        Raises:
            NotPermitted: the administrator does not allow it.
            SandboxUnavailable: this machine has no sandbox.
        """
        node = self._partition.name
        if not self._is_allowed:
            raise NotPermitted(
                f"node {node} takes no samplers that are sent; install them on the nodes, or have "
                'an administrator set samplers.uploads = "sandboxed"',
                node=node,
                key="samplers.uploads",
            )
        reason = await asyncio.to_thread(unavailable_reason)
        if reason is not None:
            raise SandboxUnavailable(
                f"node {node} cannot run uploaded samplers: {reason}", node=node
            )

    # --- using them --------------------------------------------------------------------------

    async def load(self, spec: SamplerSpec, *, owner: str) -> Sampler:
        """The sampler that `spec` names; one that was sent runs in a process of its own.

        Args:
            spec: of an installed sampler, or of one that was sent.
            owner: whose labels it is shown; no other owner's call gets the same process.

        Raises:
            NotPermitted, SandboxUnavailable: as `check_allowed`.
            SamplerRevoked: it was revoked.
            UnknownSampler: it is neither installed nor sent.
            Unavailable: no node with its archive answers.
            InputError: it refuses its options.
            SamplerFailed: its code raised when it was imported.
        """
        if not spec.archive:
            return await asyncio.to_thread(samplers.load, spec)
        self.check_not_revoked(spec.archive)
        await self.check_allowed()
        archive = await self.archive(spec.archive)
        return await asyncio.to_thread(self._runtime.load, archive, spec, owner=owner)

    async def archive(self, digest: str) -> SamplerArchive:
        """The code of a digest.

        Raises:
            SamplerRevoked: it was revoked.
            UnknownSampler: there is none.
            Unavailable: no node that has it answers.
        """
        await self.facts(digest)
        archive = self._loaded.get(digest) or await self._fetch(digest)
        self.check_not_revoked(digest)
        return archive

    async def _fetch(self, digest: str) -> SamplerArchive:
        """The archive from the log of this node, of the leader, or of another one."""
        here, leader = self._partition.name, self._partition.leader
        for node in sorted([here, *self._partition.others], key=lambda n: (n != here, n != leader)):
            try:
                data = await self._archive_at(node, digest)
            except (UnknownSampler, TransientError) as error:
                log.info("node %s gives no sampler %s: %s", node, digest[:12], error)
                continue
            return self._cache(await asyncio.to_thread(_parse_archive, data, digest))
        await self._look_up(digest)
        self.check_not_revoked(digest)
        raise Unavailable(
            f"no node that has the archive {digest[:12]} answers; try again", after_s=1.0
        )

    async def _archive_at(self, node: str, digest: str) -> bytes:
        if node == self._partition.name:
            return await self.own_archive(digest)
        archive = await self._partition.peers.own_sampler_archive(node, digest)
        return bytes(archive)

    async def own_archive(self, digest: str) -> bytes:
        """The archive, as far as this node has it in memory or in its log.

        Raises:
            UnknownSampler: it has not.
            SamplerRevoked: it was revoked.
            GalileoError: as `SystemTable.attachment`.
        """
        self.check_not_revoked(digest)
        if digest in self._loaded:
            return self._loaded[digest].data
        data = await self.table.attachment(digest)
        if data is None:
            raise unknown(digest)
        return data

    def _cache(self, archive: SamplerArchive) -> SamplerArchive:
        if len(self._loaded) >= ARCHIVES_LOADED_MAX:
            self._loaded.clear()
        self._loaded[archive.digest] = archive
        return archive

    # --- changes -----------------------------------------------------------------------------

    async def send(self, data: bytes, *, sent_by: str) -> SamplerFacts:
        """Has the cluster keep an archive; again is harmless.

        Raises:
            InvalidArchive: it is none.
            NotPermitted, SandboxUnavailable: this node does not run what is sent.
            SamplerRevoked: it was revoked.
            InputError: as many are kept as may be.
            Unavailable: no node leads the table.
        """
        await self.check_allowed()
        archive = await asyncio.to_thread(SamplerArchive.from_bytes, data)
        facts = SamplerFacts(
            digest=archive.digest,
            name=archive.name,
            entry=archive.entry,
            bytes=len(archive.data),
            sent_by=_printable(sent_by),
            sent_at=self._wall(),
        )
        kept = await self.table.change(KeepSampler(facts, pa.py_buffer(archive.data)))
        await self.table.announce(kept.digest, kept)
        return kept

    async def revoke(self, digest: str) -> tuple[SamplerFacts, tuple[str, ...]]:
        """Ends every use of an archive, for good; again is harmless.

        Returns:
            What it was, and the nodes that are away and learn it later.

        Raises:
            UnknownSampler: there is none.
            InputError: the digest is none, or as many are revoked as may be.
            Unavailable: no node leads the table.
        """
        if not _DIGEST.fullmatch(digest):
            raise InputError(f"expected a digest of 64 hexadecimal digits, got {digest!r}")
        gone = await self.table.change(RevokeSampler(digest, self._wall()))
        return gone, await self.table.announce(digest, gone)

    async def learn(self, learned: Mapping[str, SamplerFacts]) -> None:
        """Takes in what was agreed on; ends every use of what is revoked."""
        before = self._known
        merged = {d: sampler_rows.merged(before.get(d, NOTHING), one) for d, one in learned.items()}
        revoked = frozenset(
            digest
            for digest, facts in merged.items()
            if facts.revoked_at and not before.get(digest, NOTHING).revoked_at
        )
        self._known = before | merged
        if revoked:
            for digest in revoked:
                self._loaded.pop(digest, None)
            await asyncio.to_thread(self._end_runs, revoked)
            self._on_revoked(revoked)

    def _end_runs(self, revoked: frozenset[str]) -> None:
        for digest in revoked:
            self._runtime.revoke(digest)

    def _forget_unlisted(self, listed: Mapping[str, SamplerFacts]) -> None:
        """Forgets samplers that the table has lost, but no revocation."""
        self._known = {
            digest: facts
            for digest, facts in self._known.items()
            if digest in listed or facts.revoked_at
        }


def _parse_archive(data: bytes, digest: str) -> SamplerArchive:
    archive = SamplerArchive.from_bytes(data)
    if archive.digest != digest:
        raise InputError(
            f"expected the archive {digest[:12]}, got {archive.digest[:12]}", expected=digest
        )
    return archive


def _printable(text: str) -> str:
    return "".join(char for char in text if char.isprintable())[:SENDER_CHARACTERS_MAX]

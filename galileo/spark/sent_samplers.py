"""Samplers that users sent, in a Python worker: their code fetched by digest, run contained.

A worker may run on another machine than any node, so it asks the node whose labels are to be
sampled, and goes on asking for as long as it keeps the code: an archive that was revoked, or that
nobody has used for a while, is dropped, and its processes end.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from galileo.containment import ContainedSamplers
from galileo.containment.leased_sampler import LeasedSampler
from galileo.errors import GalileoError, InputError, SamplerRevoked
from galileo.sampler_package import SamplerArchive
from galileo.samplers import Sampler, SamplerSpec
from galileo.wire.channel import open_blocking_channel
from galileo.wire.internal.v1 import peers_pb2, peers_pb2_grpc
from galileo.wire.status import error_of_rpc
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

FETCH_TIMEOUT_S = 5.0
LOOK_S = 2.0
"""A revoked sampler's processes end so soon after the node has heard of it."""
IDLE_S = 120.0

Get = Callable[[str, peers_pb2.GetSamplerRequest], peers_pb2.GetSamplerReply]


@dataclass(slots=True)
class _Held:
    archive: SamplerArchive
    address: str
    used_at: float


class SentCode:
    """The archives of one worker, for any of its threads; one of its own looks after them.

    Args:
        pool: runs them.
        get: asks the node at an address.
        monotonic: seconds.
    """

    def __init__(
        self,
        pool: ContainedSamplers,
        *,
        get: Get,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._get = get
        self._monotonic = monotonic
        self._held: dict[str, _Held] = {}
        self._revoked: set[str] = set()
        self._changing = threading.Lock()
        self._watching: threading.Thread | None = None

    def load(self, spec: SamplerSpec, *, address: str, owner: str) -> Sampler:
        """The sampler, which runs in a process of its own.

        Args:
            spec: names the digest.
            address: of a node, which has the archive or finds it.
            owner: whose labels it is shown.

        Raises:
            TransientError: the node is away.
            UnknownSampler, SamplerRevoked: it has no such archive, or not any more.
            SandboxUnavailable, InputError, SamplerFailed: as `LeasedSampler`.
        """
        archive = self._archive(spec.archive, address)
        check = functools.partial(self._check, spec)
        return LeasedSampler(self._pool, archive, spec, owner=owner, check=check)

    def _check(self, spec: SamplerSpec) -> None:
        if spec.archive in self._revoked:
            raise SamplerRevoked(f"the sampler {spec.name!r} was revoked", digest=spec.archive)

    def look_after(self) -> bool:
        """Drops what was revoked, and what was not used lately; whether anything is left."""
        for digest, held in list(self._held.items()):
            if self._monotonic() - held.used_at > IDLE_S or self._is_revoked(digest, held.address):
                with self._changing:
                    self._held.pop(digest, None)
                self._pool.remove(digest)
        with self._changing:
            if not self._held:
                self._watching = None
            return bool(self._held)

    def _archive(self, digest: str, address: str) -> SamplerArchive:
        held = self._held.get(digest)
        if held is None:
            reply = self._get(address, peers_pb2.GetSamplerRequest(digest=digest))
            archive = SamplerArchive.from_bytes(reply.archive)
            if archive.digest != digest:
                raise InputError(f"expected the archive {digest}, got {archive.digest}")
            held = _Held(archive, address, self._monotonic())
        held.address, held.used_at = address, self._monotonic()
        with self._changing:
            self._held[digest] = held
            if self._watching is None:
                self._watching = threading.Thread(target=self._watch, daemon=True)
                self._watching.start()
        return held.archive

    def _is_revoked(self, digest: str, address: str) -> bool:
        request = peers_pb2.GetSamplerRequest(digest=digest, facts_only=True)
        try:
            self._get(address, request)
        except SamplerRevoked:
            self._revoked.add(digest)
            return True
        except GalileoError:
            return False  # It is away, or has forgotten: that says nothing.
        return False

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            if not self.look_after():
                return


def get_over_grpc(
    address: str, request: peers_pb2.GetSamplerRequest, *, keys: TlsFiles = NO_TLS_FILES
) -> peers_pb2.GetSamplerReply:
    """Asks a node, over a channel of its own: it is rare, and threads share none."""
    with open_blocking_channel(address, keys) as channel:
        try:
            reply: peers_pb2.GetSamplerReply = peers_pb2_grpc.PeerSamplersStub(channel).Get(
                request, timeout=FETCH_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise error_of_rpc(error, asked=address) from error
    return reply

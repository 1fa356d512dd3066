"""A cache of uploaded samplers in a Python worker: fetches code by digest and runs it sandboxed.

A worker can run on another machine than any node. It fetches the archive from the node whose labels
it samples, and checks it there again while the archive is in the cache: archives that were revoked,
or not used for `IDLE_S`, are dropped, and their processes end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from galileo.errors import GalileoError, InputError, SamplerRevoked
from galileo.sampler_package import SamplerArchive
from galileo.sampler_runtime import SamplerRuntime
from galileo.samplers import Sampler, SamplerSpec
from galileo.spark.calls import OWNER, Owner
from galileo.wire.blocking_caller import BlockingCaller
from galileo.wire.caller import CallOptions
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

OPTIONS = CallOptions(call_s=5.0, patience_s=0.0)
IDLE_S = 120.0

Get = Callable[[str, str, bool], bytes | pa.Buffer]
"""Asks the node at an address for the archive of a digest; for none, if the last is true."""
_FIND = OWNER.call(Owner.find_sampler_archive)


@dataclass(slots=True)
class _CachedArchive:
    archive: SamplerArchive
    address: str
    used_at: float


class SamplerCache:
    """The archives of one worker; thread-safe. A thread of its own drops archives.

    Args:
        runtime: runs the samplers.
        get: calls the node at an address.
        monotonic: clock, in seconds.
        check_interval_s: of checks; the processes of a revoked sampler end within it.
    """

    def __init__(
        self,
        runtime: SamplerRuntime,
        *,
        get: Get,
        monotonic: Callable[[], float] = time.monotonic,
        check_interval_s: float = 2.0,
    ) -> None:
        self._check_interval_s = check_interval_s
        self._runtime = runtime
        self._get = get
        self._monotonic = monotonic
        self._cached: dict[str, _CachedArchive] = {}
        self._lock = threading.Lock()
        self._checker: threading.Thread | None = None

    def load(self, spec: SamplerSpec, *, address: str, owner: str) -> Sampler:
        """The sampler, which runs in a process of its own.

        Args:
            spec: has the digest of the archive.
            address: of a node.
            owner: dataset whose labels the sampler gets.

        Raises:
            TransientError: the node cannot be reached.
            UnknownSampler, SamplerRevoked: the archive does not exist, or was revoked.
            SandboxUnavailable, InputError, SamplerFailed, Overloaded: as `SamplerRuntime.load`.
        """
        archive = self._archive(spec.archive, address)
        return self._runtime.load(archive, spec, owner=owner)

    def drop_unused(self) -> bool:
        """Drops archives that were revoked or not used for `IDLE_S`; whether any is left."""
        for digest, cached in list(self._cached.items()):
            if self._monotonic() - cached.used_at > IDLE_S:
                drop = self._runtime.evict
            elif self._is_revoked(digest, cached.address):
                drop = self._runtime.revoke
            else:
                continue
            with self._lock:
                self._cached.pop(digest, None)
            drop(digest)
        with self._lock:
            if not self._cached:
                self._checker = None
            return bool(self._cached)

    def _archive(self, digest: str, address: str) -> SamplerArchive:
        cached = self._cached.get(digest)
        if cached is None:
            archive = SamplerArchive.from_bytes(bytes(self._get(address, digest, False)))
            if archive.digest != digest:
                raise InputError(f"expected the archive {digest}, got {archive.digest}")
            cached = _CachedArchive(archive, address, self._monotonic())
        cached.address, cached.used_at = address, self._monotonic()
        with self._lock:
            self._cached[digest] = cached
            if self._checker is None:
                self._checker = threading.Thread(target=self._check_regularly, daemon=True)
                self._checker.start()
        return cached.archive

    def _is_revoked(self, digest: str, address: str) -> bool:
        try:
            self._get(address, digest, True)
        except SamplerRevoked:
            return True
        except GalileoError:
            return False  # The node cannot be reached, or does not know the archive.
        return False

    def _check_regularly(self) -> None:
        while True:
            time.sleep(self._check_interval_s)
            if not self.drop_unused():
                return


def get_over_grpc(
    address: str, digest: str, facts_only: bool, *, keys: TlsFiles = NO_TLS_FILES
) -> pa.Buffer:
    """Calls a node on a new channel, since calls are rare and threads share no channel."""
    with BlockingCaller([address], options=OPTIONS, keys=keys) as caller:
        answer = caller.exchange(_FIND.path, _FIND.encode(digest, facts_only))
    return _FIND.decode_answer(answer)

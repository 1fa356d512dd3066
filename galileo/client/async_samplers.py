"""The calls of `AsyncClient` about uploaded samplers."""

from __future__ import annotations

import getpass
import socket
from typing import TypeAlias

from galileo.client import decode
from galileo.client.arguments import instance_of
from galileo.client.async_datasets import AsyncDatasets
from galileo.client.results import RevokedSampler, UploadedSampler
from galileo.errors import InputError
from galileo.sampler_package import SamplerArchive
from galileo.samplers import SamplerSpec, sampler
from galileo.wire.services import SAMPLERS
from galileo.wire.v1 import samplers_pb2

SamplerLike: TypeAlias = SamplerSpec | SamplerArchive
"""A sampler, or an archive of one: without options and with a random seed."""

DIGITS_MIN = 8
"""Shortest prefix that names a digest."""


class AsyncSamplers(AsyncDatasets):
    """Uploads each sampler once per client."""

    _sent_digests: set[str]

    async def send_sampler(self, archive: SamplerArchive) -> UploadedSampler:
        """Uploads the code of a sampler to the cluster; `query` and `submit` do it by themselves.

        Args:
            archive: from `galileo.sampler_archive`.

        Raises:
            NotPermitted: the node does not allow uploads.
            SandboxUnavailable: the node has no sandbox to run it in.
            SamplerRevoked: this code was revoked.
            InvalidArchive: the archive is invalid.
            Unavailable: no node leads the system partition. Repeat the call.

        Example:
            >>> archive = galileo.sampler_archive("thin.py")
            >>> sent = await client.send_sampler(archive)
            >>> sent.name
            'thin'
        """
        instance_of(SamplerArchive, archive, "an archive as galileo.sampler_archive(path) makes it")
        request = samplers_pb2.UploadSamplerRequest(archive=archive.data, sent_by=_sender())
        reply = await self._caller.unary(
            SAMPLERS,
            "Upload",
            request,
            timeout_s=self._caller.options.answer_s,
        )
        self._sent_digests.add(archive.digest)
        return decode.sent_sampler(reply.sampler)

    async def sent_samplers(self) -> list[UploadedSampler]:
        """The uploaded samplers, oldest first, also revoked ones.

        Example:
            >>> await client.send_sampler(galileo.sampler_archive("thin.py"))
            UploadedSampler(...)
            >>> "thin" in {sent.name for sent in await client.sent_samplers()}
            True
        """
        reply = await self._caller.unary(SAMPLERS, "List", samplers_pb2.ListSamplersRequest())
        return [decode.sent_sampler(value) for value in reply.samplers]

    async def revoke_sampler(self, digest: str) -> RevokedSampler:
        """Revokes an uploaded sampler permanently, at all nodes.

        Continuous queries that use it fail with `SamplerRevoked`, and its processes end.

        Args:
            digest: of its archive, or the beginning of it.

        Raises:
            UnknownSampler: no uploaded sampler has it.
            Unavailable: no node leads the system partition. Repeat the call.
            InputError: several digests begin with it.

        Example:
            >>> sent = await client.send_sampler(galileo.sampler_archive("thin_once.py"))
            >>> revoked = await client.revoke_sampler(sent.digest)
            >>> revoked.away
            ()
        """
        request = samplers_pb2.RevokeSamplerRequest(digest=await self._find_digest(digest))
        timeout_s = self._caller.options.answer_s
        reply = await self._caller.unary(SAMPLERS, "Revoke", request, timeout_s=timeout_s)
        self._sent_digests.discard(request.digest)
        return RevokedSampler(decode.sent_sampler(reply.sampler), tuple(reply.away))

    async def _find_digest(self, digest: str) -> str:
        if not isinstance(digest, str) or len(digest) < DIGITS_MIN:
            raise InputError(
                f"expected at least {DIGITS_MIN} digits of a sampler's digest, got {digest!r}"
            )
        digests = {uploaded.digest for uploaded in await self.sent_samplers()}
        matches = sorted(full_digest for full_digest in digests if full_digest.startswith(digest))
        if len(matches) > 1:
            raise InputError(f"expected one digest, {', '.join(matches)} begin with {digest!r}")
        return matches[0] if matches else digest

    async def _upload_if_needed(self, chosen: SamplerLike | None) -> SamplerSpec | None:
        """The sampler by name or digest; uploads its code if this client has not done so."""
        spec = None if chosen is None else spec_of(chosen)
        if spec is not None and spec.code is not None and spec.archive not in self._sent_digests:
            await self.send_sampler(spec.code)
        return spec


def spec_of(chosen: SamplerLike) -> SamplerSpec:
    """The sampler itself, or the one in an archive."""
    spec = sampler(chosen) if isinstance(chosen, SamplerArchive) else chosen
    if not isinstance(spec, SamplerSpec):
        raise InputError(
            f"expected a sampler, such as galileo.sampler('uniform', fraction=0.1), got {spec!r}"
        )
    return spec


def _sender() -> str:
    """User and host name of this process."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()

"""The calls of `AsyncClient` about uploaded samplers."""

from __future__ import annotations

from galileo.client import decode
from galileo.client.arguments import instance_of
from galileo.client.calls import Calls
from galileo.client.cluster_caller import ANSWER_S
from galileo.client.results import RevokedSampler, UploadedSampler
from galileo.errors import InputError
from galileo.sampler_package import SamplerArchive
from galileo.wire.services import SAMPLERS
from galileo.wire.v1 import samplers_pb2

DIGITS_MIN = 8
"""Shortest prefix that names a digest."""


class AsyncSamplers(Calls):
    """Uploads each sampler once per client."""

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
        return await self._upload(archive)

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
        reply = await self._caller.unary(SAMPLERS, "Revoke", request, timeout_s=ANSWER_S)
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

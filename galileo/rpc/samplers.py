"""The service of uploaded samplers: decode, one call, encode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from galileo.node.sampler_rows import SamplerFacts
from galileo.node.sampler_store import SamplerStore
from galileo.rpc.access import Principal
from galileo.rpc.error_mapping import Context, unary
from galileo.rpc.identity import Identify, anonymous
from galileo.wire.alike import alike
from galileo.wire.v1 import samplers_pb2

InUse = Callable[[Principal], Awaitable[Mapping[str, Sequence[str]]]]


class SamplersServicer:
    """Uploads, lists, returns and revokes samplers.

    Args:
        samplers: the sampler store of the node.
        in_use: the CCQs that use each digest and that the caller may see.
        identify: returns the caller.
    """

    def __init__(
        self, samplers: SamplerStore, *, in_use: InUse, identify: Identify = anonymous
    ) -> None:
        self._samplers = samplers
        self._in_use = in_use
        self._identify = identify

    @unary
    async def Upload(  # noqa: N802
        self, request: samplers_pb2.UploadSamplerRequest, context: Context
    ) -> samplers_pb2.UploadSamplerReply:
        # An authenticated caller cannot choose another name.
        sent_by = self._identify(context).name or request.sent_by
        sent = await self._samplers.send(request.archive, sent_by=sent_by)
        return samplers_pb2.UploadSamplerReply(sampler=await self._described(sent, context))

    @unary
    async def List(  # noqa: N802
        self, request: samplers_pb2.ListSamplersRequest, context: Context
    ) -> samplers_pb2.ListSamplersReply:
        in_use = await self._in_use(self._identify(context))
        known = self._samplers.known()
        return samplers_pb2.ListSamplersReply(
            samplers=[
                sampler_to_pb(uploaded, in_use.get(uploaded.digest, ())) for uploaded in known
            ]
        )

    @unary
    async def Revoke(  # noqa: N802
        self, request: samplers_pb2.RevokeSamplerRequest, context: Context
    ) -> samplers_pb2.RevokeSamplerReply:
        gone, away = await self._samplers.revoke(request.digest)
        return samplers_pb2.RevokeSamplerReply(
            sampler=await self._described(gone, context), away=away
        )

    async def _described(
        self, sampler: SamplerFacts, context: Context
    ) -> samplers_pb2.UploadedSampler:
        in_use = await self._in_use(self._identify(context))
        return sampler_to_pb(sampler, in_use.get(sampler.digest, ()))


def sampler_to_pb(
    sampler: SamplerFacts, ccq_ids: Sequence[str] = ()
) -> samplers_pb2.UploadedSampler:
    return alike(samplers_pb2.UploadedSampler, sampler, ccq_ids=ccq_ids)

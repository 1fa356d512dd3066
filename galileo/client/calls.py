"""What all calls of `AsyncClient` stand on."""

from __future__ import annotations

import getpass
import socket
from typing import TypeAlias

from galileo.client import decode
from galileo.client.cluster_caller import ANSWER_S
from galileo.client.fetching import Fetcher
from galileo.client.group_commit import GroupCommit
from galileo.client.results import ChannelPartition, UploadedSampler
from galileo.client.routing import Router
from galileo.client.stored_rows import StoredRows
from galileo.errors import InputError
from galileo.sampler_package import SamplerArchive
from galileo.samplers import SamplerSpec, sampler
from galileo.wire.alike import alike
from galileo.wire.caller import Caller
from galileo.wire.codec import cursor_from_pb
from galileo.wire.services import CHANNELS, SAMPLERS
from galileo.wire.v1 import channels_pb2, samplers_pb2

SamplerLike: TypeAlias = SamplerSpec | SamplerArchive
"""A sampler, or an archive of one: without options and with a random seed."""


class Calls(StoredRows):
    """The connections and caches of a client.

    The calls are in classes of their own, which derive from this one and do not know each other.
    """

    _fetcher: Fetcher
    _sent_digests: set[str]

    def _use(self, caller: Caller) -> None:
        """Begins with empty caches."""
        self._caller = caller
        self._router = Router(caller)
        caller.discover = self._router.members
        self._fetcher = Fetcher(caller)
        self._schemas = {}
        self._group_commit = GroupCommit(self._send_group)
        self._tables = {}
        self._channels = {}
        self._sent_digests = set()
        self._caller.on_error = self._forget_dropped_schema

    async def _upload_if_needed(self, chosen: SamplerLike | None) -> SamplerSpec | None:
        """The sampler by name or digest; uploads its code if this client has not done so."""
        spec = None if chosen is None else spec_of(chosen)
        if spec is not None and spec.code is not None and spec.archive not in self._sent_digests:
            await self._upload(spec.code)
        return spec

    async def _upload(self, archive: SamplerArchive) -> UploadedSampler:
        """See `AsyncClient.send_sampler`."""
        request = samplers_pb2.UploadSamplerRequest(archive=archive.data, sent_by=_sender())
        reply = await self._caller.unary(SAMPLERS, "Upload", request, timeout_s=ANSWER_S)
        self._sent_digests.add(archive.digest)
        return decode.sent_sampler(reply.sampler)

    async def _channel_partitions(self, channel: str) -> list[ChannelPartition]:
        """See `AsyncClient.describe_channel`."""
        known = await self._channel(channel)
        request = channels_pb2.DescribeChannelRequest(dataset=known.key)
        reply = await self._caller.unary(CHANNELS, "DescribeChannel", request)
        return [
            alike(ChannelPartition, one, cut=cursor_from_pb(one.cut)) for one in reply.partitions
        ]


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

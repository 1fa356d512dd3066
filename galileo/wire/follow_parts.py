"""Joins the messages of one execution, which come in pieces of bounded size."""

from __future__ import annotations

from galileo.wire.v1 import channels_pb2


class FollowParts:
    """Takes the messages of a stream of `Follow` one by one."""

    def __init__(self) -> None:
        self._observations: list[bytes] = []
        self._matches: list[bytes] = []

    def take(self, message: channels_pb2.FollowPart) -> channels_pb2.FollowPart | None:
        """The whole part that ends with a message; None if more messages of it follow."""
        if not message.HasField("reached"):
            self._observations.append(message.observations)
            self._matches.append(message.matches)
            return None
        message.observations = b"".join(self._observations)
        message.matches = b"".join(self._matches)
        self._observations, self._matches = [], []
        return message

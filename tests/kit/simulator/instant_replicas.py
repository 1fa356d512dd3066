"""Machines of one partition and one log whose disks and lines work at once."""

from __future__ import annotations

from collections import defaultdict, deque

from galileo.replication.machine import Replica
from galileo.replication.messages import (
    LogSynced,
    Message,
    MessageArrived,
    ReplicaEffect,
    ReplicaEvent,
    ReplicaTicked,
    ResetLog,
    SaveReplicaState,
    SendMessage,
    StateSaved,
    TruncateLog,
    WriteFrames,
)
from galileo.replication.values import Epochs, Member, ReplicaState

LOG = "log"
TICK_S = 0.05


class InstantReplicas:
    """Machines by member.

    Attributes:
        effects: of each machine, oldest first.
        led: the members that were open as leaders at some time.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.machines: dict[Member, Replica] = {}
        self.effects = defaultdict[Member, list[ReplicaEffect]](list)
        self.led: set[Member] = set()
        self._under_way: deque[tuple[Member, Member, Message]] = deque()

    def start(
        self,
        member: Member,
        ordinal: int,
        state: ReplicaState,
        log: Epochs | None = None,
        *,
        committed: int = 0,
    ) -> None:
        """Starts a machine, in place of the one that the member had."""
        logs = {} if log is None else {LOG: (log, committed)}
        self.machines[member] = Replica(member, ordinal, state=state, logs=logs, now=self.now)
        self.effects[member] = []

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += TICK_S
            for member in self.machines:
                self.step(member, ReplicaTicked())
            while self._under_way:
                sender, target, message = self._under_way.popleft()
                if target in self.machines:
                    self.step(target, MessageArrived(sender, message))

    def step(self, member: Member, event: ReplicaEvent) -> None:
        machine = self.machines[member]
        for effect in machine.step(event, self.now):
            self.effects[member].append(effect)
            if isinstance(effect, SendMessage):
                self._under_way.append((member, effect.to, effect.message))
            elif isinstance(effect, SaveReplicaState):
                self.step(member, StateSaved(effect.state))
            elif isinstance(effect, WriteFrames | TruncateLog | ResetLog):
                self.step(member, LogSynced(effect.log, machine.logs[effect.log].end))
        machine.check()
        if machine.is_open:
            self.led.add(member)

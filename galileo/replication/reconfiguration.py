"""The next replica set on the way to the wanted members.

Sets change without a log of their own (Schultz et al., "Design and Analysis of a Logless Dynamic
Reconfiguration Protocol", arXiv 2102.11960): one voter more or less at a time, so that majorities
of neighbouring sets intersect. A member copies as a learner before it becomes a voter.

A voter that is to go and is alive stays until its successor votes. One that is not heard goes
first, but only after a learner has caught up: with two voters, one of them dead, nothing commits.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from galileo.replication.values import Member, ReplicaSet


def next_set(
    current: ReplicaSet,
    wanted: AbstractSet[Member],
    *,
    leader: Member,
    alive: AbstractSet[Member],
    caught_up: AbstractSet[Member],
) -> ReplicaSet | None:
    """The set that follows `current`, None if there is nothing to do now.

    The leader never removes itself: it hands over first.
    """
    voters, learners = current.voters, current.learners
    goal = frozenset(wanted) | ({leader} if leader in voters else frozenset())
    # Learners do not vote, so majorities intersect however many of them change.
    if (new := frozenset(wanted - voters)) != learners:
        return _next(current, voters, new)
    outgoing = sorted(voters - goal, key=lambda member: (member in alive, member))
    ready = sorted(learners & caught_up & alive)
    if outgoing and (len(voters) > len(wanted) or (ready and outgoing[0] not in alive)):
        return _next(current, voters - {outgoing[0]}, learners)
    if ready:
        return _next(current, voters | {ready[0]}, learners - {ready[0]})
    return None


def _next(
    current: ReplicaSet, voters: frozenset[Member], learners: frozenset[Member]
) -> ReplicaSet:
    return replace(current, number=current.number + 1, voters=voters, learners=learners)

"""Whether concurrent calls have the outcomes of a sequence of calls, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
State = TypeVar("State", bound=Hashable)
STATES_MAX = 200_000


@dataclass(slots=True)
class Call(Generic[Asked]):
    """A call of a client.

    Attributes:
        asked: what it asks for.
        start: when it began.
        end: when it was answered, infinite if it was not.
        outcome: its result, or an error. None: there is no answer, so it may have its effect at any
            time after it began, or never.
    """

    asked: Asked
    start: float
    end: float = inf
    outcome: object = None


def has_order(
    first: State,
    calls: Sequence[Call[Asked]],
    effects: Callable[[Call[Asked], State], Iterable[State]],
) -> bool:
    """Whether some order of the calls, within their times, gives their outcomes.

    A search, depth first, over the sets of calls that have had their effect (Wing and Gong,
    "Testing and verifying concurrent objects", 1993), visits no set in the same state twice. An
    answered call that can only be one without effect is taken at once: no order is lost by that,
    if a call which has no effect in a state has none in later ones.

    Args:
        first: the state before all calls.
        calls: in any order.
        effects: the states that a call may lead to from a state, given its outcome; none if it
            cannot have that outcome there.

    Raises:
        RuntimeError: there are too many states to search.
    """
    answered = sum(1 << n for n, call in enumerate(calls) if call.outcome is not None)
    stack = [(0, first)]
    seen = set(stack)
    while stack:
        done, state = stack.pop()
        if done & answered == answered:
            return True
        left = [n for n in range(len(calls)) if not done >> n & 1]
        soonest = min(calls[n].end for n in left if calls[n].outcome is not None)
        reached = list[tuple[int, State]]()
        for n in left:
            if calls[n].start > soonest:
                continue
            after = list(effects(calls[n], state))
            if calls[n].outcome is None:
                after = [one for one in after if one != state]
            elif after == [state]:
                reached = [(done | 1 << n, state)]
                break
            reached += [(done | 1 << n, one) for one in after]
        for one in reached:
            if one not in seen:
                seen.add(one)
                stack.append(one)
        if len(seen) > STATES_MAX:
            raise RuntimeError(f"expected at most {STATES_MAX} states of {len(calls)} calls")
    return False


def first_unexplained(
    first: State,
    calls: Sequence[Call[Asked]],
    effects: Callable[[Call[Asked], State], Iterable[State]],
) -> float | None:
    """When the first answer came that no order explains; None where one explains all.

    Args and errors as of `has_order`.
    """
    if has_order(first, calls, effects):
        return None
    ends = sorted(call.end for call in calls if call.outcome is not None)
    return next(end for end in ends if not has_order(first, list(_until(calls, end)), effects))


def _until(calls: Iterable[Call[Asked]], end: float) -> Iterator[Call[Asked]]:
    """What had begun at a time; what was answered later has no answer."""
    for call in calls:
        if call.end <= end:
            yield call
        elif call.start <= end:
            yield Call(call.asked, call.start)

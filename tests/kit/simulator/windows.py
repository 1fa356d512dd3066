"""What a reader with windows must get, computed label by label."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field

from galileo.model.windows import Window, WindowChanges
from simulator.logs import HOUR_US, Path, bucket_us
from simulator.loop import demand

WINDOWS = (
    None,
    Window.tumbling("4h"),
    Window.sliding("6h", slide="2h"),
    Window.tumbling("3h", lateness="2h"),
)


def window_of(seed: int, number: int) -> Window | None:
    """The windows of a world's CCQ; not random, to keep the rest of the world unchanged."""
    return WINDOWS[(seed + number) % len(WINDOWS)]


@dataclass(slots=True)
class Windows:
    """The windows of one reader, as the updates that it stored describe them.

    Attributes:
        held: the paths of each window, by its start.
        closed: the windows that its updates closed.
        clock_us: the last event clock that it got.
    """

    window: Window
    held: dict[int, set[Path]] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    clock_us: int | None = None

    def copy(self) -> Windows:
        return deepcopy(self)

    def take(self, changes: WindowChanges, paths: Iterable[Path]) -> tuple[int, int]:
        """Apply an update, and demand that it reports exactly the changes.

        Returns:
            How many windows it closed, and how many it reopened.
        """
        news = self._grouped(paths)
        reported = {one.start_us: one for one in changes.to_list()}
        demand(set(news) <= set(reported), "labels of windows without a change")
        has_gone_back = self.clock_us is not None and (changes.clock_us or 0) < self.clock_us
        demand(not has_gone_back, f"the event clock went back to {changes.clock_us}")
        for start, one in reported.items():
            found = news.get(start, set())
            demand(one.labels == len(found), f"{one} has {len(found)} labels")
            demand(bool(found or self.held.get(start)), f"{one} never had a label")
            was_over = self._is_over(start, self.clock_us)
            is_over = self._is_over(start, changes.clock_us)
            expected = "reopened" if was_over else "closed" if is_over else "open"
            demand(one.state == expected, f"{one} is {expected}")
            demand(one.state != "closed" or start not in self.closed, f"{one} was closed already")
            self.held.setdefault(start, set()).update(found)
            self.closed |= {start} if is_over else set()
        self.clock_us = changes.clock_us
        self._demand_closed(self.clock_us)
        states = [one.state for one in reported.values()]
        return states.count("closed"), states.count("reopened")

    def verify(self, paths: Iterable[Path], *, clock_us: int | None) -> None:
        """Demand that all labels were reported, and all windows that are over at this clock."""
        expected = self._grouped(paths)
        found = {start: held for start, held in self.held.items() if held}
        demand(found == expected, "the windows of a reader lack labels, or have some of others")
        self._demand_closed(clock_us)

    def _demand_closed(self, clock_us: int | None) -> None:
        over = {start for start in self.held if self._is_over(start, clock_us)}
        demand(over == self.closed, "windows are over and not closed, or closed and not over")

    def _grouped(self, paths: Iterable[Path]) -> dict[int, set[Path]]:
        grouped: dict[int, set[Path]] = {}
        for path in paths:
            start = bucket_us(path) // HOUR_US * HOUR_US
            while start > bucket_us(path) - self.window.size_us:
                if start % self.window.slide_us == 0:
                    grouped.setdefault(start, set()).add(path)
                start -= HOUR_US
        return grouped

    def _is_over(self, start: int, clock_us: int | None) -> bool:
        end = start + self.window.size_us + self.window.lateness_us
        return clock_us is not None and end <= clock_us

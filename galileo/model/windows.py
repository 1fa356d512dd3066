"""Tumbling and sliding windows over the event time of labels, and the progress of a reader.

Windows are numbered: window k begins k times `slide_us` after 1970-01-01 UTC, or before it if k is
negative. If `slide_us` is a whole number of weeks, it begins so long after Monday 1969-12-29, as
windows of `aggregate` do. A label belongs to the windows that contain the *start* of its time
bucket, whatever the bucket's width: to exactly one tumbling window, and to size / slide sliding
ones.

The *event clock* is the start of the newest time bucket that was committed. It depends on data
alone, not on the clock of a machine. A window closes once the clock is `lateness` past its end.
Labels for a window that was reported closed are late.

Labels can be withdrawn: what is in a dataset with a key is corrected and deleted, and deletions
withdraw labels of other datasets. A withdrawal changes the windows of the label, as a label does,
so one in a closed window reopens it.

All of this is a pure function (`advance_windows`) of the reader's progress (`WindowProgress`), the
labels of an answer and those that it withdraws, and the clock. Nothing here loops over labels or
windows.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.errors import InputError
from galileo.model.times import (
    MICROS,
    TIME_MAX_US,
    TIME_MIN_US,
    Duration,
    duration_text,
    first_window_us,
    seconds,
)

SIZE_MAX_US = 36_525 * 86_400 * MICROS
"""A hundred years."""
OVERLAP_MAX = 512
"""Windows that one label may belong to."""
OPEN_MAX = 4_096
"""Windows that can be open between the event clock and the oldest open one, by size, slide and
lateness.
"""
OPEN_WINDOWS_MAX = 16_384
"""Open windows with labels in the progress of a reader; see `advance_windows`."""

Kind: TypeAlias = Literal["tumbling", "sliding"]
State: TypeAlias = Literal["open", "closed", "reopened"]
Numbers: TypeAlias = npt.NDArray[np.int64]
Run: TypeAlias = tuple[int, int]
"""Number of the first window, and the length of the run."""

STATES: tuple[State, ...] = ("open", "closed", "reopened")
_OPEN, _CLOSED, _REOPENED = range(3)
_SPREAD = 4
_NONE: Numbers = np.zeros(0, dtype=np.int64)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Window:
    """The windows of a continuous query; made by `tumbling` or `sliding`.

    Attributes:
        kind: "tumbling" windows follow each other, "sliding" ones overlap.
        size_us: of each, microseconds.
        slide_us: from the start of one to the start of the next; of tumbling windows their size.
        lateness_us: for how long past its end a window stays open, by the event clock.
        over: which time of a label counts; "event", the time of its observations.

    Raises:
        InputError: a value is out of range.

    Example:
        >>> hourly = galileo.Window.tumbling("1h", lateness="10m")
        >>> ccq = client.submit("weather", window=hourly)
        >>> [change.labels for change in ccq.windows]
        [1, 1, 2]
    """

    kind: Kind
    size_us: int
    slide_us: int
    lateness_us: int = 0
    over: str = "event"

    def __post_init__(self) -> None:
        if self.over != "event":
            raise InputError(
                f"expected windows over 'event' time, got {self.over!r}; labels carry the time of "
                "their observations and not that of their commit, so no window can be over that",
                expected="event_time",
            )
        sizes = (self.size_us, self.slide_us, self.lateness_us)
        if any(type(size) is not int for size in sizes):
            raise InputError(
                f"expected whole microseconds as sizes of windows, got {sizes}",
                expected="microseconds",
            )
        if self.kind not in ("tumbling", "sliding"):
            raise InputError(
                f"expected 'tumbling' or 'sliding' windows, got {self.kind!r}",
                expected="window_kind",
            )
        if not 0 < self.size_us <= SIZE_MAX_US or not 0 <= self.lateness_us <= SIZE_MAX_US:
            raise InputError(
                "expected windows, and a lateness, of at most a hundred years, got "
                f"{_text(self.size_us)} and {_text(self.lateness_us)}",
                expected="window_size",
            )
        if not 0 < self.slide_us <= self.size_us or self.size_us % self.slide_us:
            raise InputError(
                "expected a size that is a whole multiple of the slide, so that each label is in "
                f"as many windows as any other; got {_text(self.size_us)} and a slide of "
                f"{_text(self.slide_us)}",
                expected="multiple_of_slide",
            )
        if self.kind == "tumbling" and self.slide_us != self.size_us:
            raise InputError(
                "expected tumbling windows without a slide; ask for sliding ones",
                expected="no_slide",
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.overlap > OVERLAP_MAX:
            raise InputError(
                f"expected at most {OVERLAP_MAX} windows around each label, got {self.overlap} by "
                f"a size of {_text(self.size_us)} and a slide of "
                f"{_text(self.slide_us)}",
                expected="overlap",
                bound=OVERLAP_MAX,
            )
        open_at_once = (self.size_us + self.lateness_us) // self.slide_us
        if open_at_once > OPEN_MAX:
            raise InputError(
                f"expected at most {OPEN_MAX} windows that are open at once, got {open_at_once} "
                "by the size and lateness together; make windows larger or the lateness smaller",
                expected="open_windows",
                bound=OPEN_MAX,
            )

    @classmethod
    def tumbling(
        cls, size: Duration, *, lateness: Duration | None = None, over: str = "event"
    ) -> Window:
        """Windows that follow each other, such as the hours of the day.

        Example:
            >>> galileo.Window.tumbling("1h").size_us
            3600000000
        """
        return cls("tumbling", _micros(size), _micros(size), _lateness(lateness), over)

    @classmethod
    def sliding(
        cls,
        size: Duration,
        *,
        slide: Duration,
        lateness: Duration | None = None,
        over: str = "event",
    ) -> Window:
        """Windows of `size`, one beginning each `slide`, such as the last six hours each hour.

        Example:
            >>> galileo.Window.sliding("6h", slide="1h").overlap
            6
        """
        return cls("sliding", _micros(size), _micros(slide), _lateness(lateness), over)

    @classmethod
    def parse(cls, text: str, *, lateness: Duration | None = None) -> Window:
        """The windows of "tumbling:SIZE" or "sliding:SIZE/SLIDE", as the command line has them.

        Raises:
            InputError: the text says something else.

        Example:
            >>> galileo.Window.parse("sliding:6h/1h") == galileo.Window.sliding("6h", slide="1h")
            True
        """
        kind, _, sizes = text.partition(":")
        size, slash, slide = sizes.partition("/")
        if kind == "tumbling" and size and not slash:
            return cls.tumbling(size, lateness=lateness)
        if kind == "sliding" and size and slide:
            return cls.sliding(size, slide=slide, lateness=lateness)
        raise InputError(
            f"expected windows such as 'tumbling:1h' or 'sliding:6h/1h', got {text!r}",
            expected="window",
        )

    @classmethod
    def from_json(cls, text: str) -> Window:
        """The inverse of `to_json`.

        Raises:
            InputError: the text is none of it.

        Example:
            >>> galileo.Window.from_json(galileo.Window.tumbling("1h").to_json()).kind
            'tumbling'
        """
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(
                f"expected windows as JSON, as Window.to_json gives them, got {text[:200]!r}",
                expected="json",
            ) from error

    def to_json(self) -> str:
        """As JSON text, which `from_json` reads.

        Example:
            >>> galileo.Window.tumbling("1h").to_json()[:1]
            '{'
        """
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"), sort_keys=True)

    def __str__(self) -> str:
        slide = f"/{_text(self.slide_us)}" if self.kind == "sliding" else ""
        late = f", lateness {_text(self.lateness_us)}" if self.lateness_us else ""
        return f"{self.kind}:{_text(self.size_us)}{slide}{late}"

    @property
    def overlap(self) -> int:
        """How many windows each label belongs to."""
        return self.size_us // self.slide_us

    def counts(self, buckets: npt.NDArray[np.int64]) -> tuple[Numbers, Numbers]:
        """Which windows some labels belong to, and how many of them to each.

        Args:
            buckets: starts of the labels' time buckets, microseconds, in any order.

        Returns:
            Numbers of the windows that have any, ascending, and as many counts.

        Example:
            >>> numbers, counts = galileo.Window.tumbling("1h").counts(labels.buckets)
            >>> counts.tolist()
            [1, 1, 2]
        """
        last, sizes = _count_distinct((buckets - self._first_us) // self.slide_us)
        numbers = runs_to_array(_windows_over(last, self.overlap))
        sums = np.concatenate(([0], np.cumsum(sizes)))
        until = np.searchsorted(last, numbers + self.overlap - 1, side="right")
        counts: Numbers = sums[until] - sums[np.searchsorted(last, numbers)]
        return numbers, counts

    def last_closed(self, clock_us: int) -> int:
        """Number of the last window that is over at this clock; those before it are over, too.

        Example:
            >>> galileo.Window.tumbling("1h").last_closed(7_200_000_000)
            1
        """
        return (clock_us - self._first_us - self.size_us - self.lateness_us) // self.slide_us

    @property
    def _first_us(self) -> int:
        return first_window_us(self.slide_us)

    def is_reachable(self, progress: WindowProgress) -> bool:
        """Whether the progress is possible for these windows: its times are valid.

        Example:
            >>> from galileo.model.windows import WindowProgress
            >>> galileo.Window.tumbling("1h").is_reachable(WindowProgress())
            True
        """
        first, last = TIME_MIN_US - self.size_us, TIME_MAX_US
        starts = [
            self._first_us + n * self.slide_us
            for at, count in progress.open
            for n in (at, at + count - 1)
        ]
        clock = [] if progress.clock_us is None else [progress.clock_us]
        return all(first <= moment <= last for moment in (*starts, *clock))

    def next_close_us(self, progress: WindowProgress) -> int | None:
        """The clock at which the first open window of a reader closes; None without one.

        Example:
            >>> from galileo.model.windows import WindowProgress
            >>> galileo.Window.tumbling("1h").next_close_us(WindowProgress()) is None
            True
        """
        if not progress.open:
            return None
        return (
            self._first_us + progress.open[0][0] * self.slide_us + self.size_us + self.lateness_us
        )


@dataclass(frozen=True, slots=True, order=True)
class ClockStep:
    """The commits of a partition up to `sequence` include a bucket that begins at `bucket_us`."""

    partition: int
    sequence: int
    bucket_us: int


@dataclass(frozen=True, slots=True)
class WindowProgress:
    """How far a reader has followed the windows of a query; part of its token.

    Attributes:
        clock_us: the event clock; None: none yet.
        open: open windows with labels, as ascending runs of numbers.
    """

    clock_us: int | None = None
    open: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowChange:
    """The change of one window by an update; it contains `start_us`, and not `end_us`.

    Attributes:
        start_us, end_us: microseconds since 1970-01-01 UTC.
        labels: of the update that belong to it; 0 if it only closes.
        state: "open": more labels are expected. "closed": its end has passed on the event clock;
            reported once. "reopened": it was reported closed before, and these labels or
            withdrawals are late; it is closed again with this update.
        withdrawn: labels in `withdrawn` of the update that belong to it. In a keyed dataset, a
            label that replaces one with its key is not among them.
    """

    start_us: int
    end_us: int
    labels: int
    state: State
    withdrawn: int = 0

    @property
    def start(self) -> dt.datetime:
        """As a time in UTC, which begins with the year 1."""
        return instant(self.start_us)

    @property
    def end(self) -> dt.datetime:
        """As a time in UTC; the window does not contain it."""
        return instant(self.end_us)

    @property
    def is_closed(self) -> bool:
        """Whether the window is closed after this update."""
        return self.state != "open"


@dataclass(frozen=True, slots=True, eq=False)
class WindowChanges:
    """The changes of windows by an answer, in columns, ascending by start.

    Attributes:
        clock_us: the event clock after the answer; None: none yet.
        size_us: of each window.
        starts: microseconds, shape (n,).
        labels: of the answer in each, shape (n,).
        withdrawn: by the answer in each, shape (n,).
        states: indexes in `STATES`, shape (n,).
    """

    clock_us: int | None
    size_us: int
    starts: Numbers
    labels: Numbers
    withdrawn: Numbers
    states: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def late(self) -> int:
        """Number of late labels; of sliding windows once for each."""
        return int(self.labels[self.states == _REOPENED].sum())

    def to_list(self) -> list[WindowChange]:
        columns = (self.starts, self.labels, self.states, self.withdrawn)
        return [
            WindowChange(start, start + self.size_us, labels, STATES[state], withdrawn)
            for start, labels, state, withdrawn in zip(*(c.tolist() for c in columns), strict=True)
        ]


def advance_windows(
    window: Window,
    progress: WindowProgress,
    *,
    buckets: npt.NDArray[np.int64],
    clock_us: int | None,
    more: bool,
    withdrawn: npt.NDArray[np.int64] = _NONE,
) -> tuple[WindowProgress, WindowChanges]:
    """Apply the labels of an answer, and those that it withdraws, to the windows of a reader.

    While more labels are available at once, the clock stands still: the reader reads a backlog, in
    pieces that are not cut by time, and nothing in it is late. The clock moves nevertheless if more
    than `OPEN_WINDOWS_MAX` windows would be open.

    Args:
        window: of the query.
        progress: before the answer.
        buckets: of the answer's labels, microseconds.
        clock_us: the event clock at the answer's cursor, or somewhat less; None: not known.
        more: whether more labels are available at once.
        withdrawn: buckets of the labels that the answer withdraws, microseconds.

    Returns:
        The progress after the answer, and the changes.
    """
    first_us = first_window_us(window.slide_us)
    touched = [window.counts(buckets), window.counts(withdrawn)]
    held = [runs_to_array(progress.open), *(of_some for of_some, _ in touched)]
    numbers = np.unique(np.concatenate(held))
    labels, taken_back = np.zeros((2, len(numbers)), dtype=np.int64)
    for column, (of_some, counts) in zip((labels, taken_back), touched, strict=True):
        column[np.searchsorted(numbers, of_some)] = counts
    after_us = progress.clock_us
    if not more or len(numbers) > OPEN_WINDOWS_MAX:
        # No window with labels, of an earlier answer either, begins later than all of its labels.
        begun = first_us + numbers[-1:] * window.slide_us
        known = [progress.clock_us, clock_us, *begun.tolist()]
        known += [int(buckets.max())] if len(buckets) else []
        after_us = max((bound_us for bound_us in known if bound_us is not None), default=None)
    was_over, is_over = _over(window, numbers, progress.clock_us), _over(window, numbers, after_us)
    states = np.where(was_over, _REOPENED, np.where(is_over, _CLOSED, _OPEN)).astype(np.uint8)
    shown = is_over | (labels > 0) | (taken_back > 0)
    starts = first_us + numbers[shown] * window.slide_us
    columns = (starts, labels[shown], taken_back[shown], states[shown])
    changes = WindowChanges(after_us, window.size_us, *columns)
    return WindowProgress(after_us, array_to_runs(numbers[~is_over])), changes


def instant(value_us: int) -> dt.datetime:
    """Microseconds since 1970-01-01 as a time in UTC."""
    return _EPOCH + dt.timedelta(microseconds=value_us)


def _over(window: Window, numbers: Numbers, clock_us: int | None) -> npt.NDArray[np.bool_]:
    if clock_us is None:
        return np.zeros(len(numbers), dtype=np.bool_)
    over: npt.NDArray[np.bool_] = numbers <= window.last_closed(clock_us)
    return over


def _count_distinct(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """The distinct numbers, ascending, and the count of each; without a sort if their range is
    small.
    """
    if len(numbers) == 0 or np.ptp(numbers) > _SPREAD * len(numbers):
        distinct, counts = np.unique(numbers, return_counts=True)
        return distinct, counts
    first = int(numbers.min())
    often = np.bincount(numbers - first)
    places = np.flatnonzero(often)
    return places + first, often[places]


def _windows_over(last: Numbers, overlap: int) -> tuple[Run, ...]:
    """The windows that end, for each number of a sorted array, with it; `overlap` for each."""
    breaks = np.flatnonzero(np.diff(last) > overlap)
    firsts = last[np.concatenate(([0], breaks + 1))] if len(last) else last
    ends = last[np.append(breaks, len(last) - 1)] if len(last) else last
    counts = ends - firsts + overlap
    return tuple(zip((firsts - overlap + 1).tolist(), counts.tolist(), strict=True))


def runs_to_array(runs: tuple[Run, ...]) -> Numbers:
    """The numbers of ascending runs."""
    if not runs:
        return np.zeros(0, dtype=np.int64)
    firsts, counts = np.array(runs, dtype=np.int64).T
    ends = np.cumsum(counts)
    steps: Numbers = np.repeat(firsts - (ends - counts), counts)
    return steps + np.arange(ends[-1], dtype=np.int64)


def array_to_runs(numbers: Numbers) -> tuple[Run, ...]:
    """Ascending, distinct numbers as few runs."""
    if len(numbers) == 0:
        return ()
    starts = np.flatnonzero(np.append(True, np.diff(numbers) != 1))
    counts = np.diff(np.append(starts, len(numbers)))
    return tuple(zip(numbers[starts].tolist(), counts.tolist(), strict=True))


def _micros(value: Duration) -> int:
    return round(seconds(value) * MICROS)


def _lateness(value: Duration | None) -> int:
    return 0 if value is None or value == 0 else _micros(value)


def _text(value_us: int) -> str:
    return duration_text(value_us / MICROS)

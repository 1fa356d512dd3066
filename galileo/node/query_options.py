"""Limits of the queries that a node answers: how much at a time, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from galileo.samplers import OBSERVED_ROWS_MAX


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """Limits of scans, reads, samples and analytics.

    Attributes:
        labels_per_part: labels of one part of an answer.
        step_bytes_max: bytes of labels that one step of a scan makes; an answer in flight takes a
            few times this.
        step_s: seconds after which a step returns what it has, so that others can run.
        small_bytes_max: bytes of labels up to which an answer of a node is small: one message has
            it, and the node that was asked passes it on.
        inline_s: seconds that a scan may run in the event loop before it goes on in a thread.
        rows_per_piece: observations that are read together, unless one commit alone has more; a
            piece has less than twice as many.
        rows_held_min: observations beyond those wanted that are held before the first of them are
            selected.
        parts_waiting_max: parts of one answer that wait for its reader; the scans behind them wait,
            too.
        window_labels_max: labels of commits that are sampled together; one commit may have more.
        merged_labels_max: sampled labels that one node holds to merge them.
        observed_rows_max: observations that a sampler is shown together.
        moved_retry_timeout_s: seconds for which a partition that is being moved is looked for.
        failover_timeout_s: seconds for which a leader of a replicated partition is looked for.
        answers_max: streams of labels at a time; each holds a few chunks while its reader is slow.
        analytics_waiting_max: pieces of analytics that a node works at or that wait for a thread.
    """

    labels_per_part: int = 32_768
    step_bytes_max: int = 4 << 20
    step_s: float = 0.025
    small_bytes_max: int = 512 << 10
    inline_s: float = 0.002
    rows_per_piece: int = 65_536
    rows_held_min: int = 65_536
    parts_waiting_max: int = 4
    window_labels_max: int = 524_288
    merged_labels_max: int = 4_194_304
    observed_rows_max: int = OBSERVED_ROWS_MAX
    moved_retry_timeout_s: float = 5.0
    failover_timeout_s: float = 30.0
    answers_max: int = 256
    analytics_waiting_max: int = 64


DEFAULTS = QueryOptions()

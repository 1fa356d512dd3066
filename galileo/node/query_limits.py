"""Limits of the queries that a node answers: how much at a time, and for how long."""

from __future__ import annotations

LABELS_PER_PART = 32_768
"""Labels of one part of an answer."""
STEP_BYTES_MAX = 4 << 20
"""Bytes of labels that one step of a scan makes; an answer in flight takes a few times this."""
STEP_S = 0.025
"""Seconds after which a step returns what it has, so that others can run."""
SMALL_BYTES_MAX = 512 << 10
"""Bytes of labels up to which an answer of a node is small: one message has it, and the node that
was asked passes it on."""
INLINE_S = 0.002
"""Seconds that a scan may run in the event loop before it goes on in a thread."""
ROWS_PER_PIECE = 65_536
"""Observations that are read together, unless one commit alone has more; a piece has less than
twice as many."""
ROWS_HELD_MIN = 65_536
"""Observations beyond those wanted that are held before the first of them are selected."""
PARTS_WAITING_MAX = 4
"""Parts of one answer that wait for its reader; the scans behind them wait, too."""
WINDOW_LABELS_MAX = 524_288
"""Labels of commits that are sampled together; one commit may have more."""
MERGED_LABELS_MAX = 4_194_304
"""Sampled labels that one node holds to merge them."""
MOVED_RETRY_S = 5.0
"""Seconds for which a partition that is being moved is looked for."""
FAILOVER_RETRY_S = 30.0
"""Seconds for which a leader of a replicated partition is looked for."""
ANSWERS_MAX = 256
"""Streams of labels at a time; each holds a few chunks while its reader is slow."""
ANALYTICS_WAITING_MAX = 64
"""Pieces of analytics that a node works at or that wait for a thread."""

"""What the paper says of itself, each with its place in it; nothing here is of ours.

C. Tolooee, M. Malensek, S. L. Pallickara: "A Framework for Managing Continuous Query Evaluations
over Voluminous, Multidimensional Datasets", International Conference on Cloud and Autonomic
Computing (CAC), 2014, pages 73 to 82. Only what it states as a number is repeated here; curves of
its plots are not read off.
"""

from __future__ import annotations

CITATION = (
    'C. Tolooee, M. Malensek, S. L. Pallickara: "A Framework for Managing Continuous Query '
    'Evaluations over Voluminous, Multidimensional Datasets", CAC 2014, pages 73 to 82'
)
NODES = 75
"""Machines of its cluster."""
LABELS, COMPACTED_B, COMPRESSED_B = 100_000, 27.4, 7.2
"""Table I: results, and bytes of a label whose time and values are compacted, and with LZW."""
CCQS, MEMORY_MORE = 10, 0.1171
"""Fig. 7: continuous queries, and by how much the memory of all nodes grew with them."""
RETRIEVAL_S = {1_000: 0.101, 100_000: 0.109, 1_000_000: 0.178}
"""Table II: seconds of a retrieval, by the number of streamed blocks."""
STREAM_INTERVALS_S = (1.0, 5.0, 10.0)
"""Table II: its update intervals."""
RESULTS_MAX = 10_000
"""Fig. 6: the most results of a query."""

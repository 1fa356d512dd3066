"""The metrics of a node: which there are, and how measurements become Prometheus' text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from galileo.histogram import DurationHistogram

Kind: TypeAlias = Literal["gauge", "counter", "histogram", "summary"]
Value: TypeAlias = "float | DurationHistogram | tuple[int, float]"
"""A number; of a histogram its timings; of a summary how many there were and their sum."""
Measured: TypeAlias = "tuple[str, tuple[str, ...], Value]"
"""Name of the metric, values of its labels, value."""


@dataclass(frozen=True, slots=True)
class MetricEntry:
    """One metric; units and kind follow Prometheus' conventions for names.

    Attributes:
        name: without the `_total` that a counter's samples have.
        help: what it counts or measures, in one sentence without an end.
        labels: names of its labels.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name that expressions use."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_CCQ = ("ccq", "dataset")
_CHANNEL = ("channel",)
_DATASET = ("dataset",)
_PARTITION = ("dataset", "partition")
DEFINITIONS = (
    # --- of the node
    MetricEntry(
        "galileo_build_info",
        "gauge",
        "1; the labels say what runs here",
        ("version", "node", "group", "cluster"),
    ),
    MetricEntry("galileo_ready", "gauge", "1 while the node is ready, as /ready reports it"),
    MetricEntry(
        "galileo_loop_lag_seconds",
        "histogram",
        "How late the node's event loop came to a task that was due",
    ),
    MetricEntry(
        "galileo_events_waiting", "gauge", "Events that wait for the continuous-query machine"
    ),
    MetricEntry("galileo_calls_under_way", "gauge", "Calls that are being answered", ("method",)),
    MetricEntry(
        "galileo_calls_refused",
        "counter",
        "Calls that were refused by who called or how much it used, by kind of the error",
        ("kind",),
    ),
    MetricEntry(
        "galileo_audit_failures", "counter", "Events that could not be written to the audit log"
    ),
    MetricEntry(
        "galileo_peers", "gauge", "Other nodes, by whether they are heard from", ("state",)
    ),
    MetricEntry("galileo_elections", "counter", "Elections of nodes for CCQs that this node held"),
    MetricEntry("galileo_elections_failed", "counter", "Elections that found no node for the CCQ"),
    MetricEntry("galileo_memory_available_bytes", "gauge", "Memory that the node may still take"),
    MetricEntry(
        "galileo_disk_free_bytes", "gauge", "Free on the file system of the node's directory"
    ),
    MetricEntry("galileo_disk_size_bytes", "gauge", "Size of the file system of the directory"),
    # --- of replicated partitions
    MetricEntry(
        "galileo_replicas",
        "gauge",
        "Partitions of which this node has a copy, by whether it leads, follows, or still learns",
        ("role",),
    ),
    MetricEntry(
        "galileo_under_replicated",
        "gauge",
        "Partitions of this node with too few copies that are up to date, or without a leader",
    ),
    MetricEntry(
        "galileo_leaderless",
        "gauge",
        "Partitions of which this node has a copy and hears no leader",
    ),
    MetricEntry(
        "galileo_replica_lag_commits",
        "gauge",
        "Commits that the copy which is furthest behind this node's leaders lacks of a dataset",
    ),
    MetricEntry("galileo_terms_led", "counter", "Elections of a partition's leader that it won"),
    MetricEntry("galileo_replica_bytes_sent", "counter", "Bytes of commits sent to other copies"),
    MetricEntry(
        "galileo_logs_set_aside", "counter", "Damaged logs that were copied again from others"
    ),
    MetricEntry(
        "galileo_replicas_diverged",
        "gauge",
        "Copies whose commits differ from those of this node, which leads them, without damage",
    ),
    # --- of stored bytes
    MetricEntry(
        "galileo_damaged_files",
        "gauge",
        "Damaged files that are known and that no other copy has replaced",
    ),
    MetricEntry("galileo_scrub_bytes", "counter", "Bytes that the scrub has read from the disk"),
    MetricEntry("galileo_scrub_damages", "counter", "Damaged files that the scrub has found"),
    MetricEntry(
        "galileo_scrub_age_seconds",
        "gauge",
        "All that was stored so long ago was read again since",
    ),
    # --- of all continuous queries that the node coordinates
    MetricEntry(
        "galileo_ccqs",
        "gauge",
        "CCQs that this node coordinates: all, those whose cycles take longer than their interval, "
        "those that fail",
        ("state",),
    ),
    MetricEntry("galileo_cycle_seconds", "histogram", "How long jobs of processing cycles took"),
    MetricEntry("galileo_cycles_failed", "counter", "Jobs of processing cycles that failed"),
    MetricEntry(
        "galileo_lag_seconds",
        "histogram",
        "From when commits may have lain beyond a cache until they were taken into it",
    ),
    MetricEntry("galileo_labels_matched", "counter", "Labels that cycles found and cached"),
    MetricEntry("galileo_labels_delivered", "counter", "Labels in answers to fetches"),
    MetricEntry(
        "galileo_labels_served_again",
        "counter",
        "Delivered labels that an earlier answer had passed already",
    ),
    MetricEntry(
        "galileo_labels_late", "counter", "Delivered labels of windows that were reported as closed"
    ),
    MetricEntry("galileo_cache_bytes", "gauge", "Memory of all caches"),
    MetricEntry(
        "galileo_cache_held_bytes", "gauge", "Of that, caches of CCQs that others coordinate by now"
    ),
    MetricEntry("galileo_cache_limit_bytes", "gauge", "What all caches may take: cache_bytes_max"),
    MetricEntry("galileo_spilled_bytes", "gauge", "Cached labels in files"),
    MetricEntry("galileo_spilled_limit_bytes", "gauge", "What they may take: spill_bytes_max"),
    MetricEntry("galileo_ccqs_shown", "gauge", "CCQs of which there are metrics of their own"),
    # --- of single continuous queries
    MetricEntry(
        "galileo_ccq_frontier_age_seconds",
        "gauge",
        "Since when something may lie beyond the cache; 0 while nothing does",
        _CCQ,
    ),
    MetricEntry("galileo_ccq_interval_seconds", "gauge", "The update interval as submitted", _CCQ),
    MetricEntry(
        "galileo_ccq_lag_seconds",
        "histogram",
        "From when commits may have lain beyond the cache until they were taken into it",
        _CCQ,
    ),
    MetricEntry("galileo_ccq_cycle_seconds", "summary", "Processing cycles that are over", _CCQ),
    MetricEntry("galileo_ccq_cycles_failed", "counter", "Cycles that came to nothing", _CCQ),
    MetricEntry("galileo_ccq_failing", "gauge", "1 while fetches end with an error", _CCQ),
    MetricEntry("galileo_ccq_labels_matched", "counter", "Labels that cycles found", _CCQ),
    MetricEntry("galileo_ccq_labels_delivered", "counter", "Labels in answers to fetches", _CCQ),
    MetricEntry(
        "galileo_ccq_labels_served_again",
        "counter",
        "Delivered labels that an earlier answer had passed already",
        _CCQ,
    ),
    MetricEntry(
        "galileo_ccq_labels_late",
        "counter",
        "Delivered labels of windows that were reported as closed",
        _CCQ,
    ),
    MetricEntry("galileo_ccq_cache_bytes", "gauge", "Memory of the cache", _CCQ),
    MetricEntry("galileo_ccq_spilled_bytes", "gauge", "Cached labels in files", _CCQ),
    # --- of channels
    MetricEntry(
        "galileo_channel_execution_seconds",
        "histogram",
        "How long executions took, each of one partition of a channel",
    ),
    MetricEntry(
        "galileo_channel_subscriptions", "gauge", "Subscriptions that this node matches", _CHANNEL
    ),
    MetricEntry("galileo_channel_index_bytes", "gauge", "Memory of their index", _CHANNEL),
    MetricEntry(
        "galileo_channel_behind_commits",
        "gauge",
        "Commits of the dataset that are not matched yet, of the partition that is furthest behind",
        _CHANNEL,
    ),
    MetricEntry(
        "galileo_channel_failing", "gauge", "Partitions that are not executed now", _CHANNEL
    ),
    # --- of stored data
    MetricEntry("galileo_dataset_rows", "gauge", "Observations that this node stores", _DATASET),
    MetricEntry("galileo_dataset_paths", "gauge", "Paths in them", _DATASET),
    MetricEntry("galileo_dataset_disk_bytes", "gauge", "Length of the journals", _DATASET),
    MetricEntry("galileo_dataset_graph_bytes", "gauge", "Memory of the metadata graph", _DATASET),
    MetricEntry(
        "galileo_dataset_held_bytes",
        "gauge",
        "Files that retention would delete if no reader held them, at the last check",
        _DATASET,
    ),
    MetricEntry(
        "galileo_commit_log_fsync_seconds",
        "histogram",
        "How long the disk took to make groups of commits durable in the commit log",
    ),
    MetricEntry("galileo_partitions_shown", "gauge", "Partitions of which there are metrics"),
    MetricEntry("galileo_partition_sequence", "gauge", "Sequence of the newest commit", _PARTITION),
    MetricEntry(
        "galileo_partition_fsync_seconds",
        "histogram",
        "How long the disk took to sync a segment",
        _PARTITION,
    ),
    MetricEntry(
        "galileo_partition_waiting_commits", "gauge", "Commits that wait for the disk", _PARTITION
    ),
    MetricEntry(
        "galileo_partition_stopped", "gauge", "1 while the partition takes no writes", _PARTITION
    ),
)
BY_NAME: Mapping[str, MetricEntry] = {one.name: one for one in DEFINITIONS}


class _Measurements(Collector):
    def __init__(self, measured: Iterable[Measured]) -> None:
        self._families: dict[str, list[tuple[tuple[str, ...], Value]]] = {
            one.name: [] for one in DEFINITIONS
        }
        for name, labels, value in measured:
            self._families[name].append((labels, value))

    def collect(self) -> Iterator[Metric]:
        for name, samples in self._families.items():
            yield _family(BY_NAME[name], samples)


def _family(made: MetricEntry, samples: Iterable[tuple[tuple[str, ...], Value]]) -> Metric:
    family: Any = _FAMILIES[made.kind](made.name, made.help, labels=made.labels)
    for labels, value in samples:
        if isinstance(value, DurationHistogram):
            family.add_metric(labels, value.cumulative(), value.sum_s)
        elif isinstance(value, tuple):
            family.add_metric(labels, value[0], value[1])
        else:
            family.add_metric(labels, float(value))
    metric: Metric = family
    return metric


_FAMILIES: Mapping[str, type] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
    "summary": SummaryMetricFamily,
}


def exposed(measured: Iterable[Measured], *, accept: str) -> tuple[bytes, str]:
    """Measurements, and those of the process itself, as text.

    Args:
        measured: of metrics that are defined here.
        accept: the HTTP header that says which format is understood.

    Returns:
        The text and its content type.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Measurements(measured))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type

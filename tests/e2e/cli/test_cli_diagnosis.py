"""Each finding arises from what it is about, and from nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from galileo.cli.cluster import answered_only, remarks
from galileo.cli.diagnosis import of_brokers, of_cluster, of_held, of_host
from galileo.cli.retention import held_results
from galileo.client.node_diagnostics import CcqProblem, NodeReport
from galileo.client.results import ClusterStatus, Delivery, NodeStatus
from galileo.dht.rack_spread import RackSpread
from galileo.dht.topology import SYSTEM
from galileo.model.broker import Broker, Into
from galileo.server.host_checks import REFUSED_S, HostCondition

STATUS = NodeStatus("a", "g", "10.0.0.1:7701", "up")
WELL = NodeReport(
    "a",
    "10.0.0.1:7701",
    status=STATUS,
    version="0.1.0",
    protocol=9,
    topology_fingerprint=7,
    clock_s=0.02,
    clock_within_s=0.01,
    disk_free_bytes=400 << 30,
    disk_size_bytes=500 << 30,
    sync_s=0.001,
    open_files=100,
    open_files_max=65_536,
    cache_bytes_max=1000,
    spill_bytes_max=1000,
    ccqs=5,
    ccqs_max=100,
)
HOST = HostCondition(400 << 30, 500 << 30, 0.001, 10, 65_536, "", "")
STOPPED = replace(STATUS, stopped=("rain/p3: writing failed",))


FEW_RACKS = RackSpread("g", racks=2, copies=3, busiest="a", relative_copies=1.2)
UNEVEN_RACKS = RackSpread("g", racks=3, copies=3, busiest="a", relative_copies=1.5)


def found(*reports: NodeReport) -> list[tuple[str, str, str]]:
    return [(one.severity, one.node, one.what) for one in of_cluster(reports)]


def test_diagnosis_of_a_healthy_cluster_is_empty() -> None:
    assert found(WELL, replace(WELL, name="b", clock_s=-1.0)) == []
    assert of_host("a", HOST) == []


@pytest.mark.parametrize(
    ("changed", "severity", "said"),
    [
        ({"failure": "connection refused"}, "problem", "does not answer at 10.0.0.1:7701"),
        ({"not_ready": (("disk", "full"),)}, "problem", "is not ready: disk: full"),
        ({"peers_dead": ("b", "c")}, "problem", "does not hear from b and c"),
        ({"status": STOPPED}, "problem", "takes no writes: rain/p3"),
        ({"status": replace(STATUS, state="draining")}, "warning", "is draining"),
        (
            {"status": replace(STATUS, under_replicated=(3, 7, SYSTEM))},
            "warning",
            "too few copies of partitions 3, 7, system",
        ),
        ({"status": replace(STATUS, pending=("restart it",))}, "warning", "restart it"),
        (
            {"status": replace(STATUS, damaged=("nam/p3: 1.segment at byte 64: wrong",))},
            "problem",
            "stored bytes are damaged: nam/p3: 1.segment at byte 64: wrong",
        ),
        (
            {"status": replace(STATUS, diverged=("partition 3 of nam: the copy of b differs",))},
            "problem",
            "no checksum fails: partition 3 of nam: the copy of b differs",
        ),
        (
            {"status": replace(STATUS, channels_failing=("alerts/p3: too many",))},
            "problem",
            "a channel is not executed: alerts/p3: too many",
        ),
        ({"disk_free_bytes": 40 << 30}, "warning", "are free on its disk"),
        ({"disk_free_bytes": 1 << 20}, "problem", "are free on its disk"),
        ({"sync_s": 0.2}, "warning", "took 200 ms"),
        ({"sync_s": REFUSED_S}, "problem", "cannot be written to"),
        ({"durability": "none"}, "warning", 'durability is "none"'),
        ({"open_files": 60_000}, "problem", "60,000 of 65,536 files"),
        ({"open_files_max": 1_024}, "warning", "may open only 1,024 files"),
        ({"java": "none was found"}, "problem", "no Java for Spark: none was found"),
        ({"containment": "no bwrap"}, "problem", "cannot be: no bwrap"),
        ({"status": replace(STATUS, cache_bytes=950)}, "warning", "caches are at 950 of 1,000"),
        ({"status": replace(STATUS, spilled_bytes=950)}, "warning", "spilled labels are at 950"),
        ({"ccqs": 95}, "warning", "continuous queries are at 95 of 100"),
        ({"troubled": (CcqProblem("q", "", "slow"),)}, "warning", "q is overloaded: slow"),
        (
            {"troubled": (CcqProblem("q", "sampler_failed", "1/0"),)},
            "problem",
            "sampler of q fails (sampler_failed): 1/0",
        ),
        ({"troubled": (CcqProblem("q", "bug", "?"),)}, "problem", "query q fails (bug)"),
    ],
)
def test_diagnosis_of_one_problem_is_one_finding(
    changed: dict[str, object], severity: str, said: str
) -> None:
    [(found_severity, node, what)] = found(replace(WELL, **changed))  # type: ignore[arg-type]
    assert (found_severity, node) == (severity, "a")
    assert said in what
    [finding] = of_cluster([replace(WELL, **changed)])  # type: ignore[arg-type]
    assert finding.means
    assert finding.advice
    assert not finding.advice.endswith(".")


@pytest.mark.parametrize(
    ("changed", "severity", "said"),
    [
        ({"version": "0.2.0"}, "problem", "(a: 0.1.0 with protocol 9, b: 0.2.0 with protocol 9)"),
        ({"protocol": 10}, "problem", "(a: 0.1.0 with protocol 9, b: 0.1.0 with protocol 10)"),
        ({"topology_fingerprint": 8}, "problem", "[cluster] tables of the nodes' files differ"),
        ({"clock_s": 60.02}, "warning", "clock of b is 60 s ahead of that of a"),
    ],
)
def test_diagnosis_compares_nodes(changed: dict[str, object], severity: str, said: str) -> None:
    other = replace(replace(WELL, name="b"), **changed)  # type: ignore[arg-type]
    [(found_severity, node, what)] = found(WELL, other)
    assert (found_severity, node) == (severity, "")
    assert said in what


def test_diagnosis_of_uneven_load_is_one_finding() -> None:
    busy = replace(WELL, relative_load=1.5)
    [(severity, node, what)] = found(busy, replace(WELL, name="b", relative_load=0.0))
    assert (severity, node) == ("warning", "")
    assert what == ("a holds 1.5 times its fair share, and 1 of 2 nodes store nothing")
    assert found(replace(WELL, relative_load=1.2)) == []


@pytest.mark.parametrize(
    ("spread", "said"),
    [
        (FEW_RACKS, "group g has 2 racks for 3 copies of each partition"),
        (UNEVEN_RACKS, "a has 1.5 times the copies that it would have without racks"),
    ],
)
def test_diagnosis_of_racks_is_one_finding_for_all_nodes(spread: RackSpread, said: str) -> None:
    [finding] = found(replace(WELL, rack_spread=spread), replace(WELL, rack_spread=spread))
    assert finding == ("warning", "", said)
    assert found(replace(WELL, rack_spread=replace(UNEVEN_RACKS, relative_copies=1.2))) == []


PUSHED = Broker("ops", Into("alerts"))
WORKS = Delivery(
    *("smog", "ops"),
    token="",
    worker="w",
    failure="",
    failed_at=None,
    retry_at=None,
    behind=0,
    gone=0,
)


@pytest.mark.parametrize(
    ("broker", "delivery", "said"),
    [
        (PUSHED, WORKS, []),
        (Broker("ops"), replace(WORKS, worker="", failure="503"), []),
        (PUSHED, replace(WORKS, failure="503"), ["'ops' of channel 'smog' gets nothing: 503"]),
        (PUSHED, replace(WORKS, worker=""), ["no worker pushes"]),
        (PUSHED, None, ["no worker pushes"]),
        (Broker("ops", Into("a"), paused="401"), replace(WORKS, worker=""), ["is paused: 401"]),
        (Broker("ops", paused="its definition cannot be read"), None, ["cannot be read"]),
    ],
)
def test_diagnosis_of_brokers(broker: Broker, delivery: Delivery | None, said: list[str]) -> None:
    found = of_brokers([broker], [] if delivery is None else [delivery])
    assert len(found) == len(said)
    assert all(words in finding.what for words, finding in zip(said, found, strict=True))


def test_diagnosis_of_results_that_brokers_hold_is_one_finding_for_all_nodes() -> None:
    def node(*held: tuple[int, list[str], float], stored: str = "smog") -> NodeStatus:
        parts = [
            {"partition": 3, "bytes": size, "readers": readers, "since": since}
            for size, readers, since in held
        ]
        return replace(STATUS, datasets=({"dataset": stored, "held_back": parts},))

    nodes = [
        node((2_000, ["mail"], 86_400.0), (500, ["mail", "ops"], 172_800.0)),
        node((1_000, ["mail"], 259_200.0)),
        node((9_000, ["query"], 0.0), stored="air"),
    ]
    held = held_results(nodes, ["smog"])
    assert [(one.broker, one.bytes) for one in held] == [("mail", 3_500), ("ops", 500)]
    mail, ops = of_held(held)
    assert "'mail' of channel 'smog' is behind: 3.5 kB" in mail.what
    assert "the oldest since 1970-01-02 00:00:00Z" in mail.what
    assert "galileo broker drop ops" in ops.advice
    [unknown] = of_held(held_results([node((700, [], 0.0))], ["smog"]))
    assert "are not deleted: 700 B" in unknown.what


def test_diagnosis_ignores_an_uncertain_clock() -> None:
    assert found(WELL, replace(WELL, name="b", clock_s=8.0, clock_within_s=4.0)) == []


def test_diagnosis_does_not_compare_unreachable_nodes() -> None:
    away = NodeReport("b", "10.0.0.2:7701", failure="no route")
    assert [severity for severity, *_ in found(WELL, away)] == ["problem"]


def test_diagnosis_of_one_dead_node_is_one_finding() -> None:
    away = NodeReport("c", "10.0.0.3:7701", failure="connection refused")
    here = [replace(WELL, name=name, peers_dead=("c",)) for name in "ab"]
    assert found(*here, away) == [
        ("problem", "c", "does not answer at 10.0.0.3:7701: connection refused")
    ]


def test_diagnosis_of_lost_commits_is_one_finding() -> None:
    knowing = replace(WELL, status=replace(STATUS, lost=("partition 3",)))
    [(severity, node, what)] = found(knowing, replace(knowing, name="b"))
    assert (severity, node, what) == ("problem", "", "commits are lost: partition 3")


def test_status_remarks_name_damage_and_copies_that_differ() -> None:
    node = replace(STATUS, damaged=("nam/p3: at byte 64",), diverged=("the copy of b differs",))
    words = remarks(ClusterStatus((node,)))
    assert f"{node.name}: damaged: nam/p3: at byte 64" in words
    assert f"{node.name}: copies differ: the copy of b differs" in words


def test_status_remarks_name_what_is_pending() -> None:
    node = replace(STATUS, pending=("restart it", "its removal waits: no node"))
    assert remarks(ClusterStatus((node,))).splitlines() == [
        "a: restart it",
        "a: its removal waits: no node",
    ]


def test_diagnosis_of_one_copy_is_one_finding_for_all_nodes() -> None:
    one = replace(WELL, replicas=1)
    assert found(one, replace(one, name="b")) == [("warning", "", "each partition has one copy")]
    assert found(replace(one, replicas=3)) == []


@pytest.mark.parametrize(
    ("pending", "advice"),
    [
        ("its removal waits: disk full", "galileo node remove a --undo"),
        ("this directory has another dataset 'nam'", "drop the dataset"),
    ],
)
def test_diagnosis_of_what_is_pending_says_what_ends_it(pending: str, advice: str) -> None:
    [finding] = of_cluster([replace(WELL, status=replace(STATUS, pending=(pending,)))])
    assert advice in finding.advice


def test_status_remarks_call_the_system_partition_by_its_name() -> None:
    node = replace(STATUS, under_replicated=(0, SYSTEM))
    assert remarks(ClusterStatus((node,))) == "a: too few copies of partitions 0, system"


def test_status_remarks_name_lost_commits_once() -> None:
    knowing = replace(STATUS, lost=("partition 3",))
    words = remarks(ClusterStatus((knowing, replace(knowing, name="b"))))
    assert words == "commits are lost: partition 3 (see galileo doctor)"


def test_diagnosis_lists_problems_before_warnings() -> None:
    slow, gone = replace(WELL, sync_s=0.2), replace(WELL, name="b", failure="gone")
    assert [one[:2] for one in found(slow, gone)] == [("problem", "b"), ("warning", "a")]


def test_diagnosis_of_a_host_finds_its_problems() -> None:
    bad = replace(HOST, sync_s=REFUSED_S, open_files_max=256, java="no", containment="no")
    assert [one.severity for one in of_host("a", bad)] == ["problem"] * 3 + ["warning"]


def test_status_of_an_unreachable_node_has_empty_cells() -> None:
    row = {"node": "a", "state": "unreachable", "rows": 0, "memory": "0 B", "group": "group-1"}
    known = {"node": "a", "state": "unreachable", "group": "group-1"}
    assert answered_only(replace(STATUS, state="unreachable"), row) == {
        **dict.fromkeys(row),
        **known,
    }
    assert answered_only(replace(STATUS, state="up"), row) == row

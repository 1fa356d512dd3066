"""The page, the dashboard and the alarms speak of metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from galileo.server.metrics import DEFINITIONS

PAGE = "docs/metrics.md"
DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana" / "galileo.json"
PANELS = {"row", "stat", "timeseries"}
WIDTH = 24
PROCESS = {
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_max_fds",
    "process_cpu_seconds_total",
}
_NAME = re.compile(r"\b(?:galileo|process)_[a-z_]+\b")


def exported() -> set[str]:
    """Every name that an expression may use."""
    names = set(PROCESS)
    for one in DEFINITIONS:
        parts = {"histogram": ("bucket", "count", "sum"), "summary": ("count", "sum")}
        names |= {f"{one.name}_{part}" for part in parts.get(one.kind, ())}
        if one.kind in ("gauge", "counter"):
            names.add(one.shown)
    return names


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def expressions(panels: list[dict[str, Any]]) -> Iterator[str]:
    for panel in panels:
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_metrics_names_follow_prometheus_conventions() -> None:
    names = [one.name for one in DEFINITIONS]
    assert len(set(names)) == len(names)
    for one in DEFINITIONS:
        assert re.fullmatch(r"galileo_[a-z]+(_[a-z]+)*", one.name)
        assert not one.name.endswith(("_total", "_count", "_sum", "_bucket")), one.name
        assert one.help
        assert not one.help.endswith("."), one.name
        if one.kind in ("histogram", "summary"):
            assert one.name.endswith(("_seconds", "_bytes")), f"{one.name} has no unit"
        assert not re.search(r"_(ms|mb|kb|minutes|percent)(_|$)", one.name), "no base unit"


def test_metrics_page_alarms_name_exported_metrics(page: Callable[[str], Any]) -> None:
    [alarms] = [text for _, text in page(PAGE).blocks("yaml") if "alert:" in text]
    named = set(_NAME.findall(alarms))
    assert named
    assert named <= exported()


def test_dashboard_names_exported_metrics() -> None:
    named = {name for expr in expressions(dashboard()["panels"]) for name in _NAME.findall(expr)}
    assert named <= exported(), named - exported()
    unseen = {one.shown for one in DEFINITIONS} - {
        re.sub(r"_(bucket|count|sum)$", "", n) for n in named
    }
    assert unseen <= {
        "galileo_build_info",
        "galileo_ccqs_shown",
        "galileo_partitions_shown",
        "galileo_ccq_interval_seconds",
        "galileo_ccq_cycles_failed_total",
        "galileo_ccq_failing",
        "galileo_ccq_spilled_bytes",
        "galileo_ccq_labels_matched_total",
        "galileo_ccq_labels_delivered_total",
        "galileo_ccq_labels_served_again_total",
        "galileo_ccq_labels_late_total",
        "galileo_dataset_rows",
        "galileo_dataset_paths",
        "galileo_dataset_graph_bytes",
    }


def test_dashboard_labels_are_those_of_the_metrics() -> None:
    labels = {one.shown: {*one.labels, "instance", "job", "le"} for one in DEFINITIONS}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            metrics = {
                re.sub(r"_(bucket|count|sum)$", "", n) for n in _NAME.findall(target["expr"])
            }
            known = set.intersection(*(labels.get(n, {"instance"}) for n in metrics))
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            used |= {
                w for by in re.findall(r" by \(([^)]*)\)", target["expr"]) for w in by.split(", ")
            }
            assert used <= known, target["expr"]


PROMISED = (
    *("ccq_frontier_age_seconds", "ccq_lag_seconds", "ccq_labels_matched", "ccq_labels_delivered"),
    *("ccq_labels_late", "ccq_labels_served_again", "ccq_cycle_seconds", "ccq_cycles_failed"),
    *("ccq_cache_bytes", "partition_sequence", "partition_fsync_seconds"),
    "commit_log_fsync_seconds",
    *("partition_waiting_commits", "loop_lag_seconds", "memory_available_bytes", "elections"),
)


@pytest.mark.parametrize("name", PROMISED)
def test_dashboard_shows_the_metrics_of_the_guarantees(name: str) -> None:
    shown = " ".join(expressions(dashboard()["panels"]))
    assert re.search(rf"galileo_{name}(_total|_bucket|_count|_sum)?\b", shown)


def test_dashboard_panels_are_complete() -> None:
    board = dashboard()
    assert board["title"] == "Galileo"
    assert board["id"] is None, "an id of one Grafana means nothing in another"
    assert board["schemaVersion"] >= 36
    panels = board["panels"]
    assert {panel["type"] for panel in panels} == PANELS
    assert len({panel["id"] for panel in panels}) == len(panels)
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels:
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["datasource"] == source
            assert panel["targets"]
            assert all(target["datasource"] == source for target in panel["targets"])
            refs = [target["refId"] for target in panel["targets"]]
            assert len(set(refs)) == len(refs)
    variables = {one["name"] for one in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(panels))) - {"__rate_interval", "__all"}
    assert used == variables


def test_dashboard_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= WIDTH
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("bracket", ["()", "{}", "[]"])
def test_dashboard_expressions_have_balanced_brackets(bracket: str) -> None:
    for expr in expressions(dashboard()["panels"]):
        assert expr.count(bracket[0]) == expr.count(bracket[1]), expr

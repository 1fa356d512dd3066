"""The dashboard by Grafana's own schema, and what it and the alarms ask by PromQL's own grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from galileo.server.metrics import DEFINITIONS

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana" / "galileo.json"
BESIDE = {
    "__inputs": "of an export; asks for what the importing Grafana is to choose",
    "__requires": "of an export; what the importing Grafana must have",
    "id": "null until a Grafana gives one, and then left out",
}
"""What Grafana reads beside its schema."""
OF_A_VARIABLE = "definition"
"""The Prometheus data source's own, of a variable; its schema has the same under `query`."""
TARGET = {"instance", "job"}
"""Labels that Prometheus gives to everything it scrapes."""
RATES = {"rate", "irate", "increase"}
NEVER_RECEDES = "galileo_partition_sequence"
"""A gauge, of which a rate makes sense all the same."""
PROCESS = {
    "process_resident_memory_bytes": "gauge",
    "process_open_fds": "gauge",
    "process_max_fds": "gauge",
    "up": "gauge",
}


def board() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def targets() -> Iterator[dict[str, Any]]:
    for panel in board()["panels"]:
        yield from panel.get("targets", ())


# --- Grafana's schema ------------------------------------------------------------------------


def lost(given: Any, kept: Any, at: str = "") -> Iterator[str]:
    """Where a value is not found again; what the schema does not know is dropped on reading."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            if name in kept:
                yield from lost(value, kept[name], f"{at}.{name}")
            else:
                yield f"{at}.{name}"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{at}[{number}]")
    elif given != kept:
        yield f"{at}: {given!r} became {kept!r}"


def lost_of(given: dict[str, Any]) -> set[str]:
    plugins.register_default_plugins()
    known = Dashboard.from_json(given)
    return set(lost(given, json.loads(json.dumps(known, cls=JSONEncoder))))


def test_dashboard_has_keys_of_the_grafana_schema_only() -> None:
    found = lost_of(board())
    assert {one for one in found if not one.startswith(".templating")} == {
        f".{name}" for name in BESIDE
    }
    assert all(one.endswith(f".{OF_A_VARIABLE}") for one in found if ".templating" in one)


@pytest.mark.parametrize(
    "damage",
    [
        lambda one: one["panels"][1].update(titel="misspelt"),
        lambda one: one["panels"][1]["gridPos"].update(z=1),
        lambda one: one["panels"][1]["targets"][0].update(expression="up"),
        lambda one: one["panels"][1]["fieldConfig"]["defaults"].update(units="s"),
        lambda one: one["templating"]["list"][0].update(kind="datasource"),
        lambda one: one.update(time_range="1h"),
    ],
)
def test_dashboard_check_notices_unknown_keys(damage: Callable[[Any], None]) -> None:
    damaged = board()
    damage(damaged)
    assert lost_of(damaged) - lost_of(board())


def test_dashboard_variables_are_defined() -> None:
    variables = {one["name"]: one for one in board()["templating"]["list"]}
    uids = {target["datasource"]["uid"] for target in targets()}
    uids |= {one["datasource"]["uid"] for one in variables.values() if "datasource" in one}
    for uid in uids:
        match = re.fullmatch(r"\$\{(\w+)\}", uid)
        assert match is not None, f"{uid} is a data source of one Grafana only"
        assert variables[match[1]]["type"] == "datasource"
        assert variables[match[1]]["query"] == "prometheus"
    for one in variables.values():
        if one["type"] == "query":
            match = re.fullmatch(r"label_values\((\w+), (\w+)\)", one["definition"])
            assert match is not None
            assert match[2] in labels_of(match[1])


# --- PromQL ----------------------------------------------------------------------------------


def kinds() -> dict[str, tuple[str, frozenset[str]]]:
    """Kind and labels of every series that there is."""
    found = {name: (kind, frozenset(TARGET)) for name, kind in PROCESS.items()}
    for one in DEFINITIONS:
        labels = frozenset({*one.labels, *TARGET})
        if one.kind == "histogram":
            found[f"{one.name}_bucket"] = ("bucket", labels | {"le"})
        if one.kind in ("histogram", "summary"):
            found |= {f"{one.name}_{part}": ("counter", labels) for part in ("count", "sum")}
        else:
            found[one.shown] = (one.kind, labels)
    return found


KINDS = kinds()


def labels_of(name: str) -> frozenset[str]:
    return KINDS[name][1]


@dataclass(frozen=True)
class Series:
    """What an expression gives: labels, and of which kinds what it reads is."""

    labels: frozenset[str]
    kinds: frozenset[str]
    is_rate: bool = False


def parsed(text: str) -> promql.Expr:
    return promql.parse(text.replace("$__rate_interval", "5m"))


def understood(expr: promql.Expr) -> Series | None:
    """What an expression gives, None for a number.

    Raises:
        AssertionError: it asks for what there is not, or what makes no sense.
    """
    match expr:
        case promql.NumberLiteral():
            return None
        case promql.VectorSelector():
            return _selected(expr)
        case promql.MatrixSelector():
            return _selected(expr.vector_selector)
        case promql.ParenExpr() | promql.UnaryExpr():
            return understood(expr.expr)
        case promql.AggregateExpr():
            return _aggregated(expr)
        case promql.Call():
            return _called(expr)
        case promql.BinaryExpr():
            return _combined(expr)
    raise AssertionError(f"expected what the dashboard uses, got {type(expr).__name__}")


def _selected(selector: promql.VectorSelector) -> Series:
    name = selector.name
    assert name in KINDS, f"no node exposes {name}"
    kind, labels = KINDS[name]
    used = {matcher.name for matcher in selector.matchers.matchers}
    assert used <= labels, f"{name} has no {used - labels}"
    return Series(labels, frozenset({"counter" if name == NEVER_RECEDES else kind}))


def _aggregated(expr: promql.AggregateExpr) -> Series:
    inner = understood(expr.expr)
    assert inner is not None
    if expr.modifier is None:
        return inner if expr.param is not None else Series(frozenset(), inner.kinds, inner.is_rate)
    assert expr.modifier.type == promql.AggModifierType.By
    by = frozenset(expr.modifier.labels)
    assert by <= inner.labels, f"there is no {by - inner.labels} to group by"
    return Series(by, inner.kinds, inner.is_rate)


def _called(expr: promql.Call) -> Series:
    given = [one for one in map(understood, expr.args) if one is not None]
    (inner,) = given
    if expr.func.name in RATES:
        assert inner.kinds <= {"counter", "bucket"}, "a gauge has no rate"
        return Series(inner.labels, inner.kinds - {"counter"}, is_rate=True)
    assert expr.func.name == "histogram_quantile", expr.func.name
    assert inner.kinds == {"bucket"}, "quantiles are those of buckets"
    assert inner.is_rate, "of buckets since the start nothing can be seen"
    assert "le" in inner.labels, "buckets without their bounds"
    return Series(inner.labels - {"le"}, frozenset({"gauge"}), is_rate=True)


def _combined(expr: promql.BinaryExpr) -> Series | None:
    sides = [one for one in map(understood, (expr.lhs, expr.rhs)) if one is not None]
    if not sides:
        return None
    labels = {one.labels for one in sides}
    assert len(labels) == 1 or str(expr).count(" or "), f"no series match: {labels}"
    return Series(frozenset.intersection(*labels), frozenset().union(*(one.kinds for one in sides)))


def test_dashboard_expressions_select_exported_metrics() -> None:
    asked = 0
    for target in targets():
        found = understood(parsed(target["expr"]))
        assert found is not None
        assert "counter" not in found.kinds, f"a bare counter shows nothing: {target['expr']}"
        shown = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
        assert shown <= found.labels, f"{target['expr']} has no {shown - found.labels}"
        asked += 1
    assert asked > 30


def test_alarm_expressions_select_exported_metrics(page: Callable[[str], Any]) -> None:
    [text] = [text for _, text in page("docs/metrics.md").blocks("yaml") if "alert:" in text]
    alarms = re.findall(r"^ +expr: (.+)$", text, re.MULTILINE)
    assert len(alarms) == text.count("alert:")
    for alarm in alarms:
        assert understood(parsed(alarm)) is not None


@pytest.mark.parametrize(
    ("expr", "why"),
    [
        ("galileo_redy", "no node exposes"),
        ('galileo_ready{ccq="x"}', "has no"),
        ("rate(galileo_ready[5m])", "a gauge has no rate"),
        ("sum by (ccq) (galileo_ready)", "to group by"),
        ("histogram_quantile(0.5, galileo_lag_seconds_bucket)", "since the start"),
        (
            "histogram_quantile(0.5, sum by (job) (rate(galileo_lag_seconds_bucket[5m])))",
            "without their bounds",
        ),
        ("histogram_quantile(0.5, rate(galileo_lag_seconds_sum[5m]))", "those of buckets"),
        ("galileo_ccq_cache_bytes / galileo_cache_bytes", "no series match"),
    ],
)
def test_expression_check_notices_invalid_expressions(expr: str, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        understood(parsed(expr))


def test_expression_that_does_not_parse_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unclosed|unexpected|parse"):
        parsed("sum(galileo_ready")

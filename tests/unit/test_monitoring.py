"""Dashboard and alerts against the table of metrics: nothing is drawn or watched that nobody records."""

import json
import pathlib
import re
from typing import Any

import yaml

from deployments.metrics import METRICS, Kind

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
DRAWN = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = DRAWN + [rule["expr"] for rule in RULES]


def recorded_as(name: str) -> str:
    """Give the metric that a series belongs to; a histogram has three."""
    for suffix in ("_bucket", "_count", "_sum"):
        base = name.removesuffix(suffix)
        if base in METRICS and METRICS[base].kind is Kind.HISTOGRAM:
            return base
    return name


def test_every_series_is_recorded_and_has_the_labels_asked_for() -> None:
    for expression in EXPRESSIONS:
        series = re.findall(r"ray_(reprise_\w+)(?:\{([^}]*)\})?", expression)
        assert series, expression
        tags = {"le"}
        for name, selector in series:
            metric = METRICS[recorded_as(name)]
            assert (recorded_as(name) == name) == (metric.kind is not Kind.HISTOGRAM), "a histogram is read by buckets"
            tags |= set(metric.tags)
            assert set(re.findall(r"(\w+)\s*[=!]", selector)) <= set(metric.tags), expression
        for group in re.findall(r"by \(([^)]*)\)", expression):
            assert {name.strip() for name in group.split(",")} <= tags, expression


def test_counters_are_rated_and_gauges_are_not() -> None:
    for expression in EXPRESSIONS:
        for name in re.findall(r"ray_(reprise_\w+)", expression):
            is_rated = bool(re.search(rf"(rate|increase)\(ray_{name}\b", expression))
            assert is_rated == (METRICS[recorded_as(name)].kind is not Kind.GAUGE), expression


def test_every_metric_is_drawn() -> None:
    drawn = {recorded_as(name) for expression in DRAWN for name in re.findall(r"ray_(reprise_\w+)", expression)}
    assert set(METRICS) == drawn


def test_every_metric_and_every_alert_is_described() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    assert [name for name in METRICS if f"`{name}`" not in text] == []
    assert [rule["alert"] for rule in RULES if f"- **{rule['alert']}.** " not in text] == []


def test_panels_do_not_overlap() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)

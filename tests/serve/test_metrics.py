"""What an operator sees of the running server: metrics at Ray's port, and a line for each job."""

import json
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from deployments.serve import metrics_url
from tests.serve.conftest import Server, Studio, facts_of


def scraped() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read our metrics as Prometheus would, without the tags that name the process."""
    with urllib.request.urlopen(metrics_url(), timeout=10) as answer:
        text = answer.read().decode()
    ours: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    kept = ("lane", "status", "code", "reuse", "stage", "reason", "kind", "part", "fault")
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("ray_reprise_"):
                tags = frozenset((name, value) for name, value in sample.labels.items() if name in kept)
                key = (sample.name.removeprefix("ray_"), tags)
                ours[key] = ours.get(key, 0.0) + sample.value
    return ours


def count_of(name: str, **tags: str) -> float:
    return scraped().get((name, frozenset(tags.items())), 0.0)


def test_jobs_are_counted_and_timed(server: Server, studio: Studio) -> None:
    before = scraped()
    source = studio.source("a red ball rises", seed=1)
    hit = studio.make("a red ball rises", seed=1)
    assert facts_of(hit)["source_id"] == source.id
    completed = ("reprise_jobs_total", frozenset({("lane", "clips"), ("status", "completed"), ("code", "")}))
    while scraped().get(completed, 0.0) < before.get(completed, 0.0) + 2:
        time.sleep(0.5)  # Ray collects every few seconds; the test's own timeout ends a wait in vain
    now = scraped()
    for stage in ("embed", "lookup", "denoise", "decode", "encode", "store"):
        key = ("reprise_stage_seconds_count", frozenset({("lane", "clips"), ("stage", stage)}))
        assert now[key] >= before.get(key, 0.0) + 2, stage
    for name, tags in (
        ("reprise_reuse_total", {("reason", "hit")}),
        ("reprise_reuse_total", {("reason", "empty_cache")}),
        ("reprise_steps_total", {("kind", "skipped")}),
        ("reprise_job_seconds_count", {("lane", "clips"), ("reuse", "hit")}),
        ("reprise_queue_wait_seconds_count", {("lane", "clips")}),
    ):
        assert now[name, frozenset(tags)] > before.get((name, frozenset(tags)), 0.0), name
    while not count_of("reprise_cache_bytes") > 0:
        time.sleep(0.5)
    lines = [json.loads(line) for line in server.jobs_file.read_text().splitlines()]
    mine = {line["video_id"]: line for line in lines if line["video_id"] in (source.id, hit.id)}
    assert (mine[source.id]["hit"], mine[hit.id]["hit"]) == (False, True)
    assert "a red ball" not in server.jobs_file.read_text()

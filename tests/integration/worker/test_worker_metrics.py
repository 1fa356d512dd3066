"""What Prometheus reads of a worker."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from galileo.worker.metrics import ACCEPTED, FAILED, WorkerMetrics


def test_metrics_have_the_names_of_channels_and_brokers() -> None:
    metrics = WorkerMetrics()
    name = 'Öl "1" \\ 2'
    metrics.count("smog", name, ACCEPTED, notifications=7, took_s=0.02)
    metrics.count("smog", name, FAILED, notifications=0)
    found = {
        (sample.name, sample.labels.get("outcome", "")): sample
        for family in text_string_to_metric_families(metrics.exposed())
        for sample in family.samples
    }
    accepted = found["galileo_worker_notifications_total", ACCEPTED]
    assert accepted.labels == {"channel": "smog", "broker": name, "outcome": ACCEPTED}
    assert accepted.value == 7
    assert found["galileo_worker_failing", ""].value == 1
    assert found["galileo_worker_delivery_seconds_count", ""].value == 1
    metrics.end("smog", name)
    assert "galileo_worker_failing 0" in metrics.exposed()

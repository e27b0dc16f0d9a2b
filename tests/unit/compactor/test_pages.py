"""The pages answer over real HTTP."""

from __future__ import annotations

import httpx
import pytest

from llog.compactor.metrics import CompactorMetrics
from llog.compactor.pages import serving
from llog.errors import ExposureRefused, SettingsError
from llog.settings import Settings
from llog.telemetry.metrics import CONTENT_TYPE, BrokerMetrics
from tests.patience import PATIENCE_SECONDS
from tests.unit.compactor.stage import RememberingMetrics


def settings(**overrides: object) -> Settings:
    return Settings.from_env({}, **{"metadata_url": "memory://", "compactor_port": 0} | overrides)


async def test_health_and_metrics_are_served_while_the_context_lasts() -> None:
    metrics, status = RememberingMetrics(), {"status": "ok"}
    metrics.observe_compaction("compacted", "compact", 1, 100, {})
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        async with serving(settings(), health=lambda: dict(status), metrics=metrics) as pages:
            url = pages.url
            health = await client.get(f"{url}/health")
            assert (health.status_code, health.json()) == (200, {"status": "ok"})
            assert (await client.get(f"{url}/ready")).status_code == 200
            shown = await client.get(f"{url}/metrics")
            assert shown.json()["compaction"] == {"compacted/compact": 1}
            text = await client.get(f"{url}/metrics/prometheus")
            assert text.headers["content-type"] == CONTENT_TYPE
            assert text.text == 'llog_compaction_total{outcome="compacted",kind="compact"} 1\n'
            status["status"] = "degraded"
            assert (await client.get(f"{url}/health")).status_code == 200
            assert (await client.get(f"{url}/ready")).status_code == 503
            nothing = await client.get(f"{url}/nothing")
            assert (nothing.status_code, nothing.json()["error_type"]) == (404, "NotFoundException")
            assert (await client.post(f"{url}/health")).status_code == 405
            assert metrics.answered == [
                ("/health", "GET", 200), ("/ready", "GET", 200), ("/metrics", "GET", 200),
                ("/metrics/prometheus", "GET", 200), ("/health", "GET", 200), ("/ready", "GET", 503),
                ("unmatched", "GET", 404), ("/health", "POST", 405),
            ]  # fmt: skip
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/health")


async def test_metrics_ask_for_the_token_of_readers_and_health_does_not() -> None:
    guarded = settings(http_read_token="secret-of-readers")
    async with (
        httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client,
        serving(guarded, health=lambda: {"status": "ok"}, metrics=RememberingMetrics()) as pages,
    ):
        assert (await client.get(f"{pages.url}/health")).status_code == 200
        for path in ("/metrics", "/metrics/prometheus"):
            refused = await client.get(pages.url + path)
            assert refused.status_code == 401
            assert "secret" not in refused.text
            wrong = await client.get(pages.url + path, headers={"Authorization": "Bearer other"})
            assert wrong.status_code == 401
            right = await client.get(pages.url + path, headers={"Authorization": "Bearer secret-of-readers"})
            assert right.status_code == 200


async def test_a_port_that_is_taken_is_refused_with_the_settings_name() -> None:
    metrics = RememberingMetrics()
    async with serving(settings(), health=dict, metrics=metrics) as pages:
        with pytest.raises(SettingsError, match="LLOG_COMPACTOR_PORT"):
            async with serving(settings(compactor_port=pages.port), health=dict, metrics=metrics):
                pass
    # An address of a network kept for documentation: no machine has it.
    elsewhere = settings(compactor_bind_host="192.0.2.1", insecure=True)
    with pytest.raises(SettingsError, match="LLOG_COMPACTOR_BIND_HOST"):
        async with serving(elsewhere, health=dict, metrics=metrics):
            pass


async def test_an_address_that_others_reach_is_refused_unless_protected_or_allowed() -> None:
    open_to_all = settings(compactor_bind_host="0.0.0.0")
    with pytest.raises(ExposureRefused, match="LLOG_COMPACTOR_BIND_HOST"):
        async with serving(open_to_all, health=dict, metrics=RememberingMetrics()):
            pass
    async with serving(open_to_all.replaced(insecure=True), health=dict, metrics=RememberingMetrics()) as pages:
        assert pages.host == "0.0.0.0"


def test_the_metrics_of_brokers_serve_the_compactor_too() -> None:
    metrics: CompactorMetrics = BrokerMetrics()
    metrics.observe_compaction("compacted", "compact", 2, 100, {"run": 12.0})
    metrics.set_compaction_lag("orders", 0, 5, 500)
    text = metrics.prometheus().decode()
    assert 'llog_compaction_runs_total{kind="compact",outcome="compacted"} 1.0' in text
    assert 'llog_compaction_lag_offsets{partition="0",topic="orders"} 5.0' in text

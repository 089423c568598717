"""Counters in Prometheus' format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from trajgym.serving.engine import Engine

__all__ = ["Metrics"]

_PATHS = ("/agent", "/generate", "/health", "/metrics", "/v1/chat/completions", "/v1/models")
_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """The counters of one server.

    Args:
        engine: Whose load is told.
    """

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineLoad(engine))
        self._requests = Counter(
            "trajgym_requests", "Requests by path and status.", ("path", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "trajgym_request_seconds",
            "Time from a request's headers to the end of its response.",
            ("path",),
            buckets=_SECONDS,
            registry=self._registry,
        )

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request; paths that do not exist are one, or strangers could make as many counters as they like."""
        path = path if path in _PATHS else "other"
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Return all counters."""
        return generate_latest(self._registry)


class _EngineLoad:
    """Reads the engine's figures when they are asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        load = self._engine.load
        yield GaugeMetricFamily("trajgym_slots", "Sequences that can be written at once.", self._engine.slots)
        yield GaugeMetricFamily("trajgym_running", "Sequences that are being written.", load.running)
        yield GaugeMetricFamily("trajgym_waiting", "Sequences that wait for a slot.", load.waiting)
        yield CounterMetricFamily("trajgym_sequences", "Sequences that are over.", load.sequences)
        yield CounterMetricFamily("trajgym_prompt_tokens", "Tokens of prompts.", load.prompt_tokens)
        yield CounterMetricFamily("trajgym_reused_tokens", "Tokens of prompts found in the cache.", load.reused_tokens)
        yield CounterMetricFamily("trajgym_sampled_tokens", "Tokens written.", load.sampled_tokens)
        yield CounterMetricFamily("trajgym_faults", "Sequences lost to a failure of the model.", load.faults)

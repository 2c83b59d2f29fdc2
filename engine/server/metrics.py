"""What Prometheus is told: vLLM's names with this project's prefix.

What the engine counts is read when it is asked for; what only the server sees is observed here.

Source: vLLM's documentation, "Production metrics".
"""

from collections.abc import Iterator, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mkport.engine.request import EngineLike

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REASONS = ("stop", "length", "abort", "error")

_FIRST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 640)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1, 2.5, 10, 40)
_WHOLE_S = (0.05, 0.1, 0.3, 0.5, 1, 2, 5, 10, 20, 40, 60, 120, 240, 480, 960, 1920)


class Metrics:
    """One server's metrics; each has a label `model_name`."""

    def __init__(self, engine: EngineLike) -> None:
        disable_created_metrics()  # a series more for each that nobody asks for
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engine))
        model = engine.name

        def histogram(name: str, help: str, buckets: Sequence[float]) -> Histogram:
            made = Histogram(
                f"mkport:{name}", help, ["model_name"], registry=self._registry, buckets=buckets
            )
            return made.labels(model)

        self.first_token = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", _FIRST_S
        )
        self.between_tokens = histogram(
            "inter_token_latency_seconds", "From one token of a choice to the next.", _TOKEN_S
        )
        self.whole = histogram(
            "e2e_request_latency_seconds", "From a request's arrival to its end.", _WHOLE_S
        )
        ended = Counter(
            "mkport:request_success",
            "Requests that ended, by how: a choice each.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self.ended = {reason: ended.labels(model, reason) for reason in REASONS}

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """What the engine itself counts."""

    def __init__(self, engine: EngineLike) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats, labels = self._engine.stats(), [self._engine.name]
        for name, help, gauge in (
            ("num_requests_running", "Sequences that run.", stats.running),
            ("num_requests_waiting", "Requests that wait.", stats.waiting),
            ("kv_cache_usage_perc", "Blocks of the cache in use, 0 to 1.", stats.kv_usage),
        ):
            family = GaugeMetricFamily(f"mkport:{name}", help, labels=["model_name"])
            family.add_metric(labels, float(gauge))
            yield family
        for name, help, count in (
            ("prefix_cache_queries", "Tokens looked up in the cache.", stats.prefix_queries),
            ("prefix_cache_hits", "Tokens found in the cache.", stats.prefix_hits),
            ("num_preemptions", "Requests put aside for others.", stats.preemptions),
            ("prompt_tokens", "Tokens of prompts.", stats.prompt_tokens),
            ("generation_tokens", "Tokens generated.", stats.generation_tokens),
        ):
            total = CounterMetricFamily(f"mkport:{name}", help, labels=["model_name"])
            total.add_metric(labels, count)
            yield total
        tokens = HistogramMetricFamily(
            "mkport:iteration_tokens_total", "Tokens a step has run.", labels=["model_name"]
        )
        ran = stats.prompt_tokens - stats.prefix_hits + stats.generation_tokens
        tokens.add_metric(labels, [("+Inf", stats.steps)], float(ran))
        yield tokens

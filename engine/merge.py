"""One answer out of several replicas' answers, for what each of them has only a part of."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

SHARED = ("model", "context")  # the same on every replica
AVERAGED = ("kv_usage",)


def merge_stats(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The page's counters over all replicas: sums, the mean of shares, what is the same once."""
    merged: dict[str, Any] = {}
    for name, value in parts[0].items():
        if name in SHARED:
            merged[name] = value
        else:
            total = sum(part.get(name, 0) for part in parts)
            merged[name] = total / len(parts) if name in AVERAGED else total
    return merged


def merge_metrics(parts: Mapping[int, str]) -> bytes:
    """Prometheus text of several replicas as one, each sample labelled with its replica.

    Raises ValueError for text that is not in Prometheus' format. Source: Prometheus' documentation,
    "Exposition formats".
    """
    families: dict[str, Metric] = {}
    for index, text in parts.items():
        for found in text_string_to_metric_families(text):
            family = families.setdefault(
                found.name, Metric(found.name, found.documentation, found.type, found.unit)
            )
            for sample in found.samples:
                labels = {"replica": str(index)} | sample.labels
                family.samples.append(sample._replace(labels=labels))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families.values()))
    return generate_latest(registry)


class _Families:
    """A collector of what was read elsewhere."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """The families, as prometheus-client asks for them."""
        return self._families

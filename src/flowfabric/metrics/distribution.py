"""A histogram that takes many values at once: a batch of executions costs little more than one."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import inf
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.values import ValueClass


def _shown(bound: float) -> str:
    """The value of the label `le`."""
    return "+Inf" if bound == inf else repr(float(bound))


class _Series:
    """The counts of one set of labels. Values of prometheus-client, so that several processes can
    be collected together, as its own histograms are."""

    def __init__(self, owner: "Distribution", labels: tuple[str, ...]) -> None:
        def value(ending: str, names: Sequence[str], given: Sequence[str]) -> Any:
            name = owner.name + ending
            return ValueClass("histogram", owner.name, name, names, given, owner.what)

        self.sum = value("_sum", owner.labels, labels)
        self.buckets = [
            value("_bucket", (*owner.labels, "le"), (*labels, bound)) for bound in owner.shown
        ]


class Distribution:
    """A histogram of Prometheus."""

    def __init__(
        self,
        name: str,
        what: str,
        labels: Sequence[str],
        bounds: Iterable[float],
        registry: CollectorRegistry,
    ) -> None:
        self.name = name
        self.what = what
        self.labels = tuple(labels)
        self._bounds = [*bounds, inf]
        self.shown = [_shown(bound) for bound in self._bounds]
        self._series: dict[tuple[str, ...], _Series] = {}
        self._lock = Lock()
        registry.register(self)

    def add(self, labels: tuple[str, ...], values: Sequence[float]) -> None:
        """Counts these values."""
        series = self._series.get(labels)
        if series is None:
            series = self._begin(labels)
        if len(values) == 1:
            series.buckets[bisect_left(self._bounds, values[0])].inc(1)
            series.sum.inc(values[0])
            return
        bounds = self._bounds
        for place, count in Counter([bisect_left(bounds, each) for each in values]).items():
            series.buckets[place].inc(count)
        series.sum.inc(sum(values))

    def _begin(self, labels: tuple[str, ...]) -> _Series:
        with self._lock:
            return self._series.setdefault(labels, _Series(self, labels))

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self.name, self.what, labels=self.labels)
        for labels, series in list(self._series.items()):
            counts = accumulate(bucket.get() for bucket in series.buckets)
            family.add_metric(labels, list(zip(self.shown, counts, strict=True)), series.sum.get())
        yield family

    def describe(self) -> Iterator[Metric]:
        yield HistogramMetricFamily(self.name, self.what, labels=self.labels)

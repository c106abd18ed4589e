"""Metrics as a test reads them."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from flowfabric import metrics
from flowfabric.metrics import instruments


class Scrape:
    """One answer of `/metrics`."""

    def __init__(self, text: str) -> None:
        self.samples: list[Sample] = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    def has(self, name: str) -> bool:
        return name in self.names

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def since(self, before: "Scrape", name: str, **labels: str) -> float:
        # Rounded, because a sum of seconds is a float: 42.3 - 25.3 is less than 17.
        return round(self.value(name, **labels) - before.value(name, **labels), 6)


@contextmanager
def measuring() -> Iterator[None]:
    """Measures this process. The names that other tests have made up are forgotten: only the first
    of each kind are shown."""
    for names in vars(instruments).values():
        if isinstance(names, instruments.BoundedNames):
            names._known.clear()
    metrics.enable()
    try:
        yield
    finally:
        metrics.disable()


async def scrape(http: httpx.AsyncClient) -> Scrape:
    reply = await http.get("/metrics")
    assert reply.status_code == 200, reply.text
    return Scrape(reply.text)

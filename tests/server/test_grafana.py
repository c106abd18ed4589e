"""The Grafana dashboard: a valid file, in which every query names a metric that a server has."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flowfabric import Context, Quorum, metrics
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import Presence
from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric
from flowfabric.server.context import ServerContext
from flowfabric.store.clock import ManualClock
from flowfabric.worker.run.options import WorkerSettings
from tests.kit.scrape import Scrape, measuring, scrape
from tests.server.listening import listening

PATH = Path(__file__).parents[2] / "examples" / "grafana" / "flowfabric-ops.json"
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "observability.md"
ORIGINAL = [
    "Claim latency by lane",
    "Claims by lane",
    "Lease renewals by outcome",
    "Workers without a free slot",
    "Quota blocks and budget breaches",
    "Sweep duration p95",
    "Sweep cadence",
    "Cancel backlog",
    "HTTP requests by status class",
    "HTTP latency p95 by route",
    "Attempt outcomes by lane",
]
"""What the dashboard of the original shows (spec §5.3)."""
GAPS = [
    "End to end latency by lane",
    "Queue depth by lane",
    "Runs by state",
    "Failed attempts by kind",
    "Workers and slots",
]
"""What its README misses."""

_NAME = re.compile(r"\bff_[a-z_]+\b")
_SELECTED = re.compile(r"by \(([a-z_, ]+)\)")


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PATH.read_text())
    return found


@pytest.fixture(autouse=True)
def measured() -> Iterator[None]:
    with measuring():
        yield


def test_grafana_can_import_it(dashboard: dict[str, Any]) -> None:
    assert dashboard["uid"] == "flowfabric-ops"
    assert dashboard["title"]
    assert dashboard["schemaVersion"] >= 36
    (variable,) = dashboard["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["type"] == "timeseries"
        assert panel["gridPos"].keys() == {"h", "w", "x", "y"}
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"]


def test_no_panel_covers_another(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_it_shows_what_the_original_shows_and_misses(dashboard: dict[str, Any]) -> None:
    titles = [panel["title"] for panel in dashboard["panels"]]
    assert titles[: len(ORIGINAL)] == ORIGINAL
    assert set(GAPS) <= set(titles)
    assert len(titles) == len(set(titles))


async def test_every_metric_of_its_queries_exists(
    dashboard: dict[str, Any], context: ServerContext, engine: Engine, clock: ManualClock
) -> None:
    """Also of the alerts that the guide proposes."""
    async with listening(context) as url, httpx.AsyncClient(base_url=url) as http:
        await _some_work(engine, url, clock)
        await http.get("/healthz")
        found = await scrape(http)
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    queries = {target["expr"]: target["legendFormat"] for target in targets}
    queries |= dict.fromkeys(_alerts(), "")
    for query, legend in queries.items():
        assert [name for name in _NAME.findall(query) if not found.has(name)] == []
        _check_labels(query, legend, found)


def _alerts() -> list[str]:
    """The expressions in the table of the guide."""
    table = GUIDE.read_text("utf-8").partition("### Alerts worth having")[2].partition("###")[0]
    found = re.findall(r"^\| [^|]+ \| `((?:[^`])+)`", table, re.MULTILINE)
    assert len(found) >= 9
    return [expression.replace("\\|", "|") for expression in found]


def test_every_metric_is_on_it(dashboard: dict[str, Any]) -> None:
    shown = _NAME.findall(json.dumps([panel["targets"] for panel in dashboard["panels"]]))
    known = {
        sample.name
        for family in metrics.REGISTRY.collect()
        for sample in family.samples
        if family.name.startswith("ff_") and not sample.name.endswith(("_created", "_count"))
    }
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known}
    assert plain <= {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}


def _check_labels(query: str, legend: str, found: Scrape) -> None:
    """Labels that a query groups by are labels of its metrics, and the legend has no others."""
    groups = {name.strip() for group in _SELECTED.findall(query) for name in group.split(",")}
    labels = {
        label
        for name in _NAME.findall(query)
        for sample in found.samples
        if sample.name == name
        for label in sample.labels
    } | set(re.findall(r'label_replace\(.*?, "(\w+)"', query))
    assert groups | set(re.findall(r"[{,](\w+)!?[=~]", query)) <= labels, query
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= groups, query


async def _some_work(engine: Engine, url: str, clock: ManualClock) -> None:
    """A little of everything that is counted."""
    fabric = Fabric("sqlite://:memory:", clock=clock)

    @fabric.task(budgets=["tokens"])
    async def think(ctx: Context) -> None:
        await ctx.spend({"usd": 5})

    @fabric.task(retries=1)
    async def fail() -> None:
        raise ValueError("boom")

    @fabric.task()
    async def wait(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    @fabric.task()
    async def node() -> None: ...

    await engine.workers.register(
        Presence(worker="w", instance="w-1", namespace="default", concurrency=4, ttl=Millis(30_000))
    )
    with fabric._lend(lambda: _given(engine)):
        await fabric.budget("tokens", usd=5)
        waiting = await wait.submit()
        await fail.submit()
        async with fabric.flow("race") as flow:
            flow.add(node, after=[flow.add(node), flow.add(node)], join=Quorum(1))
        for _ in range(2):
            await think.submit()
            await (await fabric.worker(WorkerSettings())).run_until_idle()
        await fabric.signal(waiting.id, "go")
        await node.submit()
    await engine.sweep.once()


async def _given(engine: Engine) -> Engine:
    return engine

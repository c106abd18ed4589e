"""Explanations for a caller of one namespace: lanes and quotas are shared by all, but which foreign
runs hold their slots is not its business."""

import httpx
import pytest
from msgspec.structs import replace

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.explain.limits import holder_reasons
from flowfabric.core.explain.reasons import ReasonCode
from flowfabric.core.explain.sentences import because
from flowfabric.engine.engine import Engine
from flowfabric.server.caller.explanations import without_foreign_runs
from flowfabric.server.dashboard.overview_reader import PLACES, OverviewReader
from tests.kit.http import client_as, create, tenant, uuid_of
from tests.kit.lab import Lab

pytestmark = pytest.mark.rules


async def test_an_explanation_does_not_name_foreign_runs(
    http: httpx.AsyncClient, engine: Engine, lab: Lab
) -> None:
    await engine.lanes.set("default", concurrency=1)
    foreign = await lab.running(namespace="theirs")
    own = await create(http, namespace="mine")
    everything = (await http.get(f"/v1/executions/{own}/explain")).text
    assert str(foreign.uuid) in everything
    async with client_as(engine, tenant()) as limited:
        for path in (f"/v1/executions/{own}/explain", "/v1/lanes/default/explain"):
            found = await limited.get(path)
            assert found.status_code == 200
            assert str(foreign.uuid) not in found.text
            assert "lane default is full: 1 of 1 run" in found.text


async def test_own_holders_of_a_quota_are_named(engine: Engine, http: httpx.AsyncClient) -> None:
    own, foreign = await create(http), await create(http)
    full = because(
        ReasonCode.QUOTA_FULL,
        children=holder_reasons([own, foreign], 2),
        quota="openai",
        key="",
        per_key=False,
        taken=2,
        cap=2,
        holders=[own, foreign],
    )
    paused = because(ReasonCode.LANE_PAUSED, children=[full], lane="l", by="ada", reason="")
    whole = replace(await engine.explain(ExecutionId(own)), reasons=(paused,))

    async def sees(uuid: object) -> bool:
        return uuid == uuid_of(own)

    shown = await without_foreign_runs(whole, sees)
    (inner,) = shown.reasons[0].children
    assert inner.detail["holders"] == [own]
    (holders,) = inner.children
    assert holders.detail["executions"] == [own]
    assert holders.text == f"held by {own} and 1 more"


async def test_overviews_of_namespaces_that_do_not_exist_are_not_kept(engine: Engine) -> None:
    reader = OverviewReader()
    for number in range(PLACES + 10):
        await reader._counts.get(engine, f"n{number}")
    assert len(reader._counts._found) <= PLACES
    assert len(reader._counts._locks) <= PLACES

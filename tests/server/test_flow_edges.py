"""Edges of flows over HTTP: stage, apply, and what is refused (coordination.md 1.3, 1.5)."""

from typing import Any
from uuid import UUID

import httpx
import pytest

from flowfabric.core.base.ids import ExecutionId
from flowfabric.engine.engine import Engine
from flowfabric.store.clock import ManualClock
from tests.kit.http import (
    NOBODY,
    add_member,
    apply,
    create,
    create_flow,
    error_of,
    link,
    stage,
    tagged,
    uuid_of,
)
from tests.kit.lab import Lab

pytestmark = pytest.mark.rules

URL = "/v1/flows"


async def test_a_chain_runs_in_order(http: httpx.AsyncClient, lab: Lab) -> None:
    """C-T11, C-T15, C-T30: all that a client of the original does, without a seal."""
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    staged = await stage(http, flow, first, second, 2, edge_id=NOBODY)
    expected = {"Staged": {"edge_id": NOBODY, "new_graph_revision": 3}}
    assert (staged.status_code, staged.json()) == (201, expected)
    applied = await apply(http, flow, NOBODY, first, second)
    assert (applied.status_code, applied.json()) == (200, {"Applied": {"unsatisfied_count": 1}})
    again = await apply(http, flow, NOBODY, first, second)
    assert (again.status_code, again.text) == (200, '"AlreadyApplied"')
    assert (await http.get(f"/v1/executions/{second}/state")).json() == "waiting_children"
    claim = await lab.claim_one()
    assert claim.id == first
    await lab.complete(claim, b"up")
    await lab.engine.flows.drain()
    assert (await http.get(f"/v1/executions/{second}/state")).json() == "waiting"
    assert (await lab.claim_one()).id == second


async def test_applied_edges_are_counted_one_by_one(http: httpx.AsyncClient) -> None:
    flow = await create_flow(http)
    a, b, c = [await add_member(http, flow) for _ in range(3)]
    edges = []
    for number, upstream in enumerate((a, b)):
        staged = (await stage(http, flow, upstream, c, 3 + number)).json()["Staged"]
        edges.append((staged["edge_id"], upstream))
    counts = [
        (await apply(http, flow, edge, upstream, c)).json()["Applied"]["unsatisfied_count"]
        for edge, upstream in edges
    ]
    assert counts == [1, 2]
    info = (await http.get(f"/v1/executions/{c}")).json()
    assert info["blocking_detail"] == f"waits for 2 of 2 upstreams (newest edge {edges[-1][0]})"


async def test_a_failed_upstream_skips(http: httpx.AsyncClient, lab: Lab) -> None:
    """C-T29"""
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    await link(http, flow, first, second, 2)
    await http.post(f"/v1/executions/{first}/cancel", json={"reason": "no"})
    await lab.engine.flows.drain()
    assert (await http.get(f"/v1/executions/{second}/state")).json() == "skipped"
    reply = await http.post(f"/v1/executions/{first}/replay")
    assert reply.json() == {"Replayed": {"public_state": "waiting"}}
    reply = await http.post(f"/v1/executions/{second}/replay")
    assert reply.json() == {"Replayed": {"public_state": "waiting_children"}}


async def test_a_dependency_on_any_end_survives_a_cancel(http: httpx.AsyncClient, lab: Lab) -> None:
    """F-30"""
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    staged = await stage(http, flow, first, second, 2, dependency_kind="on_any_end")
    edge = staged.json()["Staged"]["edge_id"]
    other = error_of(await apply(http, flow, edge, first, second), 400)
    assert other["code"] == "invalid_dependency"
    applied = await apply(http, flow, edge, first, second, dependency_kind="on_any_end")
    assert applied.json() == {"Applied": {"unsatisfied_count": 1}}
    await http.post(f"/v1/executions/{first}/cancel", json={"reason": "no"})
    await lab.engine.flows.drain()
    assert (await http.get(f"/v1/executions/{second}/state")).json() == "waiting"


async def test_an_upstream_that_has_ended_counts_at_once(http: httpx.AsyncClient, lab: Lab) -> None:
    flow = await create_flow(http)
    first = await add_member(http, flow)
    await lab.complete(await lab.claim_one())
    second = await add_member(http, flow)
    staged = (await stage(http, flow, first, second, 2)).json()["Staged"]
    reply = await apply(http, flow, staged["edge_id"], first, second)
    assert reply.json() == {"Applied": {"unsatisfied_count": 0}}
    assert (await http.get(f"/v1/executions/{second}/state")).json() == "waiting"


async def test_a_stale_revision_is_contention(http: httpx.AsyncClient) -> None:
    """C-T12"""
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    for revision in (0, 1, 3):
        body = error_of(await stage(http, flow, first, second, revision), 409)
        assert (body["kind"], body["retryable"]) == ("contention", True)
        assert body["error"].startswith("contention: StaleGraphRevision")
        assert body["code"] == "stale_graph_revision"


async def test_conflicts_of_edges_come_in_the_order_of_the_rules(http: httpx.AsyncClient) -> None:
    """C-T13"""
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    outside = await create(http)
    revision = await link(http, flow, first, second, 2)
    cases = [
        ((first, first, 99), "self_referencing_edge", "self_referencing_edge"),
        ((first, outside, revision), "state_conflict", "execution_not_in_flow"),
        ((outside, first, revision), "state_conflict", "execution_not_in_flow"),
        ((second, first, revision), "cycle_detected", "cycle_detected"),
    ]
    for (upstream, downstream, at), kind, code in cases:
        body = error_of(await stage(http, flow, upstream, downstream, at), 409)
        assert (body["kind"], body["code"], body["retryable"]) == (kind, code, False)


async def test_an_edge_that_is_staged_again_is_recognised(http: httpx.AsyncClient) -> None:
    """F-19: the answer was lost, so the client asks again with the revision it knows"""
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    await stage(http, flow, first, second, 2, edge_id=NOBODY)
    for revision in (2, 3, 99):
        again = await stage(http, flow, first, second, revision, edge_id=NOBODY)
        known = {"AlreadyStaged": {"edge_id": NOBODY, "graph_revision": 3}}
        assert (again.status_code, again.json()) == (200, known)
    applied = await apply(http, flow, NOBODY, first, second)
    assert applied.json() == {"Applied": {"unsatisfied_count": 1}}
    await stage(http, flow, first, second, 2, edge_id=NOBODY)
    again = await apply(http, flow, NOBODY, first, second)
    assert again.json() == "AlreadyApplied"


async def test_an_edge_that_was_applied_with_a_name_is_staged_again(
    http: httpx.AsyncClient,
) -> None:
    """F-19: the content of the staging is the same, though the edge passes the result by now"""
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    await stage(http, flow, first, second, 2, edge_id=NOBODY)
    await apply(http, flow, NOBODY, first, second, data_passing_ref="a")
    again = await stage(http, flow, first, second, 2, edge_id=NOBODY)
    assert again.json() == {"AlreadyStaged": {"edge_id": NOBODY, "graph_revision": 3}}
    error_of(await stage(http, flow, first, second, 2, edge_id=NOBODY, data_passing_ref="b"), 409)


async def test_an_edge_id_is_used_once(http: httpx.AsyncClient, lab: Lab) -> None:
    """C-T14, coordination.md 1.3: for another edge it is taken, whatever else is wrong with it;
    also when the join has fired"""
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    await stage(http, flow, first, second, 2, edge_id=NOBODY)

    async def refused(upstream: str, downstream: str, revision: int, **more: Any) -> Any:
        reply = await stage(http, flow, upstream, downstream, revision, edge_id=NOBODY, **more)
        body = error_of(reply, 409)
        assert (body["kind"], body["code"]) == ("dependency_already_exists",) * 2
        assert body["retryable"] is False
        return body["details"]

    assert (await refused(second, first, 2))["upstream"] == str(uuid_of(first))
    await refused(first, second, 3, dependency_kind="on_any_end")
    await refused(first, second, 3, data_passing_ref="name")
    await lab.complete(await lab.claim_one())
    await lab.engine.flows.drain()
    await refused(first, second, 3, dependency_kind="on_any_end")
    again = await stage(http, flow, first, second, 2, edge_id=NOBODY)
    assert again.json() == {"AlreadyStaged": {"edge_id": NOBODY, "graph_revision": 3}}


async def test_a_taken_edge_id_shows_the_stored_edge(
    http: httpx.AsyncClient, clock: ManualClock
) -> None:
    """C-T14, coordination.md 0.3: whatever is stored of it"""
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    at = clock.now()
    named = {"dependency_kind": "on_any_end", "data_passing_ref": "a"}
    await stage(http, flow, first, second, 2, edge_id=NOBODY, **named)
    clock.advance(1_000)
    body = error_of(await stage(http, flow, first, second, 3, edge_id=NOBODY), 409)
    assert body["details"] == {
        "edge": NOBODY,
        "flow": flow,
        "upstream": str(uuid_of(first)),
        "downstream": str(uuid_of(second)),
        "on": "on_any_end",
        "input": "a",
        "created_at": at,
    }


async def test_an_id_of_another_partition_is_no_member(http: httpx.AsyncClient) -> None:
    """execution.md 1.1, I-44: two ids with one uuid and different partitions are different ids;
    the revision is compared before members are looked for (coordination.md 1.3)."""
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)

    def elsewhere(id: str) -> str:
        return tagged(uuid_of(id), (ExecutionId(id).partition_index + 1) % 256)

    for ends in ((elsewhere(first), second), (first, elsewhere(second))):
        stale = error_of(await stage(http, flow, *ends, 7), 409)
        assert stale["code"] == "stale_graph_revision"
        assert error_of(await stage(http, flow, *ends, 2), 409)["code"] == "execution_not_in_flow"
    staged = (await stage(http, flow, first, second, 2)).json()["Staged"]
    edge, groups = staged["edge_id"], f"{URL}/{flow}/edge-groups"
    error_of(await apply(http, flow, edge, elsewhere(first), second), 400)
    error_of(await apply(http, flow, edge, first, elsewhere(second)), 404)
    assert (await apply(http, flow, edge, first, second)).json()["Applied"]
    policy = await http.put(f"{groups}/{elsewhere(first)}", json={"kind": "any_of"})
    assert error_of(policy, 409)["code"] == "execution_not_in_flow"
    for name, id in (("upstream", first), ("downstream", second)):
        counts = [
            len((await http.get(f"{URL}/{flow}/edges", params={name: each})).json()["edges"])
            for each in (id, str(uuid_of(id)), elsewhere(id))
        ]
        assert counts == [1, 1, 0]


async def test_edges_are_listed_by_pages(http: httpx.AsyncClient, engine: Engine) -> None:
    flow = await create_flow(http)
    hub, *others = [await add_member(http, flow) for _ in range(6)]
    for number, other in enumerate(others):
        await link(http, flow, hub, other, 6 + number)
    url, ids = f"{URL}/{flow}/edges", list[str]()
    asked: dict[str, str] = {"upstream": hub, "limit": "2"}
    for more in (True, True, False):
        page = (await http.get(url, params=asked)).json()
        ids += [each["edge"]["id"] for each in page["edges"]]
        asked["cursor"] = page["next_cursor"]
        assert (asked["cursor"] is not None) == more
    whole = (await http.get(url)).json()
    assert ids == [each["edge"]["id"] for each in whole["edges"]]
    assert len(ids) == 5
    assert whole["next_cursor"] is None
    assert (await http.get(url, params={"limit": 0})).json()["edges"] == []
    error_of(await http.get(url, params={"limit": 1001}), 400)
    error_of(await http.get(url, params={"cursor": "first"}), 400)
    every = await engine.flow_views.edges(UUID(flow))
    assert [str(each.edge.id) for each in every] == ids


async def test_edges_of_nothing(http: httpx.AsyncClient) -> None:
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    assert "not found" in error_of(await stage(http, NOBODY, first, second, 0), 404)["error"]
    assert "not found" in error_of(await apply(http, NOBODY, NOBODY, first, second), 404)["error"]
    missing = error_of(await apply(http, flow, NOBODY, first, second), 400)
    assert missing["code"] == "invalid_dependency"
    error_of(await apply(http, flow, NOBODY, first, tagged(NOBODY)), 404)


async def test_an_edge_is_applied_as_it_was_staged(http: httpx.AsyncClient) -> None:
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    await stage(http, flow, first, second, 2, edge_id=NOBODY)
    body = error_of(await apply(http, flow, NOBODY, second, first), 400)
    assert body["code"] == "invalid_dependency"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"expected_graph_revision": None}, 422),
        ({"expected_graph_revision": -1}, 422),
        ({"expected_graph_revision": 1.0}, 422),
        ({"dependency_kind": None}, 422),
        ({"dependency_kind": "on_moon"}, 400),
        ({"upstream_execution_id": "nonsense"}, 400),
        ({"edge_id": "nonsense"}, 400),
        ({"flow_id": NOBODY}, 400),
    ],
)
async def test_a_wrong_edge_is_refused(
    http: httpx.AsyncClient, change: dict[str, Any], status: int
) -> None:
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    error_of(await stage(http, flow, first, second, 2, **change), status)


async def test_what_an_edge_passes_is_said_once(http: httpx.AsyncClient) -> None:
    """server-sdk.md 1.7: when it is staged, or when it is applied first; never twice."""
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)

    async def input_of(edge: str) -> str | None:
        edges = (await http.get(f"{URL}/{flow}/edges")).json()["edges"]
        (found,) = (each["edge"] for each in edges if each["edge"]["id"] == edge)
        name: str | None = found["input"]
        return name

    staged = await stage(http, flow, first, second, 2, data_passing_ref="x")
    edge = staged.json()["Staged"]["edge_id"]
    other = error_of(await apply(http, flow, edge, first, second, data_passing_ref="y"), 400)
    assert other["code"] == "invalid_dependency"
    for given in ("x", "y", None):  # the second and the third are repeats
        reply = await apply(http, flow, edge, first, second, data_passing_ref=given)
        assert reply.status_code == 200, reply.text
        assert await input_of(edge) == "x"
    bare = (await stage(http, flow, first, second, 3)).json()["Staged"]["edge_id"]
    long = await apply(http, flow, bare, first, second, data_passing_ref="x" * 100_000)
    assert long.status_code == 413 or error_of(long, 400)
    assert (await apply(http, flow, bare, first, second, data_passing_ref="")).is_success
    late = await apply(http, flow, bare, first, second, data_passing_ref="z")
    assert late.json() == "AlreadyApplied"
    assert await input_of(bare) is None


# -- reads


@pytest.mark.parametrize(
    "policy",
    [
        {"kind": "all_of"},
        {"kind": "any_of", "on_satisfied": "let_run"},
        {"kind": "quorum", "k": 1, "on_satisfied": "cancel_remaining"},
    ],
)
async def test_a_policy_is_shown_as_it_was_given(
    http: httpx.AsyncClient, policy: dict[str, Any]
) -> None:
    """server-sdk.md 1.3 (c): an EdgeDependencyPolicy is tagged by `kind`."""
    flow = await create_flow(http)
    first, second = [await add_member(http, flow) for _ in range(2)]
    set = await http.put(f"{URL}/{flow}/edge-groups/{second}", json=policy)
    assert set.status_code == 200, set.text
    await link(http, flow, first, second, 2)
    found = (await http.get(f"{URL}/{flow}")).json()
    assert [group["policy"] for group in found["edge_groups"].values()] == [policy]
    members = (await http.get(f"{URL}/{flow}/members")).json()["members"]
    joins = {member["id"]: member["join"] for member in members}
    assert joins[second]["policy"] == policy
    assert joins[first] is None


async def test_a_policy_is_fixed_by_the_first_edge(http: httpx.AsyncClient) -> None:
    """coordination.md 1.4, check 6: it is refused as invalid input."""
    flow = await create_flow(http)
    first, second = [await add_member(http, flow) for _ in range(2)]
    await link(http, flow, first, second, 2)
    late = await http.put(f"{URL}/{flow}/edge-groups/{second}", json={"kind": "all_of"})
    body = error_of(late, 400)
    assert body["code"] == "invalid_input"
    assert "edge_group_policy_already_fixed" in body["error"]


async def test_a_quorum_of_none_is_refused_before_the_flow_is_looked_for(
    http: httpx.AsyncClient,
) -> None:
    """C-T35, coordination.md 1.4: check 1 is that of k, check 2 that of the flow."""
    flow = await create_flow(http)
    member = await add_member(http, flow)
    for k in (0, 2**31):
        for id in (flow, NOBODY):
            path = f"{URL}/{id}/edge-groups/{member}"
            refused = await http.put(path, json={"kind": "quorum", "k": k})
            assert error_of(refused, 400)["code"] == "invalid_input"
    path = f"{URL}/{NOBODY}/edge-groups/{member}"
    error_of(await http.put(path, json={"kind": "quorum", "k": 1}), 404)


async def test_a_group_tells_how_many_upstreams_still_run(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    """C-T61, coordination.md 1.10: running is what is neither satisfied, failed nor skipped."""
    flow = await create_flow(http)
    a, b, c = [await add_member(http, flow) for _ in range(3)]
    await link(http, flow, b, c, await link(http, flow, a, c, 3))
    await lab.complete(await lab.claim_one())
    await lab.engine.flows.drain()
    group = (await http.get(f"{URL}/{flow}")).json()["edge_groups"][c]
    assert (group["n"], group["succeeded"], group["running"]) == (2, 1, 1)
    members = (await http.get(f"{URL}/{flow}/members")).json()["members"]
    assert [each["join"]["running"] for each in members if each["join"]] == [1]


async def test_a_large_flow_is_described_without_the_joins_of_all_members(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """coordination.md 1.10: the pages of its members have the others."""
    monkeypatch.setattr("flowfabric.server.flow.graphs.GROUPS_SHOWN", 2)
    flow = await create_flow(http)
    hub, *others = [await add_member(http, flow) for _ in range(4)]
    for revision, other in enumerate(others, 4):
        await link(http, flow, hub, other, revision)
    found = (await http.get(f"{URL}/{flow}")).json()
    members = (await http.get(f"{URL}/{flow}/members")).json()["members"]
    joins = {each["id"]: each["join"] for each in members}
    assert found["nodes"] == len(joins) == 4
    assert [id for id in joins if joins[id]] == sorted(others)
    first_two = list(joins)[:2]
    assert found["edge_groups"] == {id: joins[id] for id in first_two if joins[id]}


async def test_the_ends_of_an_edge_are_tagged(http: httpx.AsyncClient) -> None:
    """server-sdk.md 1.2: an ExecutionId on the wire is `{fp:N}:<uuid>`."""
    flow = await create_flow(http)
    first, second = [await add_member(http, flow) for _ in range(2)]
    await link(http, flow, first, second, 2)
    (found,) = (await http.get(f"{URL}/{flow}/edges")).json()["edges"]
    assert (found["edge"]["upstream"], found["edge"]["downstream"]) == (first, second)
    (same,) = (await http.get(f"{URL}/{flow}/edges", params={"upstream": first})).json()["edges"]
    assert same == found


async def test_a_downstream_that_has_begun_keeps_its_input(
    http: httpx.AsyncClient, engine: Engine, lab: Lab
) -> None:
    """server-sdk.md 1.7: the result is passed when the edge is satisfied, not in the middle of an
    attempt."""
    flow = await create_flow(http)
    first = await add_member(http, flow, lane_id="first")
    second = await add_member(http, flow, lane_id="second")
    await lab.complete(await lab.claim_one(lanes=("first",)), b"result")
    edge = (await stage(http, flow, first, second, 2)).json()["Staged"]["edge_id"]
    claim = await lab.claim_one(lanes=("second",))
    assert (await apply(http, flow, edge, first, second, data_passing_ref="x")).is_success
    await lab.complete(claim)
    (state,) = await engine.flow_views.edges(UUID(flow))
    assert state.edge.input is None

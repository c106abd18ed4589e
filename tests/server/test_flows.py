"""Flows over HTTP: create, members, edges, cancel (server-sdk.md 1.7, coordination.md 1)."""

import asyncio
from typing import Any
from uuid import UUID

import httpx
import pytest

from flowfabric.core.base.ids import flow_partition, home_of, is_home
from flowfabric.engine.engine import Engine
from flowfabric.store.clock import ManualClock
from tests.kit.http import (
    NOBODY,
    add_member,
    create,
    create_flow,
    error_of,
    padded,
    tagged,
    uuid_of,
    without,
)
from tests.kit.lab import Lab

pytestmark = pytest.mark.rules

URL = "/v1/flows"
JSON = {"Content-Type": "application/json"}
FLOW = "01a1e105-7c1b-7d3e-8a52-000000000001"
NEW = {"flow_kind": "build", "namespace": "default"}
STOP = {"reason": "enough", "cancellation_policy": "cancel_all"}


def place_of(flow: str) -> int:
    return flow_partition(UUID(flow))


async def stage(
    http: httpx.AsyncClient, flow: str, upstream: str, downstream: str, revision: int, **more: Any
) -> httpx.Response:
    body = {
        "upstream_execution_id": upstream,
        "downstream_execution_id": downstream,
        "expected_graph_revision": revision,
        **more,
    }
    return await http.post(f"{URL}/{flow}/edges", json=body)


async def apply(
    http: httpx.AsyncClient, flow: str, edge: str, upstream: str, downstream: str, **more: Any
) -> httpx.Response:
    body = {
        "edge_id": edge,
        "upstream_execution_id": upstream,
        "downstream_execution_id": downstream,
        "graph_revision": 0,
        **more,
    }
    return await http.post(f"{URL}/{flow}/edges/apply", json=body)


async def link(
    http: httpx.AsyncClient, flow: str, upstream: str, downstream: str, revision: int
) -> int:
    """Stages and applies an edge, as clients of the original do; the new revision."""
    staged = (await stage(http, flow, upstream, downstream, revision)).json()["Staged"]
    reply = await apply(http, flow, staged["edge_id"], upstream, downstream)
    assert reply.status_code == 200, reply.text
    return int(staged["new_graph_revision"])


# -- create


async def test_create_is_idempotent(http: httpx.AsyncClient) -> None:
    """C-T1"""
    body = {**NEW, "flow_id": FLOW, "now": 5}
    first = await http.post(URL, json=body)
    assert (first.status_code, first.json()) == (201, {"Created": {"flow_id": FLOW}})
    again = await http.post(URL, json=body)
    assert (again.status_code, again.json()) == (200, {"AlreadySatisfied": {"flow_id": FLOW}})


async def test_another_kind_is_a_conflict(http: httpx.AsyncClient) -> None:
    await create_flow(http, flow_id=FLOW)
    for change in ({"flow_kind": "other"}, {"namespace": "other"}):
        body = error_of(await http.post(URL, json={**NEW, "flow_id": FLOW, **change}), 409)
        assert (body["kind"], body["retryable"]) == ("conflict", False)


async def test_the_server_mints_an_id(http: httpx.AsyncClient) -> None:
    assert UUID(await create_flow(http)) != UUID(await create_flow(http))


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"flow_id": "nonsense"}, 400),
        ({"flow_kind": ""}, 400),
        ({"namespace": ""}, 400),
        ({"flow_kind": None}, 422),
        ({"namespace": 5}, 422),
        ({"flow_id": 5}, 422),
    ],
)
async def test_a_wrong_flow_is_refused(
    http: httpx.AsyncClient, change: dict[str, Any], status: int
) -> None:
    error_of(await http.post(URL, json={**NEW, **change}), status)


@pytest.mark.parametrize("name", sorted(NEW))
async def test_a_missing_field_is_422(http: httpx.AsyncClient, name: str) -> None:
    error_of(await http.post(URL, json=without(NEW, name)), 422)


# -- members


async def test_an_execution_of_the_partition_of_the_flow_joins(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    """C-T2, C-T5: as a client of the original does it, the id alone says where it belongs."""
    flow = await create_flow(http, flow_id=FLOW)
    id = tagged(NOBODY, place_of(flow))
    await create(http, execution_id=id)
    body = {"flow_id": flow, "execution_id": id, "now": 1}
    added = await http.post(f"{URL}/{flow}/members", json=body)
    expected = {"Added": {"execution_id": id, "new_node_count": 1}}
    assert (added.status_code, added.json()) == (201, expected)
    again = await http.post(f"{URL}/{flow}/members", json=body)
    known = {"AlreadyMember": {"execution_id": id, "node_count": 1}}
    assert (again.status_code, again.json()) == (200, known)
    info = (await http.get(f"/v1/executions/{id}")).json()
    assert (info["execution_id"], info["flow_id"], info["public_state"]) == (id, flow, "waiting")
    assert (await lab.claim_one()).id == id


async def test_members_join_in_any_state(http: httpx.AsyncClient, lab: Lab) -> None:
    flow = await create_flow(http)
    running = await create(http, flow_id=flow)
    claim = await lab.claim_one()
    ended = await create(http, flow_id=flow)
    await lab.complete(await lab.claim_one())
    for count, id in enumerate((running, ended), 1):
        reply = await http.post(f"{URL}/{flow}/members", json={"execution_id": id})
        assert reply.json()["Added"]["new_node_count"] == count
    await lab.complete(claim, b"late")
    assert (await http.get(f"/v1/executions/{running}/state")).json() == "completed"
    found = await lab.engine.flow_views.get(UUID(flow))
    assert found is not None
    assert (found.over, found.state) == (2, "open")


async def test_a_plain_uuid_joins(http: httpx.AsyncClient) -> None:
    flow = await create_flow(http)
    id = await create(http, flow_id=flow)
    body = {"execution_id": str(uuid_of(id))}
    reply = await http.post(f"{URL}/{flow}/members", json=body)
    assert reply.json()["Added"]["execution_id"] == id


async def test_an_execution_of_another_partition_does_not_join(http: httpx.AsyncClient) -> None:
    """C-T7"""
    flow = await create_flow(http, flow_id=FLOW)
    id = await create(http, execution_id=tagged(NOBODY, (place_of(FLOW) + 1) % 256))
    body = error_of(await http.post(f"{URL}/{flow}/members", json={"execution_id": id}), 400)
    assert "partition mismatch" in body["error"]


async def test_a_member_of_another_flow_is_a_conflict(
    http: httpx.AsyncClient, engine: Engine
) -> None:
    """C-T8"""
    flow = await create_flow(http, flow_id=FLOW)
    id = await add_member(http, flow)
    other = await create_flow(http, flow_id=twin_of(flow))
    body = error_of(await http.post(f"{URL}/{other}/members", json={"execution_id": id}), 409)
    assert (body["kind"], body["code"]) == ("execution_already_in_flow",) * 2
    assert body["details"]["flow"] == flow


def twin_of(flow: str) -> str:
    """The id of another flow in the same partition."""
    ids = (UUID(int=number) for number in range(1, 5000))
    return str(next(id for id in ids if flow_partition(id) == place_of(flow)))


async def test_many_members_at_once_are_all_counted(http: httpx.AsyncClient) -> None:
    """C-T6"""
    flow = await create_flow(http)
    ids = [await create(http, flow_id=flow) for _ in range(10)]
    url = f"{URL}/{flow}/members"
    replies = await asyncio.gather(*(http.post(url, json={"execution_id": id}) for id in ids))
    counts = [reply.json()["Added"]["new_node_count"] for reply in replies]
    assert sorted(counts) == list(range(1, 11))


async def test_of_two_flows_one_gets_the_execution(http: httpx.AsyncClient) -> None:
    first = await create_flow(http, flow_id=FLOW)
    second = await create_flow(http, flow_id=twin_of(FLOW))
    id = await create(http, flow_id=first)
    replies = await asyncio.gather(
        *(http.post(f"{URL}/{flow}/members", json={"execution_id": id}) for flow in (first, second))
    )
    assert sorted(reply.status_code for reply in replies) == [201, 409]
    winner = first if replies[0].status_code == 201 else second
    assert (await http.get(f"/v1/executions/{id}")).json()["flow_id"] == winner


async def test_members_of_nothing(http: httpx.AsyncClient) -> None:
    """C-T3, C-T4"""
    flow = await create_flow(http, flow_id=FLOW)
    nothing = tagged(NOBODY, place_of(flow))
    missing = await http.post(f"{URL}/{flow}/members", json={"execution_id": nothing})
    assert error_of(missing, 404)["error"] == f"execution not found: {nothing}"
    id = await create(http, execution_id=tagged(NOBODY, flow_partition(UUID(NOBODY))))
    unknown = await http.post(f"{URL}/{NOBODY}/members", json={"execution_id": id})
    assert error_of(unknown, 404)["error"] == "not found: flow"


async def test_a_cancelled_flow_takes_no_members_and_edges(http: httpx.AsyncClient) -> None:
    """C-T10"""
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    late = await create(http, flow_id=flow)
    await http.post(f"{URL}/{flow}/cancel", json=STOP)
    for reply in (
        await http.post(f"{URL}/{flow}/members", json={"execution_id": late}),
        await stage(http, flow, first, second, 2),
    ):
        body = error_of(reply, 409)
        assert (body["kind"], body["retryable"]) == ("flow_already_terminal", False)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"execution_id": None}, 422),
        ({"execution_id": "nonsense"}, 400),
        ({"execution_id": NOBODY, "flow_id": NOBODY}, 400),
    ],
)
async def test_a_wrong_member_is_refused(
    http: httpx.AsyncClient, body: dict[str, Any], status: int
) -> None:
    await create_flow(http, flow_id=FLOW)
    error_of(await http.post(f"{URL}/{FLOW}/members", json=body), status)


# -- edges


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
    assert info["blocking_detail"] == "waits for 2 of 2 upstreams"


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


async def test_the_ends_of_an_edge_are_tagged(http: httpx.AsyncClient) -> None:
    """server-sdk.md 1.2: an ExecutionId on the wire is `{fp:N}:<uuid>`."""
    flow = await create_flow(http)
    first, second = [await add_member(http, flow) for _ in range(2)]
    await link(http, flow, first, second, 2)
    (found,) = (await http.get(f"{URL}/{flow}/edges")).json()["edges"]
    assert (found["edge"]["upstream"], found["edge"]["downstream"]) == (first, second)
    (same,) = (await http.get(f"{URL}/{flow}/edges", params={"upstream": first})).json()["edges"]
    assert same == found


# -- cancel


async def members_of(http: httpx.AsyncClient, count: int) -> tuple[str, list[str]]:
    flow = await create_flow(http)
    return flow, sorted([await add_member(http, flow) for _ in range(count)])


async def test_cancel_is_scheduled_by_default(http: httpx.AsyncClient, lab: Lab) -> None:
    flow, ids = await members_of(http, 2)
    reply = await http.post(f"{URL}/{flow}/cancel", json={**STOP, "flow_id": flow, "now": 1})
    scheduled = {
        "cancellation_policy": "cancel_all",
        "member_count": 2,
        "member_execution_ids": ids,
    }
    assert (reply.status_code, reply.json()) == (200, {"CancellationScheduled": scheduled})
    await lab.engine.flows.drain()
    for id in ids:
        assert (await http.get(f"/v1/executions/{id}/state")).json() == "cancelled"


@pytest.mark.parametrize("wait", ["true", "1"])
async def test_cancel_waits(http: httpx.AsyncClient, lab: Lab, wait: str) -> None:
    flow, ids = await members_of(http, 2)
    await lab.complete(await lab.claim_one())
    reply = await http.post(f"{URL}/{flow}/cancel", params={"wait": wait}, json=STOP)
    cancelled = {"cancellation_policy": "cancel_all", "member_execution_ids": ids}
    assert reply.json() == {"Cancelled": cancelled}
    states = [(await http.get(f"/v1/executions/{id}/state")).json() for id in ids]
    assert sorted(states) == ["cancelled", "completed"]


async def test_members_that_clean_up_are_left_over(http: httpx.AsyncClient, lab: Lab) -> None:
    flow = await create_flow(http)
    policy = {"cleanup_policy": {"cleanup_timeout_ms": 500}}
    id = await add_member(http, flow, policy=policy)
    await lab.claim_one()
    reply = await http.post(f"{URL}/{flow}/cancel", params={"wait": "true"}, json=STOP)
    left = {
        "cancellation_policy": "cancel_all",
        "member_execution_ids": [id],
        "failed_member_execution_ids": [id],
    }
    assert reply.json() == {"PartiallyCancelled": left}


async def test_a_flow_without_members_is_cancelled_at_once(http: httpx.AsyncClient) -> None:
    flow = await create_flow(http)
    reply = await http.post(f"{URL}/{flow}/cancel", json=STOP)
    empty = {"cancellation_policy": "cancel_all", "member_execution_ids": []}
    assert reply.json() == {"Cancelled": empty}


@pytest.mark.parametrize("policy", ["flow_only", "cancel_flow_only", "whatever we like"])
async def test_other_policies_leave_the_members_alone(
    http: httpx.AsyncClient, lab: Lab, policy: str
) -> None:
    flow, ids = await members_of(http, 1)
    for _ in range(2):
        body = {"reason": "r", "cancellation_policy": policy}
        reply = await http.post(f"{URL}/{flow}/cancel", json=body)
        cancelled = {"cancellation_policy": policy, "member_execution_ids": ids}
        assert reply.json() == {"Cancelled": cancelled}
    await lab.engine.flows.drain()
    assert (await http.get(f"/v1/executions/{ids[0]}/state")).json() == "waiting"


async def test_cancel_pending_spares_what_has_started(http: httpx.AsyncClient, lab: Lab) -> None:
    flow, ids = await members_of(http, 2)
    started = (await lab.claim_one()).id
    body = {"reason": "r", "cancellation_policy": "cancel_pending"}
    reply = await http.post(f"{URL}/{flow}/cancel", params={"wait": "1"}, json=body)
    assert reply.json()["Cancelled"]["member_execution_ids"] == ids
    states = {id: (await http.get(f"/v1/executions/{id}/state")).json() for id in ids}
    assert states.pop(started) == "active"
    assert list(states.values()) == ["cancelled"]


async def test_cancelling_again_answers_the_stored_policy(http: httpx.AsyncClient) -> None:
    flow, ids = await members_of(http, 1)
    await http.post(f"{URL}/{flow}/cancel", params={"wait": "true"}, json=STOP)
    body = {"reason": "again", "cancellation_policy": "flow_only"}
    reply = await http.post(f"{URL}/{flow}/cancel", json=body)
    stored = {"cancellation_policy": "cancel_all", "member_execution_ids": ids}
    assert (reply.status_code, reply.json()) == (200, {"Cancelled": stored})


async def test_a_flow_of_the_sdk_that_has_ended_stays_as_it_is(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    made = await lab.engine.flows.create("declared")
    id = getattr(made, "id")  # noqa: B009 - the answer is a union
    await lab.engine.flows.seal(id)
    reply = await http.post(f"{URL}/{id}/cancel", json=STOP)
    assert reply.json()["Cancelled"]["cancellation_policy"] == "cancel_all"
    found = await lab.engine.flow_views.get(id)
    assert found is not None
    assert found.state == "completed"


async def test_cancel_of_nothing(http: httpx.AsyncClient) -> None:
    body = error_of(await http.post(f"{URL}/{NOBODY}/cancel", json=STOP), 404)
    assert body["error"] == "not found: flow"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (without(STOP, "reason"), 422),
        (without(STOP, "cancellation_policy"), 422),
        ({**STOP, "reason": None}, 422),
        ({**STOP, "flow_id": NOBODY}, 400),
    ],
)
async def test_a_wrong_cancel_is_refused(
    http: httpx.AsyncClient, body: dict[str, Any], status: int
) -> None:
    flow = await create_flow(http)
    error_of(await http.post(f"{URL}/{flow}/cancel", json=body), status)


# -- all routes


@pytest.mark.parametrize(
    "path", ["", "/{id}/members", "/{id}/edges", "/{id}/edges/apply", "/{id}/cancel"]
)
async def test_the_limit_of_the_body(http: httpx.AsyncClient, path: str) -> None:
    url = f"{URL}{path}".replace("{id}", FLOW)
    large = await http.post(url, content=padded({}, 64 * 1024 + 1), headers=JSON)
    assert large.status_code == 413
    assert large.json()["limit_bytes"] == 64 * 1024
    assert large.json()["route"] == f"/v1/flows{path}"
    fits = await http.post(url, content=padded({}, 64 * 1024), headers=JSON)
    assert fits.status_code == 422
    error_of(await http.post(url, content=b"{}", headers={"Content-Type": "text/plain"}), 415)
    error_of(await http.post(url, content=b"{", headers=JSON), 400)


@pytest.mark.parametrize("path", ["members", "edges", "edges/apply", "cancel"])
async def test_a_malformed_id_is_400(http: httpx.AsyncClient, path: str) -> None:
    bodies = {
        "members": {"execution_id": NOBODY},
        "edges": {
            "upstream_execution_id": NOBODY,
            "downstream_execution_id": FLOW,
            "expected_graph_revision": 0,
        },
        "edges/apply": {
            "edge_id": NOBODY,
            "upstream_execution_id": NOBODY,
            "downstream_execution_id": FLOW,
            "graph_revision": 0,
        },
        "cancel": STOP,
    }
    error_of(await http.post(f"{URL}/nonsense/{path}", json=bodies[path]), 400)


async def test_an_open_flow_is_trimmed_when_its_members_are_over(
    http: httpx.AsyncClient, lab: Lab, clock: ManualClock
) -> None:
    flow, _ = await members_of(http, 1)
    await lab.complete(await lab.claim_one())
    await lab.engine.flows.drain()
    found = await lab.engine.flow_views.get(UUID(flow))
    assert found is not None
    assert (found.state, found.ended_at) == ("open", clock.now())
    more = await add_member(http, flow)
    found = await lab.engine.flow_views.get(UUID(flow))
    assert found is not None
    assert found.ended_at is None
    assert (await lab.claim_one()).id == more


async def told(http: httpx.AsyncClient, lab: Lab, flow: str) -> tuple[str, str, str]:
    """The header, the status and the state by its members; the list tells the same status."""
    await lab.engine.flows.drain()
    shown = (await http.get(f"{URL}/{flow}")).json()
    listed = {each["id"]: each for each in (await http.get(URL)).json()["flows"]}
    assert (listed[flow]["state"], listed[flow]["status"]) == (shown["state"], shown["status"])
    return shown["state"], shown["status"], shown["public_flow_state"]


async def test_a_flow_tells_its_state_by_its_members(http: httpx.AsyncClient, lab: Lab) -> None:
    """I-22, coordination.md 1.10 and 1.11: the header stays open"""
    flow = await create_flow(http)
    assert await told(http, lab, flow) == ("open", "active", "open")
    first, second = await add_member(http, flow), await add_member(http, flow)
    assert await told(http, lab, flow) == ("open", "active", "open")
    await link(http, flow, first, second, 2)
    assert await told(http, lab, flow) == ("open", "active", "blocked")
    claim = await lab.claim_one()
    assert await told(http, lab, flow) == ("open", "active", "running")
    await lab.complete(claim)
    assert await told(http, lab, flow) == ("open", "active", "open")
    await lab.complete(await lab.claim_one())
    assert await told(http, lab, flow) == ("open", "completed", "completed")
    waited = await http.get(f"{URL}/{flow}/wait")
    assert (waited.status_code, waited.json()["status"]) == (200, "completed")
    third = await add_member(http, flow)
    assert await told(http, lab, flow) == ("open", "active", "open")
    await http.post(f"/v1/executions/{third}/cancel", json={"reason": "no"})
    assert await told(http, lab, flow) == ("open", "failed", "failed")
    await http.post(f"{URL}/{flow}/cancel", json=STOP)
    assert await told(http, lab, flow) == ("cancelled", "cancelled", "cancelled")


@pytest.mark.parametrize("partition", [0, 7, 255])
def test_the_home_of_a_partition_is_no_flow(partition: int) -> None:
    home = home_of(partition)
    assert flow_partition(home) == partition
    assert is_home(home)
    assert not is_home(UUID(NOBODY))

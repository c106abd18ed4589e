"""Flows over HTTP: create, members, edges, cancel (server-sdk.md 1.7, coordination.md 1)."""

import asyncio
from typing import Any
from uuid import UUID

import httpx
import pytest

from flowfabric.core.base.ids import flow_partition, home_of, is_home
from flowfabric.engine.engine import Engine
from flowfabric.store.clock import ManualClock
from tests.kit.damage import spoil
from tests.kit.http import (
    NOBODY,
    add_member,
    create,
    create_flow,
    error_of,
    link,
    padded,
    stage,
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


async def test_a_plain_uuid_of_nothing_does_not_join(http: httpx.AsyncClient) -> None:
    """C-T3, C-T4, C-T7: without a partition the flow is looked for first, then the execution; one
    that is there shows its partition"""
    flow, bare = await create_flow(http), {"execution_id": NOBODY}
    missing = await http.post(f"{URL}/{flow}/members", json=bare)
    assert error_of(missing, 404)["error"] == f"execution not found: {NOBODY}"
    unknown = await http.post(f"{URL}/{NOBODY}/members", json=bare)
    assert error_of(unknown, 404)["error"] == "not found: flow"
    solo = await create(http, execution_id=tagged(NOBODY, (place_of(flow) + 1) % 256))
    assert uuid_of(solo) == UUID(NOBODY)
    elsewhere = await http.post(f"{URL}/{flow}/members", json=bare)
    assert "partition mismatch" in error_of(elsewhere, 400)["error"]


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


async def test_a_member_that_cannot_be_read_is_left_over(
    http: httpx.AsyncClient, store_url: str
) -> None:
    """C-T75: both lists name it"""
    flow, ids = await members_of(http, 3)
    await spoil(store_url, "ready", "life", ids[0])
    reply = await http.post(f"{URL}/{flow}/cancel", params={"wait": "true"}, json=STOP)
    left = {
        "cancellation_policy": "cancel_all",
        "member_execution_ids": sorted(ids),
        "failed_member_execution_ids": [ids[0]],
    }
    assert (reply.status_code, reply.json()) == (200, {"PartiallyCancelled": left})


async def test_a_flow_without_members_is_cancelled_at_once(http: httpx.AsyncClient) -> None:
    flow = await create_flow(http)
    reply = await http.post(f"{URL}/{flow}/cancel", json=STOP)
    empty = {"cancellation_policy": "cancel_all", "member_execution_ids": []}
    assert reply.json() == {"Cancelled": empty}


@pytest.mark.parametrize("policy", ["flow_only", "cancel_flow_only", "whatever we like", ""])
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


async def test_flows_are_paged_and_a_limit_of_0_gives_an_empty_page(
    http: httpx.AsyncClient,
) -> None:
    """C-T62, coordination.md 1.10: the cursor is exclusive, and the last page has none"""
    flows = [await create_flow(http) for _ in range(3)]
    found: list[str] = []
    params: dict[str, Any] = {"limit": 2, "newest_first": False}
    while True:
        page = (await http.get(URL, params=params)).json()
        found += [flow["id"] for flow in page["flows"]]
        if page["next_cursor"] is None:
            break
        params["cursor"] = page["next_cursor"]
    assert found == flows
    none = await http.get(URL, params={"limit": 0})
    assert none.json() == {"flows": [], "next_cursor": None}
    members = await http.get(f"{URL}/{flows[0]}/members", params={"limit": 0})
    assert members.json() == {"members": [], "next_cursor": None}
    error_of(await http.get(URL, params={"limit": -1}), 400)

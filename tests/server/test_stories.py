"""Whole stories that clients of the original play, over HTTP alone (server-sdk.md 7)."""

import json
from base64 import b64encode
from typing import Any

import httpx
import pytest

from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphEdge, GraphNode
from tests.kit.flowing import die_after_commits
from tests.kit.http import BUDGET, add_member, create, create_flow
from tests.kit.lab import Lab
from tests.kit.signalling import fresh


class Player:
    """A client and a worker that know nothing but the routes."""

    def __init__(self, http: httpx.AsyncClient, lab: Lab) -> None:
        self.http = http
        self._lab = lab

    async def post(self, path: str, status: int = 200, /, **body: Any) -> Any:
        reply = await self.http.post(path, json=body)
        assert reply.status_code == status, reply.text
        return reply.json() if reply.content else None

    async def state(self, id: str) -> str:
        state: str = (await self.http.get(f"/v1/executions/{id}/state")).json()
        return state

    async def states(self, *ids: str) -> list[str]:
        return [await self.state(id) for id in ids]

    async def depend(self, flow: str, upstream: str, downstream: str, revision: int) -> int:
        """An edge, staged and applied; the next revision."""
        ends = {"upstream_execution_id": upstream, "downstream_execution_id": downstream}
        edge = {"edge_id": str(fresh()), "flow_id": flow, "now": 0, **ends}
        path = f"/v1/flows/{flow}/edges"
        staged = await self.post(path, 201, expected_graph_revision=revision, **edge)
        next: int = staged["Staged"]["new_graph_revision"]
        await self.post(f"{path}/apply", graph_revision=next, **edge)
        return next

    async def grant(self, lane: str, *capabilities: str, worker: str = "w") -> httpx.Response:
        body = {"lane_id": lane, "worker_instance_id": "i", "grant_ttl_ms": 5_000}
        return await self.http.post(
            f"/v1/workers/{worker}/claim", json={**body, "capabilities": capabilities}
        )

    async def redeem(self, grant: dict[str, Any], worker: str = "w") -> dict[str, Any]:
        named = {name: grant[name] for name in ("execution_id", "grant_key")}
        who = {"worker_id": worker, "worker_instance_id": "i", "lease_ms": 1_000}
        found: dict[str, Any] = await self.post("/v1/work/claim-grant", **named, **who)
        return found

    async def take(self, lane: str, *capabilities: str) -> dict[str, Any]:
        reply = await self.grant(lane, *capabilities)
        assert reply.status_code == 200, reply.text
        return await self.redeem(reply.json())

    async def do(self, claim: dict[str, Any], operation: str, **body: Any) -> dict[str, Any]:
        """What a worker reports; flows have gone on when it returns."""
        path = f"/v1/work/{claim['execution_id']}/{operation}"
        found: dict[str, Any] = await self.post(path, handle=claim["handle"], **body)
        await self._lab.engine.flows.drain()
        return found

    async def signal(
        self, id: str, waitpoint: str, token: str, who: str, status: int = 200, /, **more: Any
    ) -> dict[str, Any]:
        body = {
            "execution_id": id,
            "waitpoint_id": waitpoint,
            "signal_id": str(fresh()),
            "signal_name": "deploy_approval",
            "signal_category": "approval",
            "source_type": "user",
            "source_identity": who,
            "target_scope": "waitpoint",
            "waitpoint_token": token,
            "now": 0,
        }
        path = f"/v1/executions/{id}/signal"
        found: dict[str, Any] = await self.post(path, status, **{**body, **more})
        return found


def needs(*capabilities: str) -> dict[str, Any]:
    """A policy that asks for these."""
    return {"routing_requirements": {"required_capabilities": capabilities}}


def b64(data: bytes) -> str:
    return b64encode(data).decode()


@pytest.fixture
def player(http: httpx.AsyncClient, lab: Lab) -> Player:
    return Player(http, lab)


async def test_incident_remediation(player: Player, lab: Lab) -> None:
    """7.3: a directed handoff, and no more of them than the policy allows."""
    needed = {"routing_requirements": {"required_capabilities": ["fix"]}}
    id = await create(player.http, policy={"max_reclaim_count": 2, **needed})
    first = await player.take("default", "fix")
    asked: dict[str, Any] = {"worker_id": "b", "worker_instance_id": "i", "lane_id": "default"}
    asked |= {"grant_ttl_ms": 1_000, "worker_capabilities": ["fix"]}
    path = f"/v1/executions/{id}/reclaim"
    assert (await player.post(path, **asked))["status"] == "not_reclaimable"
    for attempt in (1, 2):
        await lab.pass_time(1_001)
        wrong = await player.post(path, **{**asked, "worker_capabilities": []})
        assert wrong["detail"] == "capability_mismatch: fix"
        claim = await player.redeem(await player.post(path, **asked), "b")
        assert (claim["started_as"], claim["attempt_index"]) == ("reclaim", attempt)
    late = {"handle": first["handle"], "result": 1}
    assert (await player.http.post(f"/v1/work/{id}/complete", json=late)).status_code == 409
    await lab.pass_time(1_001)
    spent = {"status": "reclaim_cap_exceeded", "execution_id": id, "reclaim_count": 2}
    assert await player.post(path, **asked) == spent
    asking = {"worker_id": "w", "worker_instance_id": "i", "capabilities": ["fix"]}
    assert (await player.post("/v1/work/claim", **asking))["claims"] == []
    assert await player.state(id) == "failed"


async def test_retry_until_the_policy_is_exhausted(player: Player, lab: Lab) -> None:
    """7.4, scene 1"""
    retry = {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 50}}
    id = await create(player.http, policy={"retry_policy": retry})
    outcomes = []
    for attempt in range(3):
        claim = await player.take("default")
        assert claim["attempt_index"] == attempt
        failed = await player.do(claim, "fail", reason="503", category="simulated_503")
        outcomes.append(failed["outcome"])
        await lab.pass_time(50)
    assert outcomes == ["retry_scheduled", "retry_scheduled", "terminal_failed"]
    assert await player.state(id) == "failed"


async def test_cancel_a_flow_of_delayed_members(player: Player, lab: Lab) -> None:
    """7.4, scene 2"""
    flow = await create_flow(player.http)
    later = lab.clock.now() + 600_000
    members = sorted([await add_member(player.http, flow, delay_until=later) for _ in range(2)])
    assert await player.states(*members) == ["delayed", "delayed"]
    stop = {"reason": "stop", "cancellation_policy": "cancel_all", "now": 0}
    answer = await player.post(f"/v1/flows/{flow}/cancel?wait=true", flow_id=flow, **stop)
    assert set(answer) == {"Cancelled"}
    assert sorted(answer["Cancelled"]["member_execution_ids"]) == members
    assert await player.states(*members) == ["cancelled", "cancelled"]


TWO_PEOPLE = {
    "Composite": {
        "kind": "Count",
        "n": 2,
        "count_kind": "DistinctSources",
        "matcher": {"ByName": "deploy_approval"},
        "waitpoints": ["approval"],
    }
}


@pytest.mark.parametrize("fails", [False, True])
async def test_a_branch_that_fails_skips_the_fan_in(player: Player, fails: bool) -> None:
    """C-T145: fan out and in; with a branch that fails the fan-in is skipped"""
    http, flow = player.http, await create_flow(player.http)
    root, left, right, last = [
        await add_member(http, flow, lane_id=lane) for lane in ("root", "left", "right", "last")
    ]
    revision = 4
    for pair in ((root, left), (root, right), (left, last), (right, last)):
        revision = await player.depend(flow, *pair, revision)
    await player.do(await player.take("root"), "complete")
    await player.do(await player.take("left"), "complete")
    claim = await player.take("right")
    if fails:
        await player.do(claim, "fail", reason="broken", category="permanent")
        assert await player.states(left, right, last) == ["completed", "failed", "skipped"]
        return
    await player.do(claim, "complete")
    await player.do(await player.take("last"), "complete")
    assert await player.states(root, left, right, last) == ["completed"] * 4


async def test_deploy_approval(player: Player) -> None:
    """7.6: fan out and in, routing by capability, the two-person rule, a rolling summary."""
    http, flow = player.http, await create_flow(player.http)
    build = await add_member(http, flow, lane_id="build")
    tests = {}
    for kind in ("unit", "integration", "e2e"):
        needed = {"routing_requirements": {"required_capabilities": [f"kind={kind}"]}}
        tests[kind] = await add_member(http, flow, lane_id="test", policy=needed)
    deploy = await add_member(http, flow, lane_id="deploy")
    verify = await add_member(http, flow, lane_id="verify")
    revision = 6
    pairs = [(build, test) for test in tests.values()] + [(test, deploy) for test in tests.values()]
    for upstream, downstream in [*pairs, (deploy, verify)]:
        revision = await player.depend(flow, upstream, downstream, revision)
    assert await player.states(build, deploy, verify) == ["waiting"] + ["waiting_children"] * 2
    claim = await player.take("build")
    for step in range(4):
        frame = {"payload_json": {"step": step}, "mode": "summary"}
        await player.do(claim, "frames", frames=[frame])
    summary = (await http.get(f"/v1/executions/{build}/attempts/0/summary")).json()
    assert (summary["document"], summary["version"]) == ({"step": 3}, 4)
    await player.do(claim, "complete", result="built")
    assert (await player.grant("test")).status_code == 204
    for kind, test in tests.items():
        claim = await player.take("test", f"kind={kind}")
        assert claim["execution_id"] == test
        await player.do(claim, "complete")
    await approve(player, deploy)
    claim = await player.take("deploy")
    assert (claim["started_as"], claim["attempt_index"]) == ("resume", 0)
    await player.do(claim, "complete")
    await player.do(await player.take("verify"), "complete")
    assert await player.states(build, deploy, verify) == ["completed"] * 3


async def approve(player: Player, deploy: str) -> None:
    """Alice alone is not enough, nor a forged token."""
    claim = await player.take("deploy")
    await player.do(claim, "suspend", condition=TWO_PEOPLE, timeout_ms=60_000)
    url = f"/v1/executions/{deploy}"
    (open,) = (await player.http.get(f"{url}/pending-waitpoints")).json()
    waitpoint = open["waitpoint_id"]
    token = (await player.http.get(f"{url}/waitpoints/{waitpoint}/token")).json()["token"]
    first = await player.signal(deploy, waitpoint, token, "alice")
    assert first["Accepted"]["effect"] == "appended_to_waitpoint"
    await player.signal(deploy, waitpoint, token, "alice")
    forged = token[:-1] + ("1" if token.endswith("0") else "0")
    refused = await player.signal(deploy, waitpoint, forged, "bob", 400)
    assert "invalid_token" in refused["error"]
    assert await player.state(deploy) == "suspended"
    second = await player.signal(deploy, waitpoint, token, "bob")
    assert second["Accepted"]["effect"] == "resume_condition_satisfied"


async def test_a_budget_stops_a_flow(player: Player) -> None:
    """7.5: five children share a budget of two dimensions; a hard breach counts nothing."""
    limits = {"dimensions": ["tokens", "cost"], "hard_limits": [1200, 15_000]}
    budget = {**BUDGET, "budget_id": str(fresh()), **limits, "soft_limits": [800, 10_000]}
    await player.post("/v1/budgets", 201, **budget)
    url, flow = f"/v1/budgets/{budget['budget_id']}", await create_flow(player.http)
    children = [await add_member(player.http, flow) for _ in range(5)]
    said = []
    for child in children:
        claim = await player.take("default")
        spent = {"tokens": 450, "cost": 4_000}
        answer = await player.post(f"{url}/usage", dimensions=spent, dedup_key=child, now=0)
        said.append(answer if isinstance(answer, str) else next(iter(answer)))
        if said[-1] == "HardBreach":
            await player.do(claim, "fail", reason="spent", category="budget_hard_breach")
        else:
            await player.do(claim, "complete")
    assert said == ["Ok", "SoftBreach", *["HardBreach"] * 3]
    status = (await player.http.get(url)).json()
    assert status["usage"] == {"tokens": 900, "cost": 8_000}
    assert (status["breach_count"], status["soft_breach_count"]) == (3, 1)
    stop = {"reason": "spent", "cancellation_policy": "cancel_pending", "flow_id": flow, "now": 0}
    assert "Cancelled" in await player.post(f"/v1/flows/{flow}/cancel", **stop)


async def follow(player: Player, id: str) -> tuple[list[str], str]:
    """What a tail shows until the stream is closed, and why it was."""
    after, payloads = "0-0", list[str]()
    while True:
        query: dict[str, str | int] = {"after": after, "block_ms": 1_000, "limit": 2}
        url = f"/v1/executions/{id}/attempts/0/stream/tail"
        page = (await player.http.get(url, params=query)).json()
        payloads += [frame["fields"]["payload"] for frame in page["frames"]]
        if "closed_at" in page and not page["frames"]:
            return payloads, page["closed_reason"]
        after = page["frames"][-1]["id"] if page["frames"] else after


async def test_media_pipeline(player: Player) -> None:
    """7.7: streams followed to their end, results as bytes, racing reviewers, a forged token."""
    heard = await create(player.http, policy=needs("asr"))
    assert (await player.grant("default", "llm")).status_code == 204
    claim = await player.take("default", "asr")
    for word in ("one", "two", "three"):
        await player.do(claim, "frames", frames=[{"text": word, "frame_type": "delta"}])
    await player.do(claim, "complete", result_base64=b64(b"\x00\xff"))
    assert await follow(player, heard) == (["one", "two", "three"], "attempt_success")
    assert (await player.http.get(f"/v1/executions/{heard}/result")).content == b"\x00\xff"
    summary = await create(player.http, policy=needs("llm"))
    claim = await player.take("default", "llm")
    opened = await player.do(claim, "suspend", signal="review")
    ((waitpoint, token),) = [(w["waitpoint_id"], w["token"]) for w in opened["waitpoints"]]
    forged = token[:-1] + ("1" if token.endswith("0") else "0")
    refused = await player.signal(summary, waitpoint, forged, "mallory", 400)
    assert "invalid_token" in refused["error"]
    assert await player.state(summary) == "suspended"
    review = {"signal_name": "review", "payload": list(b'{"ok": true}'), "payload_encoding": "json"}
    review |= {"idempotency_key": f"review-approve/{summary}/{waitpoint}"}
    answers = [
        await player.signal(summary, waitpoint, token, who, 200, **review) for who in ("ada", "bob")
    ]
    first = answers[0]["Accepted"]
    assert first["effect"] == "resume_condition_satisfied"
    assert answers[1] == {"Duplicate": {"existing_signal_id": first["signal_id"]}}
    claim = await player.take("default", "llm")
    assert [signal["payload_json"] for signal in claim["signals"]] == [{"ok": True}]
    await player.do(claim, "complete", result="a summary")
    assert await player.state(summary) == "completed"


@pytest.mark.parametrize("approved", [True, False])
async def test_coding_agent(player: Player, approved: bool) -> None:
    """7.8: frames and progress, one review for both verdicts, and the attempt goes on."""
    id = await create(player.http)
    claim = await player.take("default")
    for percent in (5, 45, 90):
        await player.do(claim, "progress", percent=percent, message="thinking")
        await player.do(claim, "frames", frames=[{"payload_json": {"step": percent}}])
    (open,) = (await player.do(claim, "suspend", signal="review_response"))["waitpoints"]
    info = (await player.http.get(f"/v1/executions/{id}")).json()
    assert info["public_state"] == "suspended"
    assert info["state_vector"]["blocking_reason"] == "waiting_for_signal"
    verdict = json.dumps({"approved": approved, "feedback": "hm"}).encode()
    more = {"signal_name": "review_response", "payload": list(verdict), "payload_encoding": "json"}
    await player.signal(id, open["waitpoint_id"], open["token"], "ada", 200, **more)
    claim = await player.take("default")
    assert (claim["started_as"], claim["attempt_index"]) == ("resume", 0)
    (answer,) = claim["signals"]
    if answer["payload_json"]["approved"]:
        await player.do(claim, "complete", result="the patch")
    else:
        await player.do(claim, "fail", reason="rejected: hm", category="permanent")
    assert await player.state(id) == ("completed" if approved else "failed")
    payloads, reason = await follow(player, id)
    assert [json.loads(payload)["step"] for payload in payloads] == [5, 45, 90]
    assert reason == ("attempt_success" if approved else "attempt_failure")


async def test_tenants_of_one_store(player: Player) -> None:
    """7.10: a subscriber to one tenant sees its leases and nothing of another tenant."""
    tenants = {}
    for tenant in ("acme", "contoso"):
        tenants[tenant] = await create(player.http, tags={"app.tenant": tenant})
    for _ in tenants:
        await player.do(await player.take("default"), "complete")
    can = (await player.http.get("/v1/capabilities")).json()["capabilities"]
    assert can["subscribe_lease_history"]
    asked = {"family": "lease", "tag": "app.tenant=acme"}
    events = (await player.http.get("/v1/events", params=asked)).json()["events"]
    assert {event["execution_id"] for event in events} == {tenants["acme"]}
    assert [event["lease"]["change"] for event in events] == ["acquired", "released"]


async def test_an_operator_without_a_worker(player: Player) -> None:
    """7.11: budgets, a quota and every act of an operator, on a store where no worker runs."""
    for _ in range(2):
        budget = str(fresh())
        await player.post("/v1/budgets", 201, **{**BUDGET, "budget_id": budget})
        used = await player.post(f"/v1/budgets/{budget}/usage", dimensions={"tokens": 7}, now=0)
        status = (await player.http.get(f"/v1/budgets/{budget}")).json()
        assert (used, status["usage"]) == ("Ok", {"tokens": 7})
    window = {"window_seconds": 60, "max_requests_per_window": 5, "max_concurrent": 2, "now": 0}
    await player.post("/v1/quotas", 201, quota_policy_id=str(fresh()), **window)
    moved, cancelled, again, held, waiting = [await create(player.http) for _ in range(5)]
    put = await player.http.put(f"/v1/executions/{moved}/priority", json={"new_priority": 900})
    assert put.json() == {"Changed": {"execution_id": moved}}
    for id in (cancelled, again):
        await player.post(f"/v1/executions/{id}/cancel", execution_id=id, reason="no", now=0)
    replayed = await player.post(f"/v1/executions/{again}/replay")
    assert replayed == {"Replayed": {"public_state": "waiting"}}
    assert (await player.http.get(f"/v1/executions/{held}/pending-waitpoints")).json() == []
    flow = await create_flow(player.http)
    member = await add_member(player.http, flow)
    stop = {"flow_id": flow, "reason": "no", "cancellation_policy": "flow_only", "now": 0}
    closed = await player.post(f"/v1/flows/{flow}/cancel", **stop)
    assert closed["Cancelled"]["member_execution_ids"] == [member]
    infos = [
        (await player.http.get(f"/v1/executions/{id}")).json()
        for id in (moved, cancelled, again, held, waiting)
    ]
    assert [info["priority"] for info in infos] == [900, 0, 0, 0, 0]
    states = [info["state_vector"]["public_state"] for info in infos]
    assert states == ["waiting", "cancelled", "waiting", "waiting", "waiting"]
    assert infos[2]["state_vector"]["attempt_state"] == "pending_replay_attempt"


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_race_of_providers(player: Player, method: str) -> None:
    """7.9, and 1.8: the first to finish starts the aggregator; the others are cancelled."""
    http, flow = player.http, await create_flow(player.http)
    racers = [await add_member(http, flow, lane_id="provider") for _ in range(3)]
    aggregator = await add_member(http, flow, lane_id="aggregator")
    policy = {"kind": "any_of", "on_satisfied": "cancel_remaining"}
    url = f"/v1/flows/{flow}/edge-groups/{aggregator}"
    assert (await http.request(method, url, json=policy)).json() == {"set": True}
    revision = 4
    for racer in racers:
        revision = await player.depend(flow, racer, aggregator, revision)
    winner, loser = await player.take("provider"), await player.take("provider")
    await player.do(winner, "complete", result="first")
    assert await player.state(aggregator) == "waiting"
    late = {"handle": loser["handle"], "result": "late"}
    path = f"/v1/work/{loser['execution_id']}/complete"
    assert (await http.post(path, json=late)).status_code == 409
    states = {await player.state(racer) for racer in racers}
    assert states == {"completed", "cancelled"}
    assert (await player.take("aggregator"))["execution_id"] == aggregator


@pytest.mark.parametrize("result", [b"from upstream", None])
async def test_results_pass_along_an_edge(player: Player, result: bytes | None) -> None:
    """1.7, coordination.md 1.6: the result replaces the payload of the downstream; without one it
    keeps its own."""
    http, flow = player.http, await create_flow(player.http)
    upstream = await add_member(http, flow, lane_id="up")
    downstream = await add_member(http, flow, lane_id="down", input_payload=list(b"own"))
    edge = {"edge_id": str(fresh()), "data_passing_ref": "output"}
    edge |= {"upstream_execution_id": upstream, "downstream_execution_id": downstream}
    path = f"/v1/flows/{flow}/edges"
    await player.post(path, 201, expected_graph_revision=2, **edge)
    applied = await player.post(f"{path}/apply", graph_revision=3, **edge)
    assert applied == {"Applied": {"unsatisfied_count": 1}}
    claim = await player.take("up")
    body = {} if result is None else {"result_base64": b64(result)}
    await player.do(claim, "complete", **body)
    claim = await player.take("down")
    assert claim["execution_id"] == downstream
    assert claim["payload"] == b64(result or b"own")


async def test_a_flow_that_an_application_declares_passes_results_by_name(
    player: Player, lab: Lab
) -> None:
    """C-T26, F-23, I-16: a worker over HTTP gets them beside the own input of its run, as one in
    Python does."""
    up = GraphNode("up", Submission(kind="up", lane="up"))
    own = Submission(kind="down", lane="down", payload=b'{"rows":null,"n":1}', encoding="json")
    link = GraphEdge("up", "down", input="rows")
    await lab.engine.flows.declare("nightly", Graph((up, GraphNode("down", own)), (link,)))
    await player.do(await player.take("up"), "complete", result=[1, 2])
    assert (await player.take("down"))["payload_json"] == {"rows": [1, 2], "n": 1}


async def test_an_upstream_that_runs_again_has_passed_its_result(player: Player) -> None:
    """coordination.md 1.16: a replay takes back neither a satisfied edge nor its data."""
    http, flow = player.http, await create_flow(player.http)
    upstream = await add_member(http, flow, lane_id="up")
    downstream = await add_member(http, flow, lane_id="down", input_payload=list(b"own"))
    edge = {"edge_id": str(fresh()), "data_passing_ref": "output"}
    edge |= {"upstream_execution_id": upstream, "downstream_execution_id": downstream}
    await player.post(f"/v1/flows/{flow}/edges", 201, expected_graph_revision=2, **edge)
    await player.do(await player.take("up"), "complete", result_base64=b64(b"first"))
    assert (await http.post(f"/v1/executions/{upstream}/replay")).is_success
    assert (await player.take("down"))["payload"] == b64(b"first")


@pytest.mark.parametrize("ended_first", [False, True])
async def test_applying_an_edge_may_say_that_it_passes_the_result(
    player: Player, ended_first: bool
) -> None:
    """server-sdk.md 1.7: the edge is staged without a `data_passing_ref` and applied with one; it
    also counts if the upstream has ended in between."""
    http, flow = player.http, await create_flow(player.http)
    upstream = await add_member(http, flow, lane_id="up")
    downstream = await add_member(http, flow, lane_id="down", input_payload=list(b"own"))
    edge = {"upstream_execution_id": upstream, "downstream_execution_id": downstream}
    edge["edge_id"] = str(fresh())
    path = f"/v1/flows/{flow}/edges"
    await player.post(path, 201, expected_graph_revision=2, **edge)
    claim = await player.take("up")
    if ended_first:
        await player.do(claim, "complete", result_base64=b64(b"from upstream"))
    await player.post(f"{path}/apply", graph_revision=3, data_passing_ref="x", **edge)
    if not ended_first:
        await player.do(claim, "complete", result_base64=b64(b"from upstream"))
    claim = await player.take("down")
    assert claim["payload"] == b64(b"from upstream")
    (shown,) = (await http.get(path)).json()["edges"]
    assert shown["edge"]["input"] == "x"


@pytest.mark.parametrize("pause", [0, 1])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_upstream_that_fires_a_race_passes_its_result(
    player: Player, lab: Lab, order: tuple[int, int], pause: int
) -> None:
    """coordination.md 1.6: a later result of another upstream changes nothing, not even one of the
    same moment."""
    claims = await race_of_two(player)
    first, second = (claims[number] for number in order)
    await player.do(first, "complete", result_base64=b64(b"first"))
    await lab.pass_time(pause)
    await player.do(second, "complete", result_base64=b64(b"second"))
    assert (await player.take("down"))["payload"] == b64(b"first")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_of_upstreams_that_are_counted_at_once_the_first_passes_its_result(
    player: Player, lab: Lab, order: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """coordination.md 1.6: the server died after both commits, and the sweep finds what it owes."""
    claims = await race_of_two(player)
    with monkeypatch.context() as dead:
        die_after_commits(lab, dead)
        for number, result in zip(order, (b"first", b"second"), strict=True):
            await player.do(claims[number], "complete", result_base64=b64(result))
            lab.clock.advance(1)
    await lab.engine.sweep.once()
    assert (await player.take("down"))["payload"] == b64(b"first")


async def race_of_two(player: Player) -> list[dict[str, Any]]:
    """The claims of two upstreams, one of which is enough for their downstream."""
    http, flow = player.http, await create_flow(player.http)
    racers = [await add_member(http, flow, lane_id="up") for _ in range(2)]
    downstream = await add_member(http, flow, lane_id="down")
    policy = {"kind": "any_of", "on_satisfied": "let_run"}
    await http.put(f"/v1/flows/{flow}/edge-groups/{downstream}", json=policy)
    for revision, racer in enumerate(racers, 3):
        ends = {"upstream_execution_id": racer, "downstream_execution_id": downstream}
        edge = {"edge_id": str(fresh()), "data_passing_ref": "output", **ends}
        await player.post(f"/v1/flows/{flow}/edges", 201, expected_graph_revision=revision, **edge)
        await player.post(f"/v1/flows/{flow}/edges/apply", graph_revision=revision + 1, **edge)
    return [await player.take("up") for _ in racers]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_last_upstream_passes_its_result(player: Player, order: tuple[int, int]) -> None:
    """coordination.md 1.6: of all that pass data to one downstream the last wins, also where two
    end at the same moment."""
    http, flow = player.http, await create_flow(player.http)
    upstreams = [await add_member(http, flow, lane_id="up") for _ in range(2)]
    downstream = await add_member(http, flow, lane_id="down")
    for revision, upstream in enumerate(upstreams, 3):
        ends = {"upstream_execution_id": upstream, "downstream_execution_id": downstream}
        edge = {"edge_id": str(fresh()), "data_passing_ref": "output", **ends}
        await player.post(f"/v1/flows/{flow}/edges", 201, expected_graph_revision=revision, **edge)
    claims = [await player.take("up") for _ in upstreams]
    for number in order:
        await player.do(claims[number], "complete", result_base64=b64(b"%d" % number))
    assert (await player.take("down"))["payload"] == b64(b"%d" % order[-1])

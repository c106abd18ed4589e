"""Every public operation of the engine with values of every wrong type: whatever is refused is
refused by an error of FlowFabric."""

import inspect
import itertools
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from msgspec import Struct

from flowfabric.core.base.errors import FlowFabricError, Invalid
from flowfabric.core.base.ids import ExecutionId, flow_partition
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Family
from flowfabric.core.execution.event_filter import EventFilter
from flowfabric.core.execution.fork import ForkChanges
from flowfabric.core.execution.frame import NewFrame, StreamMode, Visibility
from flowfabric.core.execution.grant_record import GrantNotes
from flowfabric.core.execution.mismatch import Mismatch
from flowfabric.core.execution.model import Failure
from flowfabric.core.execution.new_attempt import NewAttempt
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.schedule import Schedule
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.stream import EmitPlace
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphEdge, GraphNode
from flowfabric.core.flow.join import AnyOf, Edge
from flowfabric.core.flow.model import CancelPolicy, FlowState, Parent
from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.core.limit.quota import Quota, Rate
from flowfabric.core.wait.model import Terms, Waitpoint
from flowfabric.core.wait.signal import Delivery
from flowfabric.core.wait.suspend import NowSuspended
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.flow.flows import FlowCreated
from flowfabric.store.queries import Query, Renewal, Suspects
from tests.kit.fuzzing import JUNK, PLAIN, escaped, public, settled, variants
from tests.kit.lab import W2, Lab
from tests.kit.waits import fresh_id, request, suspend

pytestmark = [pytest.mark.rules, pytest.mark.long]

NOT_OPERATIONS = {
    # What stands behind operations.
    "inbox.admit", "inbox.admitted", "inbox.load", "inbox.find", "inbox.drain",
    "executions.put", "executions.put_all", "executions.put_new", "flow_views.inputs",
    "workers.held", "flow_views.skipped",
    "executions.drain", "claims.drain", "attempts.drain", "flows.drain", "flow_views.close",
    "workers.finish", "workers.sweep", "streams.close", "streams.drain", "streams.expire",
    "sweep.committed", "sweep.once", "sweep.start", "sweep.stop", "sweep.trim",
    "schedules.fire_due", "schedules.next_at", "suspensions.new_id", "events.tail",
    "events.close", "webhooks.run", "webhooks.dispatch", "webhooks.is_genuine",
    "signals.delivery", "keys.kids", "attempts.ended_elsewhere",
    "audit.trim", "tokens.any_live", "tokens.drain",
    "code_gate.join", "code_gate.leave", "code_gate.release", "code_gate.release_to",
}  # fmt: skip


_NUMBERS = itertools.count()


class World(Struct):
    """One of everything an operation can be about."""

    lane: str
    claim: Claim
    waiting: ExecutionId
    ended: ExecutionId
    suspended: ExecutionId
    waitpoint: UUID
    token: Any
    flow: UUID
    edge: Edge
    member: ExecutionId

    @classmethod
    async def make(cls, lab: Lab) -> "World":
        engine = lab.engine
        lane = f"lane-{next(_NUMBERS)}"

        async def running(**members: Any) -> Claim:
            await lab.submit(lane=lane, **members)
            return await lab.claim_one(lanes=(lane,))

        ended = await running()
        await lab.complete(ended, b"1")
        suspended = await running()
        answer = await suspend(lab, suspended)
        claim = await running(policy={"budget_ids": ["team"]})
        waiting = await lab.submit(lane=lane)
        flow = await _elsewhere(lab, waiting)
        members = [await engine.flows.add(flow, Submission(kind="part")) for _ in range(2)]
        one, two = (each.id for each in members)
        edge = Edge(fresh_id(lab), flow, one.uuid, two.uuid)
        await engine.flows.stage(edge)
        return cls(
            lane,
            claim, waiting, ended.id, suspended.id, answer.primary.id, answer.primary.token,
            flow, edge, two,
        )  # fmt: skip


async def _elsewhere(lab: Lab, run: ExecutionId) -> UUID:
    """A flow that the run cannot join: one flow in 256 is in the partition of its lane."""
    while True:
        made = await lab.engine.flows.create("nightly")
        assert isinstance(made, FlowCreated)
        if flow_partition(made.id) != run.partition_index:
            return made.id


async def furnish(lab: Lab) -> None:
    engine = lab.engine
    await engine.budgets.define(BUDGET)
    await engine.quotas.define(QUOTA)
    await engine.schedules.put(SCHEDULE)
    await engine.workers.register(PRESENCE)
    await engine.subscriptions.create("reader")
    await engine.webhooks.put("hook", "https://example.org")


BUDGET = Budget(name="team", limits={"tokens": Limit(hard=10**6)}, every=Millis(60_000))
QUOTA = Quota(name="api", concurrency=5, rate=Rate(10, Millis(60_000)))
SCHEDULE = Schedule(name="daily", kind="job", every=Millis(60_000))
PRESENCE = Presence(worker="w1", instance="w1-a")


def arguments(lab: Lab, world: World) -> dict[str, Any]:
    """A good value for every parameter, by its name."""
    node = GraphNode("a", Submission(kind="job"))
    return {
        "id": world.waiting, "submission": Submission(kind="job", tags={"app.a": "1"}),
        "submissions": (Submission(kind="job"),), "reason": "paused_by_operator", "detail": "why",
        "owner": world.claim.owner, "priority": 5, "anywhere": True, "key": "app.a", "value": "1",
        "delay": 0, "trigger": "operator", "tags": {"app.a": "1"}, "expected": "paused_by_operator",
        "lane": world.lane, "by": "me", "after": None, "limit": 5, "weight": 2, "concurrency": 5,
        "lanes": ("default",), "worker": W2, "capabilities": ("gpu",), "kinds": ("nothing",),
        "ttl": 30_000, "namespace": "default", "max_wait": 0, "as_of": Millis(5),
        "instance": "w1-a", "owned": world.claim, "claims": (world.claim,),
        "lease_id": None, "result": b"1", "encoding": "json", "until": Millis(lab.clock.now() + 1),
        "step": Step(0, 0, "step", 0, b"{}"), "failure": Failure("boom"), "retry_after": 5,
        "percent": 5, "message": "half", "uuid": world.claim.uuid, "generation": 0,
        "claim": world.claim, "handle": lab.engine.attempts.seal(world.claim),
        "waitpoint": world.waitpoint, "expires_in": 1_000, "terms": Terms(decisions=("yes",)),
        "lasting": False, "slot": fresh_id(lab), "suspension": fresh_id(lab), "approver": "ada",
        "made": None,
        "decisions": ("yes",), "single_use": False, "request": request(lab),
        "expires_at": Millis(lab.clock.now() + 5_000), "name": "go", "suffix": "1",
        "dedup_ttl": 1_000, "max_signals": 50, "token": world.token,
        "delivery": Delivery(id=fresh_id(lab), waitpoint=world.waitpoint, name="go", payload=b"1"),
        "kid": "k9", "secret": "ab" * 32, "grace": 1_000, "expected_attempt": 0, "max_reclaims": 5,
        "query": Query(), "cursor": None, "timeout": 0.01, "execution": world.waiting,
        "family": None, "tag": ("app.a", "1"), "running": 1, "kind": "job", "alive": True,
        "revoke": False, "presence": PRESENCE, "schedule": SCHEDULE, "flow": world.flow,
        "policy": CancelPolicy.FLOW_ONLY, "wait": False, "graph": Graph((node,), ()),
        "parent": None, "downstream": world.member, "edge": world.edge,
        "expected_revision": None, "upstream": None, "states": (FlowState.OPEN,),
        "newest_first": True, "uuids": [world.claim.uuid], "quota": QUOTA, "budget": BUDGET,
        "reservation": fresh_id(lab), "dimension": "tokens", "amount": 5, "amounts": {"tokens": 1},
        "suspects": Suspects.ANY, "alone": False, "suspended": False, "budgets": ("team",),
        "attempt": NewAttempt(timeout=Millis(5_000)), "notes": GrantNotes(),
        "mismatch": Mismatch(message="changed", fingerprint="code-1"), "fingerprint": "code-1",
        "run": world.claim.uuid, "force": True, "undo_time": 1_000,
        "scopes": ("read",), "namespaces": ("default",), "expires": 1_000, "text": "t" * 20,
        "presented": "ff_go_" + "A" * 43, "action": "test.done", "subject": "a", "since": None,
        "frames": (NewFrame(payload=b"{}"), NewFrame(payload=b"{}", mode=StreamMode.SUMMARY)),
        "write": 7, "place": EmitPlace("", 0, 1), "start": "start", "end": "end", "block": 0.01,
        "visibility": Visibility.ALL,
        "wanted": EventFilter(families=(Family.LEASE,)), "holder": "ada", "lease": 1_000,
        "url": "https://example.org", "fresh": fresh_id(lab), "hidden": False, "named": "all",
        "sees": None, "index": 0, "most": 5, "signed": False, "eager": False, "record": True,
        "renewals": (Renewal(world.claim.uuid, world.claim.lease.id, 1, Millis(30_000)),),
        "from_step": None, "changes": ForkChanges(payload=b"1", tags={"app.a": "1"}),
    }  # fmt: skip


def special(lab: Lab, world: World) -> dict[str, dict[str, Any]]:
    """What some operations take under the same name."""
    two = GraphNode("b", Submission(kind="job"), AnyOf())
    graph = Graph((GraphNode("a", Submission(kind="job")), two), (GraphEdge("a", "b", input="x"),))
    by_name = {
        "budgets": {"name": "team"},
        "quotas": {"name": "api"},
        "schedules": {"name": "daily"},
        "subscriptions": {"name": "reader"},
        "webhooks": {"name": "hook"},
    }
    found: dict[str, dict[str, Any]] = {
        "executions.resume": {"id": world.suspended},
        "executions.replay": {"id": world.ended},
        "steps.rename": {"step": "step"}, "steps.skip": {"step": "step"},
        "claims.renew_all": {"owned": (world.claim,)},
        "claims.expired": {"after": (Millis(5), world.waiting)},
        "suspensions.waitpoints": {"id": world.suspended, "after": fresh_id(lab)},
        "suspensions.token": {"id": world.suspended},
        "suspensions.issue_token": {"id": world.suspended},
        "suspensions.close_waitpoint": {"id": world.suspended},
        "suspensions.create_waitpoint": {"id": fresh_id(lab)},
        "suspensions.make_waitpoint": {"id": fresh_id(lab)},
        "suspensions.handle": {"suspended": NowSuspended(fresh_id(lab), (), world.claim.snapshot)},
        "suspensions.tickets": {"waitpoints": (Waitpoint(
            world.waitpoint, world.suspended.uuid, "go", Millis(5), "k1"),)},
        "suspensions.suspended": {"after": (Millis(5), world.waiting)},
        "signals.approve": {"id": world.suspended},
        "signals.deliver": {"id": world.suspended}, "signals.look": {"id": world.suspended},
        "claims.claim": {"id": fresh_id(lab)}, "claims.taken": {"id": fresh_id(lab)},
        "executions.submit_many": {"fresh": (fresh_id(lab),)},
        "signals.revoke": {"id": world.suspended, "token": None},
        "signals.of": {"id": world.suspended, "after": 0},
        "signals.send": {"id": world.suspended},
        "signals.decide": {"id": world.suspended},
        "signals.decide_at": {"id": world.suspended},
        "views.wait": {"id": world.ended}, "views.failures": {"since": Millis(5)},
        "attempts.set_state": {"value": b"{}"},
        "views.list": {"query": Query(tag=("app.a", "1"), after=(Millis(5), world.claim.uuid))},
        "events.read": {"after": 0},
        "events.subscribe": {"after": 0, "tag": None},
        "events.batch": {"after": 0}, "events.follow": {"after": 0},
        "events.position": {"cursor": ""},
        "subscriptions.list": {"after": ""}, "webhooks.list": {"after": ""},
        "subscriptions.ack": {"cursor": 0}, "webhooks.find": {"name": "hook"},
        "subscriptions.create": {"name": "another"}, "webhooks.put": {"name": "hook"},
        "grants.find_and_issue": {"worker": "w1"},
        "grants.issue": {"worker": "w1"},
        "grants.issue_reclaim": {"worker": "w1"},
        "workers.deregister": {"worker": "w1"},
        "workers.heartbeat": {"worker": "w1"},
        "workers.leases": {"worker": "w1"},
        "schedules.list": {"after": ""}, "quotas.list": {"after": ""},
        "budgets.list": {"after": ""},
        "flows.create": {"id": fresh_id(lab)},
        "flows.declare": {"id": fresh_id(lab), "graph": graph,
                          "parent": Parent(world.claim.id, "done")},
        "flows.set_join": {"policy": AnyOf()}, "flows.stage_only": {"expected_revision": 1},
        "flows.acknowledge": {"id": world.member}, "flows.join": {"id": world.waiting},
        "flows.apply": {"edge": world.edge.id, "input": None},
        "flow_views.edge": {"edge": world.edge.id},
        "flow_views.eligibility": {"id": world.member}, "flow_views.flow_of": {"id": world.member},
        "flow_views.page": {"after": (Millis(5), world.flow), "kind": "nightly"},
        "budgets.attached_to": {"id": world.claim.id},
        "budgets.reserve": {"id": fresh_id(lab)},
        "budgets.spend": {"execution": None},
        "lanes.list": {"after": "a"}, "tokens.list": {"after": "a"}, "audit.list": {"after": "a"},
        "audit.write": {"detail": {"a": 1}},
        "streams.read": {"attempt": 0}, "streams.summary": {"attempt": 0},
        "streams.tail": {"attempt": 0, "after": "0-0"},
    }  # fmt: skip
    for noun, given in by_name.items():
        for name in ("get", "pause", "resume", "remove", "trigger", "delete", "status", "grant",
                     "release", "reset", "ack", "read", "test"):  # fmt: skip
            found.setdefault(f"{noun}.{name}", {}).update(given)
    for name in ("issue", "issue_reclaim", "claim", "claim_resumed", "try_resume", "reclaim"):
        found.setdefault(f"grants.{name}", {})["key"] = None
    for name in ("claim_resumed", "try_resume"):
        found[f"grants.{name}"]["timeout"] = 5_000
    for name in ("drain", "get", "pause", "resume", "set"):
        found[f"lanes.{name}"] = {"lane": "side"}
    for name in ("get", "describe", "edges", "graph", "groups", "members", "wait"):
        found.setdefault(f"flow_views.{name}", {})["id"] = world.flow
    return found


def operations(lab: Lab) -> Iterator[tuple[str, Any]]:
    for noun, value in vars(lab.engine).items():
        ours = type(value).__module__.startswith("flowfabric.engine.")
        if ours and not noun.startswith("_"):
            if callable(value):
                yield f"{noun}.__call__", value
            for name, method in public(value):
                if f"{noun}.{name}" not in NOT_OPERATIONS:
                    yield f"{noun}.{name}", method


def given(lab: Lab, world: World, name: str, method: Any) -> dict[str, Any]:
    wanted = inspect.signature(method).parameters
    good = arguments(lab, world) | special(lab, world).get(name, {})
    missing = wanted.keys() - good.keys()
    assert not missing, f"{name} needs good values for {missing}: add them to `arguments`"
    return {parameter: good[parameter] for parameter in wanted}


NOUNS = (
    "executions", "lanes", "claims", "attempts", "suspensions", "signals", "keys", "grants",
    "views", "events", "workers", "schedules", "flows", "flow_views", "quotas", "budgets",
    "explain", "steps", "tokens", "audit", "streams", "subscriptions", "webhooks",
)  # fmt: skip


@pytest.mark.inside
async def test_every_noun_is_tried_here(lab: Lab) -> None:
    assert {name.partition(".")[0] for name, _ in operations(lab)} == set(NOUNS)


READERS = {"views", "flow_views", "events", "explain"}
READING = {
    "get", "list", "settings", "status", "state", "of", "waitpoints", "suspended", "expired",
    "leases", "steps", "grants", "attached_to", "check_admission", "page", "token",
    "read", "tail", "summary",
}  # fmt: skip
"""What is only read leaves everything as it is."""


def reads(name: str) -> bool:
    noun, _, verb = name.partition(".")
    return noun in READERS or verb in READING


@pytest.mark.parametrize("noun", NOUNS)
async def test_a_value_of_a_wrong_type_gets_a_typed_error(
    lab: Lab, noun: str, pytestconfig: pytest.Config
) -> None:
    """Also as a member of what an operation is given, however deep."""
    await furnish(lab)
    world = await World.make(lab)
    outer = JUNK if lab.engine.store.name == "sqlite" else PLAIN
    inner = outer if pytestconfig.getoption("--deep") else PLAIN
    found: list[str] = []
    for name, method in operations(lab):
        if name.partition(".")[0] != noun:
            continue
        good = given(lab, world, name, method)
        for parameter, value in good.items():
            for path, junk in variants(value, outer, inner):
                accepted, escape = await escaped(method, good, parameter, junk)
                if escape is not None:
                    found.append(f"{name}({parameter}{path}): {escape}")
                if accepted and not reads(name):
                    found += [
                        f"{name}({parameter}{path}): {each}" for each in await unread(lab, world)
                    ]
                    await furnish(lab)
                    world = await World.make(lab)
                    good = given(lab, world, name, method)
    assert not found, f"{len(found)} escaped:\n" + "\n".join(found)


async def unread(lab: Lab, world: World) -> list[str]:
    """What cannot be read any more after something was accepted."""
    engine = lab.engine
    reads = {
        "schedules": engine.schedules.list, "budgets": engine.budgets.list,
        "quotas": engine.quotas.list, "workers": engine.workers.list,
        "flows": engine.flow_views.page, "lanes": engine.lanes.settings,
        "keys": engine.keys.kids, "tokens": engine.tokens.list, "audit": engine.audit.list,
        "subscriptions": engine.subscriptions.list, "webhooks": engine.webhooks.list,
        "execution": lambda: engine.views.describe(world.claim.id),
        "steps": lambda: engine.attempts.steps(world.claim.uuid, 0),
        "waitpoints": lambda: engine.suspensions.waitpoints(world.suspended),
        "signals": lambda: engine.signals.of(world.suspended),
        "graph": lambda: engine.flow_views.graph(world.flow),
    }  # fmt: skip
    found: list[str] = []
    for what, read in reads.items():
        try:
            await read()  # type: ignore[operator]
        except Exception as error:
            found.append(f"{what} cannot be read: {error!r:.120}")
    return found


@pytest.mark.inside
async def test_the_good_values_are_good(lab: Lab) -> None:
    """Or nothing would be said about the others."""
    await furnish(lab)
    refused: dict[str, str] = {}
    for name, method in operations(lab):
        world = await World.make(lab)
        try:
            await settled(method(**given(lab, world, name, method)))
        except Invalid as error:
            refused[name] = str(error)
        except (FlowFabricError, TimeoutError):
            pass  # the rule was asked, and the execution is somewhere else
        await furnish(lab)
    assert refused.keys() == BY_RULE, refused


BY_RULE = {
    "attempts.time_out",
    "signals.decide_at",
    "flows.join",
    "flows.set_join",
    "budgets.grant",
}
"""What is refused because of what stands in the store."""

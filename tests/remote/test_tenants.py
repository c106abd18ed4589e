"""Who may do what: scopes, and callers that see some namespaces only."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
    Forbidden,
    Invalid,
    InvalidHandle,
    NotFound,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event_filter import EventBatch, EventFilter
from flowfabric.core.execution.model import Failure, WorkerIdentity
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.submission import Submission, Submitted
from flowfabric.core.flow.graph import Graph, GraphNode
from flowfabric.core.flow.model import Parent
from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from flowfabric.remote.engine import RemoteEngine
from flowfabric.remote.operations import OPERATIONS
from flowfabric.remote.wire import (
    CallRequest,
    Done,
    Failed,
    RemoteCall,
    read_reply,
    travel_of,
    write_request,
)
from flowfabric.server.remote.operations import Operations
from flowfabric.store.clock import ManualClock
from flowfabric.store.queries import Query, Renewal
from tests.kit.served import EngineApp, caller_named

W1 = WorkerIdentity("w1", "w1-a")
UNKNOWN = ExecutionId.solo("default", UUID(int=99))
NOWHERE = UUID(int=98)
Deed = Callable[[Engine, str], Awaitable[Any]]


async def theirs(inside: Engine) -> ExecutionId:
    answer = await inside.executions.submit(Submission(kind="job", namespace="theirs"))
    assert isinstance(answer, Submitted)
    return answer.id


async def ours(engine: Engine) -> ExecutionId:
    answer = await engine.executions.submit(Submission(kind="job", namespace="ours"))
    assert isinstance(answer, Submitted)
    return answer.id


DEEDS: dict[str, Deed] = {
    "state": lambda engine, id: engine.views.state(id),
    "info": lambda engine, id: engine.views.info(id),
    "describe": lambda engine, id: engine.views.describe(id),
    "context": lambda engine, id: engine.views.context(id),
    "wait": lambda engine, id: engine.views.wait(id, timeout=0.01),
    "namespace": lambda engine, id: engine.views.namespace(id),
    "locate": lambda engine, id: engine.views.locate([ExecutionId(id).uuid]),
    "load": lambda engine, id: engine.views.load([ExecutionId(id).uuid]),
    "cancel": lambda engine, id: engine.executions.cancel(id, reason="no"),
    "replay": lambda engine, id: engine.executions.replay(id),
    "set_tags": lambda engine, id: engine.executions.set_tags(id, {"a.b": "c"}),
    "explain": lambda engine, id: engine.explain(id),
    "events": lambda engine, id: engine.events.read(execution=id),
    "waitpoints": lambda engine, id: engine.suspensions.waitpoints(id),
    "deliver": lambda engine, id: engine.signals.deliver(
        id, engine.signals.delivery(NOWHERE)(name="go", source_type="x", source="y"), "k:00"
    ),
    "steps": lambda engine, id: engine.attempts.steps(ExecutionId(id).uuid, 0),
    "fence": lambda engine, id: engine.attempts.complete(FencedExecution(ExecutionId(id))),
    "results": lambda engine, id: engine.flow_views.results([ExecutionId(id).uuid]),
    "grant": lambda engine, id: engine.grants.identity(id),
    "quota": lambda engine, id: engine.quotas.check_admission("q", id),
    "extend": lambda engine, id: engine.claims.extend(
        [Renewal(ExecutionId(id).uuid, NOWHERE, 1, Millis(1000))]
    ),
}


async def outcome(deed: Deed, engine: Engine, id: ExecutionId) -> str:
    """What a deed answers or raises, without the id it names."""
    try:
        answer = repr(await deed(engine, id))
    except (FlowFabricError, TimeoutError) as error:
        answer = f"{type(error).__name__}: {error} {vars(error)}"
    return answer.replace(str(id.uuid), "ID")


@pytest.mark.parametrize("name", DEEDS)
async def test_a_run_of_another_tenant_answers_like_an_unknown_one(
    tenant: Engine, inside: Engine, name: str
) -> None:
    hidden = await theirs(inside)
    unknown = ExecutionId.of(hidden.partition_index, UUID(int=99))
    deed = DEEDS[name]
    assert await outcome(deed, tenant, hidden) == await outcome(deed, tenant, unknown)
    assert await inside.views.state(hidden) == "waiting"
    assert await inside.executions.get_tag(hidden, "a.b") is None


async def test_a_tenant_does_what_it_may_in_its_own_namespace(tenant: Engine) -> None:
    id = await ours(tenant)
    (claim,) = await tenant.claims.claim(W1, namespace="ours")
    await tenant.attempts.record_step(claim, Step(0, 0, "one", 0, b"{}"))
    await tenant.attempts.complete(claim, b"1")
    assert await tenant.views.result(id) == b"1"
    assert [info.id for info in (await tenant.views.list(Query(namespace="ours"))).items] == [id]
    assert (await tenant.views.wait(id)).result == b"1"


FORBIDDEN: dict[str, Callable[[Engine], Awaitable[Any]]] = {
    "submit": lambda e: e.executions.submit(Submission(kind="job", namespace="theirs")),
    "submit_many": lambda e: e.executions.submit_many(
        [Submission(kind="job", namespace="ours"), Submission(kind="job", namespace="theirs")]
    ),
    "claim": lambda e: e.claims.claim(W1),
    "claim there": lambda e: e.claims.claim(W1, namespace="theirs"),
    "list": lambda e: e.views.list(Query()),
    "list there": lambda e: e.views.list(Query(namespace="theirs")),
    "counts": lambda e: e.views.counts(),
    "events": lambda e: e.events.read(),
    "tail": lambda e: e.events.tail(),
    "lane": lambda e: e.lanes.pause("default"),
    "quota": lambda e: e.quotas.define(Quota(name="q", concurrency=1)),
    "keys": lambda e: e.keys.kids(),
    "register": lambda e: e.workers.register(Presence(worker="w", instance="i", everywhere=True)),
    "workers": lambda e: e.workers.list(namespace=None),
    "flow": lambda e: e.flows.create("f", namespace="theirs"),
    "graph": lambda e: e.flows.declare(
        "f",
        Graph((GraphNode("a", Submission(kind="job", namespace="theirs")),)),
        namespace="ours",
    ),
    "settle": lambda e: e.settle(),
}


@pytest.mark.parametrize("name", FORBIDDEN)
async def test_what_concerns_other_namespaces_is_forbidden(
    tenant: Engine, inside: Engine, name: str
) -> None:
    with pytest.raises(Forbidden):
        await FORBIDDEN[name](tenant)
    assert (await inside.views.list(Query())).items == ()


async def test_a_tenant_revokes_no_leases_of_a_worker_for_all_namespaces(
    tenant: Engine, inside: Engine
) -> None:
    """It is registered in the namespace of the tenant, and has runs of others."""
    await theirs(inside)
    await inside.claims.claim(W1)
    await inside.workers.register(
        Presence(worker=W1.id, instance=W1.instance, namespace="ours", everywhere=True)
    )
    with pytest.raises(Forbidden):
        await tenant.workers.mark_dead(W1.instance, namespace="ours", reason="no", revoke=True)
    assert len(await inside.workers.leases(W1.instance)) == 1
    await tenant.workers.mark_dead(W1.instance, namespace="ours", reason="no")


async def test_a_flow_of_another_tenant_answers_like_an_unknown_one(
    tenant: Engine, inside: Engine
) -> None:
    flow = (await inside.flows.create("f", namespace="theirs")).id  # type: ignore[union-attr]
    assert await tenant.flow_views.get(flow) is None
    with pytest.raises(NotFound) as caught:
        await tenant.flows.cancel(flow)
    assert caught.value.key == flow
    with pytest.raises(NotFound):
        await tenant.flows.add(flow, Submission(kind="job", namespace="ours"))
    assert (await inside.flow_views.members(flow)) == []


async def test_a_run_does_not_join_a_flow_of_another_tenant(tenant: Engine, inside: Engine) -> None:
    flow = (await inside.flows.create("f", namespace="theirs")).id  # type: ignore[union-attr]
    unknown = Submission(kind="job", namespace="ours", flow=NOWHERE)
    hidden = Submission(kind="job", namespace="ours", flow=flow)
    answers = [type(await _tried(tenant.executions.submit(each))) for each in (unknown, hidden)]
    assert answers[0] is answers[1]
    assert (await inside.flow_views.members(flow)) == []


async def _tried(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except FlowFabricError as error:
        return error


async def test_a_flow_does_not_signal_a_run_of_another_tenant(
    tenant: Engine, inside: Engine
) -> None:
    hidden = await theirs(inside)
    graph = Graph((GraphNode("a", Submission(kind="job", namespace="ours")),))
    answers = []
    for parent in (hidden, UNKNOWN):
        work = tenant.flows.declare("f", graph, namespace="ours", parent=Parent(parent, "done"))
        answers.append(type(await _tried(work)))
    assert answers[0] is answers[1]


async def test_a_claim_of_another_tenant_is_worth_nothing(tenant: Engine, inside: Engine) -> None:
    await theirs(inside)
    (claim,) = await inside.claims.claim(W1)
    handle = inside.attempts.seal(claim)
    for owned in (claim, handle, FencedExecution(claim.id, claim.owner)):
        with pytest.raises(NotFound):
            await tenant.attempts.complete(owned, b"stolen")
    with pytest.raises(FlowFabricError):
        await tenant.claims.renew(claim)
    assert await tenant.claims.taken(W1, claim.lease.id) == []
    assert await tenant.views.load([claim.uuid]) == {}
    assert await tenant.claims.extend([_renewal(claim)]) == {}
    await inside.attempts.complete(claim, b"1")


def _renewal(claim: Claim) -> Renewal:
    return Renewal(claim.uuid, claim.lease.id, claim.epoch, claim.ttl)


async def test_a_forged_handle_is_refused(tenant: Engine) -> None:
    with pytest.raises(InvalidHandle):
        await tenant.attempts.complete("forged")


async def test_a_claim_that_a_client_made_up_changes_nothing(
    remote: Engine, inside: Engine
) -> None:
    """What a client says about a run is never taken for the run itself."""
    await remote.executions.submit(Submission(kind="job"))
    (claim,) = await remote.claims.claim(W1)
    other = await remote.executions.submit(Submission(kind="other"))
    assert isinstance(other, Submitted)
    forged = FencedExecution(other.id, claim.owner)
    with pytest.raises(FlowFabricError):
        await remote.attempts.fail(forged, Failure("no"))
    assert await inside.views.state(other.id) == "waiting"


@pytest.mark.parametrize("scope", ["read", "submit", "work", "signal", "operate", "admin"])
async def test_a_token_without_the_scope_is_refused(
    app: EngineApp, url: str, clock: ManualClock, scope: str
) -> None:
    app.callers = {"t": caller_named("t", scopes=frozenset({scope}))}
    remote = await RemoteEngine.open(url, "t", clock)
    engine = remote.as_engine()
    deeds: dict[str, Callable[[], Awaitable[Any]]] = {
        "views.state": lambda: engine.views.state(UNKNOWN),
        "executions.submit": lambda: engine.executions.submit(Submission(kind="job")),
        "claims.claim": lambda: engine.claims.claim(W1),
        "signals.send": lambda: engine.signals.send(
            UNKNOWN, "go", engine.signals.delivery()(name="go", source_type="x", source="y")
        ),
        "executions.replay": lambda: engine.executions.replay(UNKNOWN),
        "keys.kids": lambda: engine.keys.kids(),
        "suspensions.token": lambda: engine.suspensions.token(UNKNOWN, NOWHERE),
        "suspensions.issue_token": lambda: engine.suspensions.issue_token(
            UNKNOWN, NOWHERE, approver="ada"
        ),
    }
    for name, deed in deeds.items():
        answer = await _tried(deed())
        assert isinstance(answer, Forbidden) is (scope not in OPERATIONS[name].scopes), name
    await remote.close()


def test_a_waitpoint_token_decides_and_so_needs_the_scope_of_decisions() -> None:
    for name in ("suspensions.token", "suspensions.issue_token", "signals.approve"):
        assert OPERATIONS[name].scopes == ("signal",)


async def test_hints_need_a_scope(app: EngineApp) -> None:
    caller = caller_named("t", scopes=frozenset({"signal"}))
    with pytest.raises(Forbidden):
        await anext(app.operations.hints(caller))


async def test_a_webhook_of_another_tenant_is_not_taken_over(
    tenant: Engine, inside: Engine
) -> None:
    theirs = EventFilter(namespace="theirs")
    before = await inside.webhooks.put("hook", "https://theirs.example.com/in", theirs)
    with pytest.raises(Invalid):
        await tenant.webhooks.put("hook", "https://ours.example.com", EventFilter(namespace="ours"))
    assert await inside.webhooks.get("hook") == before
    await tenant.webhooks.put("mine", "https://ours.example.com", EventFilter(namespace="ours"))


async def test_a_tenant_has_its_own_subscriptions_and_webhooks(
    tenant: Engine, inside: Engine
) -> None:
    """What it may create it may also read, acknowledge, pause and delete."""
    wanted = EventFilter(namespace="ours")
    made = await tenant.subscriptions.create("mine", wanted)
    await inside.executions.cancel(await ours(tenant), reason="done")
    await inside.executions.cancel(await theirs(inside), reason="done")
    batch = await tenant.subscriptions.read("mine", holder="a")
    assert isinstance(batch, EventBatch)
    assert [event.namespace for event in batch.events] == ["ours"]
    await tenant.subscriptions.ack("mine", batch.cursor)
    await tenant.subscriptions.release("mine", holder="a")
    assert (await tenant.subscriptions.get("mine")).cursor == batch.cursor > made.cursor
    await tenant.subscriptions.delete("mine")
    await tenant.webhooks.put("hook", "https://ours.example.com", wanted)
    assert (await tenant.webhooks.pause("hook", reason="holiday")).paused
    assert not (await tenant.webhooks.resume("hook")).paused
    await tenant.webhooks.test("hook")
    await tenant.webhooks.delete("hook")
    with pytest.raises(NotFound):
        await inside.webhooks.get("hook")


READERS: dict[str, Callable[[Engine, str], Awaitable[Any]]] = {
    "subscriptions.get": lambda engine, name: engine.subscriptions.get(name),
    "subscriptions.read": lambda engine, name: engine.subscriptions.read(name, holder="a"),
    "subscriptions.ack": lambda engine, name: engine.subscriptions.ack(name, 0),
    "subscriptions.release": lambda engine, name: engine.subscriptions.release(name, holder="a"),
    "subscriptions.delete": lambda engine, name: engine.subscriptions.delete(name),
    "webhooks.get": lambda engine, name: engine.webhooks.get(name),
    "webhooks.pause": lambda engine, name: engine.webhooks.pause(name),
    "webhooks.resume": lambda engine, name: engine.webhooks.resume(name),
    "webhooks.test": lambda engine, name: engine.webhooks.test(name),
    "webhooks.delete": lambda engine, name: engine.webhooks.delete(name),
}


@pytest.mark.parametrize("operation", READERS)
@pytest.mark.parametrize("namespace", ["theirs", None])
async def test_a_reader_of_another_tenant_answers_like_an_unknown_one(
    tenant: Engine, inside: Engine, operation: str, namespace: str | None
) -> None:
    """One of all namespaces too: it sees the events of others."""
    wanted = EventFilter(namespace=namespace)
    await inside.subscriptions.create("hidden", wanted)
    await inside.webhooks.put("hidden", "https://theirs.example.com", wanted)
    deed = READERS[operation]
    hidden, unknown = [await _tried(deed(tenant, name)) for name in ("hidden", "absent")]
    assert isinstance(hidden, NotFound)
    assert str(hidden) == str(unknown).replace("absent", "hidden")
    assert (await inside.subscriptions.get("hidden")).holder is None
    assert not (await inside.webhooks.get("hidden")).paused


async def test_a_tenant_spends_from_the_budgets_of_its_run_alone(
    tenant: Engine, inside: Engine
) -> None:
    await inside.budgets.create(Budget(name="shared", limits={"tokens": Limit(hard=100)}))
    await ours(tenant)
    (claim,) = await tenant.claims.claim(W1, namespace="ours")
    handle = inside.attempts.seal(claim)
    for owned in (claim, handle, FencedExecution(claim.id, claim.owner)):
        with pytest.raises(NotFound):
            await tenant.budgets.report(owned, {"tokens": 1}, budgets=["shared"])
        with pytest.raises(NotFound):
            await tenant.budgets.reserve(owned, {"tokens": 1}, budgets=["shared"])
    assert (await inside.budgets.get("shared")).used.get("tokens", 0) == 0


async def test_a_tenant_attributes_nothing_to_a_run(tenant: Engine, inside: Engine) -> None:
    """Whether a run exists is not checked by `spend`, so a tenant must not name one"""
    await inside.budgets.create(Budget(name="shared", limits={"tokens": Limit(hard=100)}))
    theirs = await inside.executions.submit(Submission(kind="x", namespace="theirs"))
    for id in (theirs.id, str(UUID(int=7))):
        with pytest.raises(Forbidden):
            await tenant.budgets.spend("shared", {"tokens": 1}, execution=id)
    assert (await inside.budgets.get("shared")).used.get("tokens", 0) == 0
    assert await inside.budgets.release("shared", theirs.id) == {}


async def test_a_call_is_answered_to_its_caller_alone(inside: Engine) -> None:
    operations = Operations(inside)
    arguments = travel_of("tokens.create").encode_arguments(("t1", ["read"]), {})
    call = RemoteCall(UUID(int=5), "tokens.create", arguments)
    body = write_request(CallRequest([call]))
    first = await operations.answer(caller_named("a"), body)
    other = await operations.answer(caller_named("b"), body)
    assert isinstance(read_reply(first).answers[0], Done)
    assert isinstance(read_reply(other).answers[0], Failed)


async def test_the_id_of_a_run_of_another_tenant_is_no_duplicate(
    tenant: Engine, inside: Engine
) -> None:
    hidden = await theirs(inside)
    with pytest.raises(Invalid):
        await tenant.executions.submit(Submission(kind="job", namespace="ours", id=hidden))


async def test_an_explanation_does_not_name_runs_of_another_tenant(
    tenant: Engine, inside: Engine
) -> None:
    await inside.lanes.set("default", concurrency=1)
    hidden, own = await theirs(inside), await ours(tenant)
    (claim,) = await inside.claims.claim(W1, namespace="theirs")
    assert claim.id == hidden
    for found in (await tenant.explain(own), await tenant.explain.lane("default", "ours")):
        assert str(hidden.uuid) not in repr(found)
    assert str(hidden.uuid) in repr(await inside.explain(own))


async def test_a_second_try_gets_no_claim_of_another_tenant(inside: Engine) -> None:
    """A claim that is tried again is found by its worker and id, which others may know."""
    await theirs(inside)
    id = UUID(int=7)
    (taken,) = await inside.claims.claim(W1, namespace="theirs", id=id)
    arguments = travel_of("claims.claim").encode_arguments((W1,), {"namespace": "ours", "id": id})
    body = write_request(CallRequest([RemoteCall(UUID(int=8), "claims.claim", arguments)], True))
    reply = await Operations(inside).answer(
        caller_named("tenant", namespaces=frozenset({"ours"})), body
    )
    (answer,) = read_reply(reply).answers
    assert isinstance(answer, Done)
    assert answer.plain == []
    assert (await inside.views.state(taken.id)) == "active"

"""Links of chains end by a statement of their own, which writes what the general one does."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.execution import attempt
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.lease import Taking
from flowfabric.core.execution.model import Failure
from flowfabric.core.flow.join import On
from flowfabric.core.flow.progress import DownstreamChange, claim_with
from flowfabric.store.postgres import lease
from flowfabric.store.queries import ClaimCall
from tests.kit.flow_lab import Drawn, declare
from tests.kit.flowing import after_commit
from tests.kit.lab import Lab
from tests.kit.snapshots import owner_of
from tests.store.postgres_bench import Bench, lose_reply, opened

TABLES = ("ready", "lease", "parked", "done", "edge", "flow_outbox", "event")
UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
GIVEN: dict[str, dict[str, Any]] = {
    "urgent": {"priority": 3},
    "slow": {"policy": {"timeout_policy": {"attempt_timeout_ms": 50}}},
    "elsewhere": {"lane": "elsewhere"},
    "equipped": {"policy": {"routing_requirements": {"required_capabilities": ["gpu"]}}},
}
"""What some second members are given; the worker has no GPU."""


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that end executions and let their downstreams go on."""
    names: list[str] = []
    honest = lease._with_following

    def noting(*args: Any) -> Any:
        name, values = honest(*args)
        names.append(name)
        return name, values

    monkeypatch.setattr(lease, "_with_following", noting)
    return names


async def decided(
    bench: Bench, lab: Lab, call: ClaimCall, *failing: str
) -> tuple[list[Change[Any]], list[DownstreamChange]]:
    """The ends of all that can be claimed, and their downstreams as claimed by the call."""
    changes: list[Change[Any]] = []
    for claim in await lab.claim(limit=99):
        held = claim.snapshot
        failure = Failure("no", "permanent")
        changes.append(
            attempt.fail(held, bench.now, owner_of(held), failure)
            if claim.id in failing
            else bench.completion(held)
        )
    following = await lab.engine.attempts._downstreams.after(changes, bench.now)
    taking = Taking(call.id, call.worker, call.ttl)
    return changes, [
        replace(each, claimed=claim_with(each.change, bench.now, taking))
        for each in following.changes
    ]


async def end_all_kinds(bench: Bench, *, busy: bool, lost: bool) -> dict[str, list[str]]:
    """Ends, in one batch, links whose downstreams differ or were changed by a rival, and other
    executions; gives the rows of all tables, with names in place of ids."""
    lab, call = await Lab.open(bench.store, bench.clock), bench.call(9)
    names = ["plain", "like", "moved", "cancelled", "refused", *GIVEN]
    flows = {name: await declare(lab, "a>b>c", given={"b": GIVEN.get(name, {})}) for name in names}
    flows["failed"] = await declare(lab, "a>b")
    flows["caught"] = await declare(lab, "a>b", on={"a>b": On.FAILURE})
    flows["single"] = await declare(lab, "a")
    await lab.submit()
    ends, downstreams = await decided(bench, lab, call, flows["failed"]["a"], flows["caught"]["a"])
    operator = lab.engine.executions
    await operator.change_priority(flows["moved"]["b"], 7, anywhere=True)
    await operator.cancel(flows["cancelled"]["b"], reason="r")
    await operator.cancel(flows["refused"]["a"], reason="r")
    await after_commit(lab)
    if busy:
        await lab.submit(priority=9)
    if lost:
        lose_reply(bench.store.session.end)
    written = await bench.store.end_and_claim(ends, bench.now, downstreams, call)
    called = {str(call.id): "call", **_names(flows)}
    rows = {table: await _rows(bench, table, called) for table in TABLES}
    rows["written"] = sorted(called.get(str(uuid), "run") for uuid in written)
    rows["claimed"] = sorted(called[str(uuid)] for uuid in written.claimed)
    return rows


def _names(flows: Mapping[str, Drawn]) -> dict[str, str]:
    names = {str(flow.id): name for name, flow in flows.items()}
    for name, flow in flows.items():
        names |= {str(id.uuid): f"{name}.{member}" for member, id in flow.members.items()}
    return names


async def _rows(bench: Bench, table: str, names: Mapping[str, str]) -> list[str]:
    session = bench.store.session
    # The document of an edge holds ids in another form; events are numbered in the order of ids.
    query = f"select to_jsonb(t) - '{{doc,seq}}'::text[] from {session.schema}.{table} t"
    found = await session.ask(session.load, query)
    return sorted(UUID.sub(lambda id: names.get(id[0], "?"), row) for (row,) in found)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("lost", [False, True])
async def test_links_are_written_as_the_general_statement_does(
    fresh_database: Callable[..., str],
    migrated_template: str,
    monkeypatch: pytest.MonkeyPatch,
    sent: list[str],
    busy: bool,
    lost: bool,
) -> None:
    """Also if more urgent work is ready, so that none is claimed, and if the reply is lost"""
    found: list[dict[str, list[str]]] = []
    for _ in range(2):
        async with opened(fresh_database(template=migrated_template)) as bench:
            found.append(await end_all_kinds(bench, busy=busy, lost=lost))
        monkeypatch.setattr(lease, "_links", lambda ends, downstreams: None)
    times = 2 if lost else 1
    assert sent == ["ended_in_chains"] * times + ["ended_and_claimed"] * times
    assert found[0] == found[1]
    claimed = ["caught.b", "elsewhere.b", "like.b", "plain.b", "slow.b", "urgent.b"]
    assert found[0]["claimed"] == ([] if busy else claimed)


async def test_a_downstream_of_two_that_end_together_is_no_link(
    bench: Bench, sent: list[str]
) -> None:
    """It goes on if both endings are written"""
    lab, call = await Lab.open(bench.store, bench.clock), bench.call(1)
    flow = await declare(lab, "a>z", "b>z")
    ends, (downstream,) = await decided(bench, lab, call)
    assert downstream.claimed is not None
    await lab.engine.executions.cancel(flow["b"], reason="r")
    await after_commit(lab)
    written = await bench.store.end_and_claim(ends, bench.now, [downstream], call)
    assert (sent, written) == (["ended_and_claimed"], {flow["a"].uuid})

"""A handler that runs again: what was closed stays so, what has other terms is asked anew."""

from typing import Any

import pytest

from flowfabric import ApprovalOutdated, Context, NotFound, PublicState, RunFailed, WaitClosed
from flowfabric.core.base.errors import NotAllowed, TokenExpired, TokenRevoked, WaitpointClosed
from tests.worker.bench import AGAIN, Bench, Log

DAY = 86_400_000


async def close(bench: Bench, run: Any, name: str, reason: str = "closed") -> None:
    (item,) = [each for each in await bench.fabric.waitpoints(run) if each.key == name]
    engine = await bench.fabric.engine()
    await engine.suspensions.close_waitpoint(run.id, item.id, reason=reason)


async def look_again(bench: Bench, run: Any) -> None:
    """Lets the handler run from the top."""
    await bench.fabric.signal(run, "look again")
    await bench.work()


# -- closed by an operator


async def test_what_an_operator_closed_ends_every_kind_of_wait(bench: Bench, log: Log) -> None:
    """INV-13: with a clear word, the same whenever the handler runs, and nothing hangs"""
    fabric = bench.fabric

    @fabric.task(**AGAIN)
    async def patient(ctx: Context) -> list[str]:
        verdict = await ctx.approval("deploy", of=2)
        said = [f"{verdict.ended}: {verdict.reason}, {len(verdict.decisions)} decided"]
        door = await ctx.callback("payment")
        try:
            await door.result()
        except WaitClosed as error:
            said.append(str(error))
        try:
            await ctx.wait_for_signal("news")
        except WaitClosed as error:
            said.append(str(error))
        log.append(verdict.approved)
        return said

    run = await patient.submit()
    await bench.work()
    await fabric.approve(run, "deploy", approver="ada")
    await close(bench, run, "deploy", "no deploys today")
    await bench.work()
    with pytest.raises(NotFound, match="approval deploy"):
        await fabric.approve(run, "deploy", approver="bob")
    await close(bench, run, "payment", "fraud")
    await bench.work()
    await close(bench, run, "news")
    await bench.work()
    assert await run.result() == [
        "closed: no deploys today, 1 decided",
        "wait_closed: an operator closed what 'callback:payment' (call 1) waits for: fraud",
        "wait_closed: an operator closed what 'signal:news' (call 1) waits for: closed",
    ]
    assert log == [False]


async def test_closed_before_the_handler_waits(bench: Bench) -> None:
    """The door is made, closed, and asked for when the handler comes to it"""
    fabric = bench.fabric
    ids: list[str] = []

    @fabric.task()
    async def pay(ctx: Context) -> str:
        door = await ctx.callback("payment")
        ids.append(door.id)
        await ctx.wait_for_signal("look again")
        return str(await door.result())

    run = await pay.submit()
    await bench.work()
    await close(bench, run, "payment", "not needed")
    await look_again(bench, run)
    with pytest.raises(RunFailed, match="waits for: not needed"):
        await run.result()
    assert len(set(ids)) == 1


@pytest.mark.parametrize("awake", ["resumed", "before"])
async def test_the_verdict_of_a_closed_approval_has_what_was_decided(
    bench: Bench, awake: str
) -> None:
    """INV-13: also if the run was awake, or had not come to the verdict, when it was closed"""
    fabric = bench.fabric

    @fabric.task()
    async def deploy(ctx: Context) -> list[Any]:
        approval = await ctx.request_approval("deploy", of=2)
        if awake == "before":
            await ctx.wait_for_signal("look again")
            verdict = await approval.verdict()
        else:
            verdict, *_ = await ctx.gather(
                approval.verdict(), ctx.wait_for_signal("look again"), ctx.wait_for_signal("more")
            )
        return [verdict.ended, [each.approver for each in verdict.decisions], verdict.reason]

    run = await deploy.submit()
    await bench.work()
    await fabric.approve(run, "deploy", approver="ada")
    await fabric.signal(run, "look again")
    await close(bench, run, "deploy", "not today")
    await fabric.signal(run, "more")
    await bench.work()
    assert await run.result() == ["closed", ["ada"], "not today"]


# -- other terms


async def test_other_approvers_are_asked_again_while_nothing_is_decided(bench: Bench) -> None:
    """The old terms never count silently: neither whom they allow nor how many they need"""
    fabric = bench.fabric
    asked = [{"of": 2, "approvers": ["ada", "bob"]}, {"of": 2, "approvers": ["bob", "eve"]}]

    @fabric.task()
    async def deploy(ctx: Context) -> list[str]:
        terms: dict[str, Any] = asked[0] if len(asked) == 1 else asked.pop(0)
        verdict, _ = await ctx.gather(
            ctx.approval("deploy", **terms), ctx.wait_for_signal("look again")
        )
        return [f"{each.approver} {each.decision}" for each in verdict.decisions]

    run = await deploy.submit()
    await bench.work()
    (old,) = [each for each in await fabric.waitpoints(run) if each.key == "deploy"]
    token = await fabric.waitpoint_token(run, "deploy", approver="bob")
    await fabric.approve(run, "deploy", approver="ada")
    await look_again(bench, run)
    with pytest.raises(NotAllowed, match="not one of the approvers"):
        await fabric.approve(run, "deploy", approver="ada")
    with pytest.raises(ApprovalOutdated):
        await fabric.approve(f"{run.id}/{old.id}", token=token)
    assert not (await fabric.approve(run, "deploy", approver="bob")).resumed
    asked[0] = {"of": 1, "approvers": ["eve", "bob"]}
    await fabric.approve(run, "deploy", approver="eve")
    await bench.work()
    assert await run.result() == ["bob approved", "eve approved"]


async def test_what_was_decided_stays_decided_by_whom_it_was(bench: Bench) -> None:
    """A deploy that wants other approvers does not take back what a run has got"""
    fabric = bench.fabric
    asked = [{"of": 2, "approvers": ["ada", "bob"]}, {"of": 3, "approvers": ["ada", "cy", "di"]}]

    @fabric.task()
    async def deploy(ctx: Context) -> list[str]:
        terms: dict[str, Any] = asked[0]
        verdict = await ctx.approval("deploy", **terms, about=7)
        await ctx.wait_for_signal("look again")
        verdict.check(7)
        return [each.approver for each in verdict.decisions]

    run = await deploy.submit()
    await bench.work()
    for who in ("ada", "bob"):
        await fabric.approve(run, "deploy", approver=who)
    await bench.work()
    asked.pop(0)
    await look_again(bench, run)
    assert await run.result() == ["ada", "bob"]


@pytest.mark.parametrize("decided", [False, True])
async def test_an_approval_in_two_parts_about_something_else(bench: Bench, decided: bool) -> None:
    """The old token is refused with the reason, the new one counts; what is decided fails"""
    fabric = bench.fabric
    versions, tokens = [7], dict[int, tuple[str, Any]]()

    @fabric.task()
    async def deploy(ctx: Context) -> list[str]:
        version = versions[0]
        asked = await ctx.request_approval("deploy", approvers=["ada"], about=version)
        tokens[version] = (asked.id, await asked.token("ada"))
        looks = ctx.wait_for_signal("look 8"), ctx.wait_for_signal("look 9")
        _, _, verdict = await ctx.gather(*looks, asked.verdict())
        verdict.check(version)
        return [each.approver for each in verdict.decisions]

    run = await deploy.submit()
    await bench.work()
    if decided:
        await fabric.approve(tokens[7][0], token=tokens[7][1])
        await bench.work()
    for version in (8,) if decided else (8, 9):
        versions[:] = [version]
        await fabric.signal(run, f"look {version}")
        await bench.work()
    if decided:
        with pytest.raises(RunFailed, match="decided about something else"):
            await run.result(60)
        return
    for old in (7, 8):
        with pytest.raises(ApprovalOutdated, match="has changed since"):
            await fabric.approve(tokens[old][0], token=tokens[old][1])
    assert [each.key for each in await fabric.waitpoints(run)].count("deploy") == 1
    assert (await fabric.approve(tokens[9][0], token=tokens[9][1])).resumed
    await bench.work()
    assert await run.result() == ["ada"]


async def test_two_requests_of_one_name_do_not_replace_each_other(bench: Bench) -> None:
    fabric = bench.fabric
    ids: list[str] = []

    @fabric.task()
    async def deploy(ctx: Context) -> list[bool]:
        asked = [await ctx.request_approval("part", about=part) for part in (1, 2)]
        ids[:] = [each.id for each in asked]
        return [(await each.verdict()).approved for each in asked]

    run = await deploy.submit()
    await bench.work()
    for id in reversed(ids):
        await fabric.approve(id, approver="ada")
    await bench.work()
    assert await run.result() == [True, True]


# -- repeats


async def test_the_decision_that_ended_it_is_a_duplicate_when_it_is_repeated(
    bench: Bench,
) -> None:
    """INV-14: whoever never saw the answer asks again, by name, by id or with the token"""
    fabric = bench.fabric

    @fabric.task()
    async def deploy(ctx: Context) -> str:
        verdict = await ctx.approval("deploy", of=2, approvers=["ada", "bob"], about=7)
        return str(verdict.ended)

    run = await deploy.submit()
    await bench.work()
    (item,) = await fabric.waitpoints(run)
    at = f"{run.id}/{item.id}"
    token = await fabric.waitpoint_token(run, approver="bob", single_use=True)
    await fabric.approve(run, "deploy", approver="ada")
    first = await fabric.approve(at, token=token)
    assert first.resumed

    async def repeat() -> None:
        again = [
            await fabric.approve(at, token=token),
            await fabric.approve(at, approver="bob", about=7),
            await fabric.approve(run, "deploy", approver="ada", about=7),
        ]
        assert [each.duplicate for each in again] == [True, True, True]
        assert [each.signal == first.signal for each in again] == [True, True, False]
        with pytest.raises(ApprovalOutdated):
            await fabric.approve(run, "deploy", approver="ada", about=8)

    await repeat()
    with pytest.raises(WaitpointClosed):
        await fabric.reject(at, approver="bob")
    await bench.work()
    assert await run.result() == "approved"
    await repeat()


# -- tokens


async def test_the_time_of_a_token_is_counted_from_when_it_was_made(bench: Bench) -> None:
    """Not from when the approval was asked for; and the same whenever the handler runs"""
    fabric = bench.fabric
    made: list[tuple[str, Any]] = []

    @fabric.task()
    async def deploy(ctx: Context) -> str:
        asked = await ctx.request_approval("deploy")
        await ctx.sleep("3d")
        made.append((asked.id, await asked.token("ada", expires="1d")))
        await ctx.gather(asked.verdict(), ctx.wait_for_signal("look again"))
        return "done"

    run = await deploy.submit()
    await bench.work()
    await bench.pass_time(3 * DAY)
    await bench.work()
    await bench.pass_time(DAY // 2)
    await look_again(bench, run)
    assert made[0] == made[1]
    await bench.pass_time(DAY // 2)
    with pytest.raises(TokenExpired):
        await fabric.approve(made[0][0], token=made[0][1])
    assert await run.state() is PublicState.SUSPENDED


async def test_a_token_made_after_all_were_taken_back_is_another_one(bench: Bench) -> None:
    """What is handed out works; what was taken back does not come back"""
    fabric = bench.fabric

    @fabric.task()
    async def pay(ctx: Context) -> Any:
        return await (await ctx.callback("payment")).result(int)

    run = await pay.submit()
    await bench.work()
    (item,) = await fabric.waitpoints(run)
    at = f"{run.id}/{item.id}"
    old = await fabric.waitpoint_token(run)
    for _ in range(2):
        await fabric.revoke_tokens(run)
        new = await fabric.waitpoint_token(run)
        bound = await fabric.waitpoint_token(run, decisions=["signal"])
        assert len({old, new, bound}) == 3
        with pytest.raises(TokenRevoked):
            await fabric.signal(at, payload=1, token=old)
        old = new
    await fabric.signal(at, payload=2, token=bound)
    await bench.work()
    assert await run.result() == 2


# -- side by side


@pytest.mark.parametrize("order", ["cb", "bc"])
async def test_all_of_some_beside_one_of_the_same_name_keep_what_they_heard(
    bench: Bench, log: Log, order: str
) -> None:
    """Each gets its own signal, in whatever order the others come, and the same one each time the
    handler runs"""
    fabric = bench.fabric

    @fabric.task()
    async def trip(ctx: Context) -> list[Any]:
        async def both(other: str) -> dict[str, Any]:
            log.note(found := await ctx.wait_for_all("a", other))
            return found

        found = await ctx.gather(both("b"), both("c"), ctx.wait_for_signal("a"))
        await ctx.step(log.later, "the end")
        return list(found)

    run = await trip.submit()
    await bench.work()
    for number in (1, 2, 3):
        await fabric.signal(run, "a", number)
    await bench.work()
    await fabric.signal(run, order[0], order[0])
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    await fabric.signal(run, order[1], order[1])
    await bench.work()
    one, two = {"a": 1, "b": "b"}, {"a": 2, "c": "c"}
    assert await run.result() == [one, two, 3]
    forked = await run.fork(from_step="Log.later")
    await bench.work()
    assert await forked.result() == [one, two, 3]
    assert [each for each in log if each not in (one, two, "the end")] == []

"""Approvals: of exactly this, by so many of those, decided once."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from flowfabric import (
    ApprovalOutdated,
    Context,
    Invalid,
    NotFound,
    PublicState,
    RunFailed,
    SyncContext,
    Unauthorized,
    Verdict,
)
from flowfabric.core.base.errors import (
    AlreadyDecided,
    InvalidToken,
    NotAllowed,
    TokenExpired,
    TokenRevoked,
    TokenUsed,
)
from flowfabric.core.wait.model import Terms
from flowfabric.engine.wait import suspensions
from flowfabric.worker.api.approval import ApprovalEnd, about_digest
from tests.worker.bench import AGAIN, Bench, Log

HOUR = 3_600_000
THREE = ["ada", "bob", "eve"]


def told(verdict: Verdict) -> dict[str, Any]:
    decisions = [f"{each.approver} {each.decision}" for each in verdict.decisions]
    return {"ended": verdict.ended, "approved": verdict.approved, "decisions": decisions}


def add_deploy(bench: Bench, **asked: Any) -> Any:
    @bench.fabric.task()
    async def deploy(ctx: Context) -> dict[str, Any]:
        return told(await ctx.approval("deploy", **asked))

    return deploy


# -- deciding


async def test_one_approval_is_enough_by_default(bench: Bench) -> None:
    run = await add_deploy(bench).submit()
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    sent = await bench.fabric.approve(run, "deploy", approver="ada", comment="go")
    assert sent.resumed
    await bench.work()
    assert await run.result() == {
        "ended": "approved",
        "approved": True,
        "decisions": ["ada approved"],
    }


async def test_a_plain_function_asks_the_same_way(bench: Bench) -> None:
    tokens: list[Any] = []

    @bench.fabric.task()
    def deploy(ctx: SyncContext) -> list[Any]:
        asked = ctx.request_approval("ship", approvers=["bob"], about=7)
        tokens[:] = [asked.id, asked.token("bob")]
        ship = asked.verdict(timeout="1d")
        ship.check(7)
        return [told(ctx.approval("deploy")), told(ship)]

    run = await deploy.submit()
    await bench.work()
    await bench.fabric.approve(tokens[0], token=tokens[1])
    await bench.work()
    await asyncio.to_thread(bench.fabric.reject_sync, run, "deploy", approver="ada")
    await bench.work()
    assert [found["decisions"] for found in await run.result()] == [
        ["ada rejected"],
        ["bob approved"],
    ]


async def test_two_of_three_distinct_people(bench: Bench) -> None:
    run = await add_deploy(bench, of=2, approvers=THREE).submit()
    await bench.work()
    approve = bench.fabric.approve
    assert not (await approve(run, "deploy", approver="ada")).resumed
    assert (await approve(run, "deploy", approver="ada")).duplicate
    assert await bench.work() == 0
    assert (await approve(run, "deploy", approver="eve")).resumed
    await bench.work()
    assert (await run.result())["decisions"] == ["ada approved", "eve approved"]


async def test_so_many_refusals_that_it_cannot_be_approved_any_more(bench: Bench) -> None:
    run = await add_deploy(bench, of=2, approvers=THREE).submit()
    await bench.work()
    assert not (await bench.fabric.reject(run, "deploy", approver="ada", comment="no")).resumed
    assert not (await bench.fabric.approve(run, "deploy", approver="bob")).resumed
    assert (await bench.fabric.reject(run, "deploy", approver="eve")).resumed
    await bench.work()
    assert await run.result() == {
        "ended": "rejected",
        "approved": False,
        "decisions": ["ada rejected", "bob approved", "eve rejected"],
    }


async def test_without_a_list_the_first_refusal_decides(bench: Bench) -> None:
    run = await add_deploy(bench, of=2).submit()
    await bench.work()
    await bench.fabric.approve(run, "deploy", approver="ada")
    assert (await bench.fabric.reject(run, "deploy", approver="bob")).resumed
    await bench.work()
    assert (await run.result())["ended"] == "rejected"


async def test_an_approver_decides_once_and_a_stranger_never(bench: Bench) -> None:
    run = await add_deploy(bench, of=2, approvers=THREE).submit()
    await bench.work()
    fabric = bench.fabric
    await fabric.approve(run, "deploy", approver="ada")
    with pytest.raises(AlreadyDecided, match="decided before: approved"):
        await fabric.reject(run, "deploy", approver="ada")
    for stranger in ("mallory", ""):
        with pytest.raises(NotAllowed, match="not one of the approvers"):
            await fabric.approve(run, "deploy", approver=stranger)
    with pytest.raises(NotAllowed, match="not one of approved, rejected"):
        await fabric.signal(run, "deploy", "yes")
    with pytest.raises(NotFound, match="approval release"):
        await fabric.approve(run, "release", approver="ada")
    assert await run.state() is PublicState.SUSPENDED


async def test_what_each_one_said_is_kept(bench: Bench) -> None:
    @bench.fabric.task()
    async def deploy(ctx: Context) -> list[Any]:
        verdict = await ctx.approval("deploy", of=4)
        return [each.comment for each in verdict.decisions]

    run = await deploy.submit()
    await bench.work()
    await bench.fabric.approve(run, "deploy", approver="ada", comment="fine by me")
    await bench.fabric.approve(run, "deploy", approver="bob")
    id = f"{run.id}/{(await bench.fabric.waitpoints(run))[0].id}"
    for who, said in (("eve", {"why": "odd"}), ("kim", None)):
        token = await bench.fabric.waitpoint_token(run, "deploy", approver=who)
        await bench.fabric.signal(id, "approved", said, token=token)
    await bench.work()
    assert await run.result() == ["fine by me", "", '{"why":"odd"}', ""]


@pytest.mark.parametrize(
    ("said", "shown"), [(b"looks good", "looks good"), (b"\xff", "\N{REPLACEMENT CHARACTER}")]
)
async def test_a_comment_that_is_no_json_fails_no_run(
    bench: Bench, said: bytes, shown: str
) -> None:
    """server-sdk.md 1.7: the payload of a signal is any bytes, also that of a decision."""

    @bench.fabric.task()
    async def deploy(ctx: Context) -> list[Any]:
        return [each.comment for each in (await ctx.approval("deploy")).decisions]

    run = await deploy.submit()
    await bench.work()
    (asked,) = await bench.fabric.waitpoints(run)
    token = await bench.fabric.waitpoint_token(run, "deploy")
    decision = bench.engine.signals.delivery(asked.id)(name="approved", payload=said)
    await bench.engine.signals.deliver(run.id, decision, token)
    await bench.work()
    assert await run.result() == [shown]


async def test_time_that_is_over_is_no_approval(bench: Bench) -> None:
    run = await add_deploy(bench, of=2, timeout="1h").submit()
    await bench.work()
    await bench.fabric.approve(run, "deploy", approver="ada")
    await bench.pass_time(HOUR)
    with pytest.raises(NotFound, match="approval deploy"):
        await bench.fabric.approve(run, "deploy", approver="bob")
    await bench.work()
    assert await run.result() == {
        "ended": "timed_out",
        "approved": False,
        "decisions": ["ada approved"],
    }


async def test_approvals_of_one_name_one_after_the_other_are_decided_one_by_one(
    bench: Bench,
) -> None:
    @bench.fabric.task()
    async def deploy(ctx: Context) -> list[str]:
        found = [await ctx.approval("deploy") for _ in range(2)]
        asked = await ctx.request_approval("deploy")
        return [*(verdict.ended for verdict in found), (await asked.verdict()).ended]

    run = await deploy.submit()
    for decide in (bench.fabric.approve, bench.fabric.reject, bench.fabric.approve):
        await bench.work()
        assert await run.state() is PublicState.SUSPENDED
        await decide(run, "deploy", approver="ada")
    await bench.work()
    assert await run.result() == ["approved", "rejected", "approved"]


async def test_a_verdict_is_the_same_whenever_it_is_asked_for(bench: Bench) -> None:
    @bench.fabric.task()
    async def deploy(ctx: Context) -> list[str]:
        asked = await ctx.request_approval("deploy")
        verdicts = [await asked.verdict(timeout="1h") for _ in range(3)]
        return [verdict.ended for verdict in verdicts]

    decided, late = await deploy.submit(), await deploy.submit()
    await bench.work()
    await bench.fabric.approve(decided, "deploy", approver="ada")
    await bench.pass_time(HOUR)
    await bench.work()
    assert await decided.result() == ["approved"] * 3
    assert await late.result() == ["timed_out"] * 3


async def test_an_approval_is_found_among_more_waitpoints_than_a_page_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flaw 11: also when the run has handed out a thousand callbacks before it asks"""

    @bench.fabric.task()
    async def buy(ctx: Context) -> bool:
        for number in range(5):
            await ctx.callback(f"offer {number}")
        return (await ctx.approval("buy")).approved

    run = await buy.submit()
    await bench.work()
    monkeypatch.setattr(suspensions, "MAX_PAGE", 2)
    assert [each.key for each in await bench.fabric.waitpoints()] == ["buy"]
    for name in ["buy", *(f"offer {number}" for number in range(5))]:
        assert await bench.fabric.waitpoint_token(run, name)
    await bench.fabric.approve(run, approver="ada")
    await bench.work()
    assert await run.result() is True


async def test_only_an_approval_can_be_approved(bench: Bench) -> None:
    """A signal of the same name that came first does not take the decision either."""
    fabric = bench.fabric

    @fabric.task()
    async def deploy(ctx: Context) -> list[Any]:
        paid = await ctx.wait_for_signal("paid", int)
        asked = await ctx.request_approval("deploy")
        await ctx.wait_for_signal("go")
        return [paid, (await asked.verdict()).ended]

    run = await deploy.submit()
    await bench.work()
    with pytest.raises(NotFound, match="approval paid"):
        await fabric.approve(run, "paid", approver="ada")
    (open_one,) = await fabric.waitpoints(run)
    with pytest.raises(NotAllowed, match="not an approval"):
        await fabric.approve(f"{run.id}/{open_one.id}", approver="ada")
    await fabric.signal(run, "deploy", "early")
    await fabric.signal(run, "paid", 7)
    await bench.work()
    await fabric.approve(run, "deploy", approver="ada")
    await fabric.signal(run, "go")
    await bench.work()
    assert await run.result() == [7, "approved"]


# -- about exactly this


class Plan(msgspec.Struct):
    version: int
    hosts: list[str]


async def test_an_approval_is_bound_to_the_exact_thing(bench: Bench) -> None:
    plan = Plan(7, ["a", "b"])

    @bench.fabric.task()
    async def deploy(ctx: Context) -> str:
        verdict = await ctx.approval("deploy", about=plan)
        verdict.check(plan)
        verdict.check({"hosts": ["a", "b"], "version": 7})
        with pytest.raises(ApprovalOutdated, match="for something else"):
            verdict.check(Plan(8, ["a", "b"]))
        return verdict.about or ""

    run = await deploy.submit()
    await bench.work()
    with pytest.raises(ApprovalOutdated, match="not what the sender approves"):
        await bench.fabric.approve(run, "deploy", approver="ada", about=Plan(8, ["a", "b"]))
    assert await run.state() is PublicState.SUSPENDED
    await bench.fabric.approve(run, "deploy", approver="ada", about=plan)
    await bench.work()
    assert len(await run.result()) == 64


def test_the_same_thing_is_the_same_however_it_is_written() -> None:
    same = [Plan(7, ["a"]), {"hosts": ["a"], "version": 7}, {"version": 7, "hosts": ("a",)}]
    assert len({about_digest(value) for value in same}) == 1
    assert about_digest({"b", "a"}) == about_digest(["a", "b"])
    assert len({about_digest(value) for value in (1, 1.0, "1", True, b"1", [1])}) == 6


def test_only_a_yes_can_be_checked() -> None:
    for ended in (ApprovalEnd.REJECTED, ApprovalEnd.TIMED_OUT, ApprovalEnd.RESUMED):
        assert not Verdict("deploy", ended)
        with pytest.raises(ApprovalOutdated, match=f"was not approved but {ended}"):
            Verdict("deploy", ended).check(7)
    assert Verdict("deploy", ApprovalEnd.APPROVED)
    with pytest.raises(ApprovalOutdated, match="for something else"):
        Verdict("deploy", ApprovalEnd.APPROVED).check(7)


async def test_what_changed_before_the_decision_is_asked_about_again(bench: Bench) -> None:
    """The old token is refused, with the reason; what was decided on the old does not count."""
    fabric = bench.fabric
    versions = [7, 8, 8]

    @fabric.task()
    async def deploy(ctx: Context) -> list[Any]:
        version = versions.pop(0)
        _, verdict = await ctx.gather(
            ctx.wait_for_signal("look again"), ctx.approval("deploy", of=2, about=version)
        )
        verdict.check(version)
        return [decision.approver for decision in verdict.decisions]

    run = await deploy.submit()
    await bench.work()
    old = next(each for each in await fabric.waitpoints(run) if each.key == "deploy")
    token = await fabric.waitpoint_token(run, "deploy", approver="bob")
    await fabric.approve(run, "deploy", approver="ada")
    await fabric.signal(run, "look again")
    await bench.work()
    with pytest.raises(ApprovalOutdated, match="has changed since"):
        await fabric.approve(f"{run.id}/{old.id}", token=token)
    with pytest.raises(ApprovalOutdated):
        await fabric.approve(run, "deploy", approver="bob", about=7)
    await fabric.approve(run, "deploy", approver="bob", about=8)
    assert await run.state() is PublicState.SUSPENDED
    await fabric.approve(run, "deploy", approver="ada", about=8)
    await bench.work()
    assert await run.result() == ["bob", "ada"]


@pytest.mark.parametrize("way", ["approval", "request"])
async def test_what_changed_after_the_decision_is_refused(bench: Bench, way: str) -> None:
    versions = [7, 7, 8]

    @bench.fabric.task(**AGAIN)
    async def deploy(ctx: Context) -> None:
        version = versions.pop(0)
        if way == "approval":
            await ctx.approval("deploy", about=version)
        else:
            await (await ctx.request_approval("deploy", about=version)).verdict()
        raise ConnectionError

    run = await deploy.submit()
    await bench.work()
    await bench.fabric.approve(run, "deploy", approver="ada")
    versions.extend([8] * 9)
    await bench.work()
    with pytest.raises(RunFailed, match="about something else than the handler asks about now"):
        await run.result()


# -- tokens


async def test_tokens_are_for_one_approver_and_one_use(
    bench: Bench, caplog: pytest.LogCaptureFixture, log: Log
) -> None:
    caplog.set_level(logging.DEBUG)
    fabric = bench.fabric

    @fabric.task(**AGAIN)
    async def deploy(ctx: Context) -> dict[str, Any]:
        asked = await ctx.request_approval("deploy", of=2, approvers=THREE, about=7)
        log.append({who: (await asked.token(who)).reveal() for who in THREE})
        ctx.log.info("asked %s for %r", asked, await asked.token("ada"))
        ids.append(asked.id)
        return told(await asked.verdict(timeout="1d"))

    ids: list[str] = []
    run = await deploy.submit()
    await bench.work()
    id, tokens = ids[0], log[0]
    with pytest.raises(NotAllowed, match="another approver"):
        await fabric.approve(id, approver="bob", token=tokens["ada"])
    with pytest.raises(Unauthorized):
        await fabric.approve(id, token=tokens["ada"][:-1] + "x")
    first = await fabric.approve(id, token=tokens["ada"])
    again = await fabric.approve(id, token=tokens["ada"])
    assert (again.duplicate, again.signal) == (True, first.signal)
    with pytest.raises(TokenUsed):
        await fabric.reject(id, token=tokens["ada"])
    await fabric.reject(id, token=tokens["bob"])
    await fabric.approve(id, token=tokens["eve"])
    await bench.work()
    assert (await run.result())["approved"]
    assert log[0] == log[1], "the same whenever the handler runs"
    shown = caplog.text + repr(ids)
    assert "Approval('deploy'" in shown
    assert not any(token.partition(":")[2][:20] in shown for token in tokens.values())


async def test_tokens_that_run_out(bench: Bench) -> None:
    found: list[str] = []

    @bench.fabric.task()
    async def deploy(ctx: Context) -> dict[str, Any]:
        asked = await ctx.request_approval("deploy")
        found[:] = [asked.id, (await asked.token("ada", expires="1h")).reveal()]
        return told(await asked.verdict())

    run = await deploy.submit()
    await bench.work()
    await bench.pass_time(HOUR)
    with pytest.raises(TokenExpired):
        await bench.fabric.approve(found[0], token=found[1])
    assert await run.state() is PublicState.SUSPENDED


async def test_tokens_made_and_taken_back_by_the_application(bench: Bench) -> None:
    fabric = bench.fabric
    run = await add_deploy(bench, of=3).submit()
    await bench.work()
    id = f"{run.id}/{(await fabric.waitpoints(run))[0].id}"
    no = await fabric.waitpoint_token(run, "deploy", decisions=["rejected"], approver="ada")
    one = await fabric.waitpoint_token(id, single_use=True, expires="1h")
    gone = await fabric.waitpoint_token(run, "deploy", approver="bob")
    open_one = await fabric.waitpoint_token(run)
    with pytest.raises(NotAllowed, match="does not allow 'approved'"):
        await fabric.approve(id, token=no)
    await fabric.revoke_tokens(run, "deploy", token=gone)
    with pytest.raises(TokenRevoked):
        await fabric.approve(id, token=gone)
    await fabric.approve(id, token=one)
    assert (await fabric.approve(id, token=one)).duplicate
    with pytest.raises(TokenUsed):
        await fabric.reject(id, token=one)
    for claimed in ("kim", "lee"):
        assert (await fabric.approve(id, token=open_one, approver=claimed)).duplicate
    await fabric.revoke_tokens(run)
    with pytest.raises(TokenRevoked):
        await fabric.approve(id, token=open_one)
    with pytest.raises(InvalidToken):
        await fabric.approve(f"{run.id}/{run.id.uuid}", token=open_one)
    with pytest.raises(Invalid, match="only a bound token"):
        await fabric.revoke_tokens(run, token=open_one)
    with pytest.raises(NotFound):
        await fabric.waitpoint_token(run, "release")
    with pytest.raises(Invalid, match="decisions must be a list"):
        await fabric.waitpoint_token(run, "deploy", decisions="rejected")
    assert await run.state() is PublicState.SUSPENDED


# -- nonsense


@pytest.mark.rules
@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"name": ""}, "an approval needs a name"),
        ({"name": "x" * 300}, "approval name"),
        ({"of": 0}, "of must be 1 to"),
        ({"of": True}, "of must be a whole number"),
        ({"of": 101}, "of must be 1 to"),
        ({"of": 3, "approvers": ["ada", "bob"]}, "3 of 2 approvers can never approve"),
        ({"approvers": "ada"}, "must be a list of names"),
        ({"approvers": ["ada", "ada"]}, "named twice"),
        ({"approvers": ["ada", ""]}, "every approver needs a name"),
        ({"approvers": [f"a{n}" for n in range(101)]}, "the limit is 100"),
        ({"about": object()}, "object"),
        ({"about": {1, "a"}}, "set"),
        ({"about": {"share": float("nan")}}, "JSON cannot say this dict exactly"),
        ({"about": {1: "a", "1": "b"}}, "dict"),
        ({"timeout": "soon"}, "timeout is not a duration"),
    ],
)
async def test_approvals_that_make_no_sense_are_refused_where_they_are_made(
    bench: Bench, asked: dict[str, Any], complaint: str
) -> None:
    given = {"name": "deploy", **asked}

    @bench.fabric.task()
    async def deploy(ctx: Context) -> str:
        with pytest.raises(Invalid, match=complaint):
            await ctx.approval(**given)
        if "timeout" not in given:
            with pytest.raises(Invalid, match=complaint):
                await ctx.request_approval(**given)
        return "refused"

    run = await deploy.submit()
    await bench.work()
    assert await run.result() == "refused"


async def test_a_token_for_a_stranger_is_refused(bench: Bench) -> None:
    @bench.fabric.task()
    async def deploy(ctx: Context) -> str:
        asked = await ctx.request_approval("deploy", approvers=THREE)
        with pytest.raises(Invalid, match="which 'mallory' is not"):
            await asked.token("mallory")
        with pytest.raises(Invalid, match="give the name of one of the approvers"):
            await asked.token()
        with pytest.raises(Invalid, match="expires is not a duration"):
            await asked.token("ada", expires="soon")
        return "refused"

    run = await deploy.submit()
    await bench.work()
    assert await run.result() == "refused"


# -- the value that is approved


@pytest.mark.parametrize(
    ("about", "shown"),
    [
        ({"b": [1, 2.0], "a": "ä"}, {"b": [1, 2.0], "a": "ä"}),
        ("just text", "just text"),
        (0, 0),
        (2**70, 2**70),
        (b"raw", {"base64": "cmF3"}),
        (None, None),
        ("x" * 100_000, None),
    ],
)
async def test_the_value_to_be_approved_is_shown_to_approvers(
    bench: Bench, about: Any, shown: Any
) -> None:
    @bench.fabric.task()
    async def ask(ctx: Context) -> bool:
        return (await ctx.approval("it", about=about)).approved

    run = await ask.submit()
    await bench.work()
    (item,) = await bench.fabric.waitpoints(run.id)
    assert item.about == shown
    assert item.terms is not None
    assert item.terms.about == (None if about is None else about_digest(about))
    token = await bench.fabric.waitpoint_token(f"{run.id}/{item.id}", approver="ada")
    await bench.fabric.approve(f"{run.id}/{item.id}", approver="ada", token=token, about=about)
    await bench.work()
    assert await run.result() is True


def test_a_waitpoint_of_an_earlier_release_has_no_value() -> None:
    stored = b'{"about":"%s","decisions":["approved"]}' % about_digest(7).encode()
    terms = msgspec.json.decode(stored, type=Terms)
    assert terms.value is None
    assert msgspec.json.encode(terms) == stored

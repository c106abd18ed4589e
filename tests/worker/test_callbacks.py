"""Callbacks: a door for one answer, for whoever holds its token."""

import logging
from typing import Any

import msgspec
import pytest

from flowfabric import (
    Context,
    Fabric,
    Invalid,
    NotSignalable,
    Options,
    PublicState,
    RunFailed,
    SyncContext,
    Token,
    WaitTimeout,
)
from flowfabric.core.base.errors import InvalidToken, MissingToken, TokenExpired, TokenRevoked
from flowfabric.core.base.time import Millis
from flowfabric.store.clock import ManualClock
from tests.worker.bench import AGAIN, Bench, Log

HOUR = 3_600_000
SECRET = "5eed" * 16


class Paid(msgspec.Struct):
    cents: int


def add_payment(bench: Bench, doors: list[Any], **options: Any) -> Any:
    @bench.fabric.task(**options)
    async def pay(ctx: Context) -> Any:
        callback = await ctx.callback("payment")
        doors.append((callback.id, callback.token))
        paid = await callback.result(Paid, timeout="1d")
        return paid.cents

    return pay


async def test_a_tampered_token_is_refused_and_the_right_one_accepted_once(bench: Bench) -> None:
    doors: list[Any] = []
    run = await add_payment(bench, doors).submit()
    await bench.work()
    id, token = doors[0]
    text = token.reveal()
    for wrong in (text[:-1] + ("0" if text[-1] != "0" else "1"), "x", f"{text}.e30", f" {text}"):
        with pytest.raises(InvalidToken):
            await bench.fabric.signal(id, payload={"cents": 1}, token=wrong)
    for nothing in (None, ""):
        with pytest.raises(MissingToken):
            await bench.fabric.signal(id, payload={"cents": 1}, token=nothing)
    assert await run.state() is PublicState.SUSPENDED
    assert (await bench.fabric.signal(id, payload={"cents": 5}, token=text)).resumed
    with pytest.raises(NotSignalable):
        await bench.fabric.signal(id, payload={"cents": 6}, token=text)
    await bench.work()
    assert await run.result() == 5
    with pytest.raises(NotSignalable):
        await bench.fabric.signal(id, payload={"cents": 7}, token=token)


async def test_a_token_opens_no_other_door(bench: Bench) -> None:
    doors: list[Any] = []
    pay = add_payment(bench, doors)
    await pay.submit()
    await pay.submit()
    await bench.work()
    (first, _), (_, other) = doors
    with pytest.raises(InvalidToken):
        await bench.fabric.signal(first, payload={"cents": 1}, token=other)


async def test_a_plain_function_has_callbacks_too(bench: Bench) -> None:
    doors: list[Any] = []

    @bench.fabric.task()
    def pay(ctx: SyncContext) -> list[Any]:
        callback = ctx.callback()
        doors.append((callback.id, callback.token))
        return [callback.result(timeout="1d"), callback.result()]

    run = await pay.submit()
    await bench.work()
    id, token = doors[0]
    await bench.fabric.signal(id, payload="paid", token=token)
    await bench.work()
    assert await run.result() == ["paid", "paid"]


async def test_an_answer_that_comes_before_its_wait_is_kept(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def pay(ctx: Context) -> Any:
        callback = await ctx.callback()
        if not log:
            await bench.fabric.signal(callback.id, payload=log.note("fast"), token=callback.token)
        return await callback.result()

    run = await pay.submit()
    assert await bench.work() == 1
    assert await run.result() == "fast"


async def test_the_same_door_whenever_the_handler_runs(bench: Bench) -> None:
    doors: list[Any] = []

    @bench.fabric.task(**AGAIN)
    async def pay(ctx: Context) -> Any:
        callbacks = [await ctx.callback(), await ctx.callback()]
        doors.append([(each.id, each.token.reveal()) for each in callbacks])
        if ctx.info.first:
            raise ConnectionError
        return [await each.result() for each in callbacks]

    run = await pay.submit()
    await bench.work()
    assert doors[0] == doors[1]
    assert doors[0][0] != doors[0][1]
    for number, (id, token) in enumerate(doors[0]):
        await bench.fabric.signal(id, payload=number, token=token)
    await bench.work()
    assert await run.result() == [0, 1]


async def test_the_answer_survives_a_retry_and_is_the_same_whenever_it_is_asked_for(
    bench: Bench,
) -> None:
    doors: list[Any] = []

    @bench.fabric.task(**AGAIN)
    async def pay(ctx: Context) -> Any:
        callback = await ctx.callback()
        doors.append((callback.id, callback.token))
        answers = [await callback.result() for _ in range(3)]
        if ctx.info.first:
            raise ConnectionError
        return answers

    run = await pay.submit()
    await bench.work()
    await bench.fabric.signal(doors[0][0], payload=7, token=doors[0][1])
    await bench.work()
    assert await run.result() == [7, 7, 7]


async def test_a_door_closes_when_its_time_is_over(bench: Bench) -> None:
    doors: list[Any] = []

    @bench.fabric.task()
    async def pay(ctx: Context) -> list[str]:
        callback = await ctx.callback()
        doors.append((callback.id, callback.token))
        found = []
        for _ in range(2):
            try:
                await callback.result(timeout="1h")
            except WaitTimeout:
                found.append("too late")
        await ctx.sleep("1h")
        return found

    run = await pay.submit()
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.state() is PublicState.DELAYED
    with pytest.raises(NotSignalable):
        await bench.fabric.signal(doors[0][0], payload=7, token=doors[0][1])
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == ["too late", "too late"]


async def test_an_answer_of_another_shape_fails_the_run(bench: Bench) -> None:
    doors: list[Any] = []
    run = await add_payment(bench, doors).submit()
    await bench.work()
    await bench.fabric.signal(doors[0][0], payload=["?"], token=doors[0][1])
    await bench.work()
    with pytest.raises(RunFailed, match="Expected `object`, got `array`"):
        await run.result()


async def test_a_repeat_by_the_sender_is_harmless(bench: Bench) -> None:
    doors: list[Any] = []
    run = await add_payment(bench, doors).submit()
    await bench.work()
    id, token = doors[0]
    first = await bench.fabric.signal(id, payload={"cents": 5}, token=token, key="event-1")
    again = await bench.fabric.signal(id, payload={"cents": 5}, token=token, key="event-1")
    assert (again.duplicate, again.signal) == (True, first.signal)
    await bench.work()
    assert await run.result() == 5
    assert (await bench.fabric.signal(id, payload={}, token=token, key="event-1")).duplicate


async def test_tokens_are_never_shown(
    bench: Bench, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    doors: list[Any] = []

    @bench.fabric.task()
    async def pay(ctx: Context) -> Any:
        callback = await ctx.callback()
        doors.append((callback.id, callback.token))
        ctx.log.info("callback %s %r %s", callback, callback, callback.token)
        print(callback, callback.token, f"{callback.token}")
        return await callback.result()

    run = await pay.submit()
    await bench.work()
    id, token = doors[0]
    secret = token.reveal().partition(":")[2]
    with pytest.raises(InvalidToken) as refused:
        await bench.fabric.signal(id, token=token.reveal()[:-1])
    open_ones = await bench.fabric.waitpoints()
    await bench.fabric.signal(id, payload=1, token=token)
    await bench.work()
    events = await run.events()
    steps = [step.doc for step in await bench.steps(run)]
    shown = (
        f"{caplog.text} {capsys.readouterr().out} {refused.value!r} {open_ones} {events} {steps}"
    )
    assert "REDACTED" in shown
    assert secret not in shown
    assert secret[:17] not in shown, "no more than the fingerprint"


async def test_all_tokens_of_a_door_can_be_taken_back(bench: Bench) -> None:
    doors: list[Any] = []
    await add_payment(bench, doors).submit()
    await bench.work()
    id, token = doors[0]
    await bench.fabric.revoke_tokens(id)
    with pytest.raises(TokenRevoked):
        await bench.fabric.signal(id, payload={"cents": 1}, token=token)


async def test_what_was_taken_back_after_the_end_stays_so_in_a_replay(bench: Bench) -> None:
    doors: list[Any] = []
    run = await add_payment(bench, doors).submit()
    await bench.work()
    await run.cancel()
    id, token = doors[0]
    await bench.fabric.revoke_tokens(id)
    await run.replay()
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    with pytest.raises(TokenRevoked):
        await bench.fabric.signal(id, payload={"cents": 1}, token=token)


@pytest.mark.inside
async def test_the_secret_of_the_environment_signs_and_can_be_rotated(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWFABRIC_WAITPOINT_SECRET", SECRET)
    clock = ManualClock()
    async with Fabric(store_url, options=Options(make_keys=False), clock=clock) as fabric:
        engine = await fabric.engine()
        bench, doors = Bench(fabric, engine, clock), list[Any]()
        pay = add_payment(bench, doors)
        runs = [await pay.submit(), await pay.submit()]
        await bench.work()
        await engine.keys.rotate("second", "ab" * 32, grace=Millis(HOUR))
        await fabric.signal(doors[0][0], payload={"cents": 1}, token=doors[0][1])
        clock.advance(HOUR + 1)
        with pytest.raises(TokenExpired):
            await fabric.signal(doors[1][0], payload={"cents": 2}, token=doors[1][1])
        runs.append(await pay.submit())
        await bench.work()
        assert doors[-1][1].kid == "second"
        assert await runs[0].result() == 1
        assert SECRET not in repr(fabric._options)


@pytest.mark.parametrize("name", ["", "x" * 257, 7, "a\x00"])
async def test_names_that_make_no_sense_are_refused(bench: Bench, name: Any) -> None:
    @bench.fabric.task()
    async def pay(ctx: Context) -> str:
        with pytest.raises(Invalid):
            await ctx.callback(name)
        return "refused"

    run = await pay.submit()
    await bench.work()
    assert await run.result() == "refused"


def test_a_token_that_was_made_by_hand_is_hidden_too() -> None:
    assert "secret" not in f"{Token('secret')} {Token('secret')!r}"

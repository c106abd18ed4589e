"""The keys that sign tokens: seeded once, rotated, kept by the store, the same for every process.

E-T254 to E-T256, E-T261, E-T300 to E-T309, E-X26, INV-22, FLAW-39; §3.42 to §3.44.
"""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    Invalid,
    InvalidGrace,
    InvalidKid,
    InvalidSecret,
    InvalidSecretHex,
    InvalidToken,
    NoSigningKey,
    RetryExhausted,
    RotationConflict,
    TokenExpired,
    Unavailable,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.wait import keyring
from flowfabric.core.wait.condition.model import Count, CountKind
from flowfabric.core.wait.keyring import AlreadySeeded, Kids, Noop, Rotated, Seeded
from flowfabric.core.wait.model import Effect
from flowfabric.engine.context import EngineOptions
from flowfabric.engine.engine import Engine
from flowfabric.engine.wait.suspensions import Ticket
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.open import open_store
from flowfabric.store.rows.record import KEYRING, ONLY, SealedKeyring
from tests.kit.lab import Lab
from tests.kit.race import Race
from tests.kit.signalling import deliver, deliver_with, effect, fresh, kept, waiting
from tests.kit.waits import create_waitpoint, suspend

A, B, C = ("aa" * 32, "bb" * 32, "cc" * 32)
GRACE = Millis(1_000)
MANY = Count(9, CountKind.SIGNALS, ("go",))


async def stored_keys(lab: Lab) -> SealedKeyring:
    return (await lab.engine.store.records.get(KEYRING, [ONLY]))[ONLY]


async def signed(lab: Lab) -> tuple[str, Ticket]:
    """An execution that waits for many signals, and its token."""
    claim, answer = await waiting(lab, MANY)
    return claim.id, answer.primary


def kid_of(ticket: Ticket) -> str:
    assert ticket.token is not None
    return ticket.token.kid


# -- the first key


async def test_nothing_is_there_at_first(lab: Lab) -> None:
    """E-T305: and looking makes nothing"""
    assert await lab.engine.keys.kids() == Kids(None, ())
    assert await lab.engine.keys.kids() == Kids(None, ())
    assert await lab.engine.store.records.get(KEYRING, [ONLY]) == {}


async def test_the_first_key_is_seeded_once(lab: Lab) -> None:
    """E-T309: never overwritten, and whoever comes later is told to rotate"""
    seed = lab.engine.keys.seed
    assert await seed("a", A) == Seeded("a")
    assert await seed("a", A) == AlreadySeeded("a", same_secret=True)
    assert await seed("a", A.upper()) == AlreadySeeded("a", same_secret=True)
    assert await seed("a", B) == AlreadySeeded("a", same_secret=False)
    with pytest.raises(Invalid, match="rotate"):
        await seed("b", B)
    assert await lab.engine.keys.kids() == Kids("a", ())
    assert kid_of((await signed(lab))[1]) == "a"


@pytest.mark.rules
@pytest.mark.inside
async def test_a_seed_has_to_make_sense(lab: Lab) -> None:
    """E-T309: exactly 64 hex digits; a key id without a colon"""
    wrong: list[Any] = ["", "ab", A[:-1], A[:-2], A + "aa", "zz" * 32, None, 5, A[:-1] + "\n"]
    for secret in wrong:
        with pytest.raises(InvalidSecretHex):
            await lab.engine.keys.seed("a", secret)
    kids: list[Any] = ["", "a:b", "a b", "é", "k" * 257, None, 5]
    for kid in kids:
        with pytest.raises(InvalidKid):
            await lab.engine.keys.seed(kid, A)
    assert await lab.engine.store.records.get(KEYRING, [ONLY]) == {}


async def test_a_key_is_made_when_one_is_first_needed(lab: Lab) -> None:
    """And only one"""
    _, first = await signed(lab)
    _, second = await signed(lab)
    kids = await lab.engine.keys.kids()
    assert kids.current_kid == kid_of(first) == kid_of(second)
    assert (await stored_keys(lab)).version == 1


async def test_two_processes_make_one_key(lab: Lab, second_lab: Lab) -> None:
    claims = [await lab.running(), await second_lab.running()]
    answers = await asyncio.gather(suspend(lab, claims[0]), suspend(second_lab, claims[1]))
    (kid,) = {kid_of(answer.primary) for answer in answers}
    assert await lab.engine.keys.kids() == await second_lab.engine.keys.kids() == Kids(kid, ())
    for claim, answer in zip(claims, answers, strict=True):
        assert await effect(lab, claim.id, answer.primary) is Effect.SATISFIED


async def test_without_a_key_nothing_waits_for_signed_signals(
    store: Store, clock: ManualClock
) -> None:
    """§3.31 check 6, §3.34 check 5: unavailable, and nothing is changed"""
    lab = await Lab.open(store, clock, make_keys=False)
    claim = await lab.running()
    with pytest.raises(NoSigningKey) as caught:
        await suspend(lab, claim)
    assert isinstance(caught.value, Unavailable)
    assert caught.value.code == "hmac_secret_not_initialized"
    with pytest.raises(NoSigningKey):
        await create_waitpoint(lab, claim, "go")
    with pytest.raises(NoSigningKey):
        await deliver_with("kid:" + "a" * 64, lab, claim.id, fresh())
    assert await lab.engine.keys.kids() == Kids(None, ())
    await lab.engine.keys.seed("a", A)
    assert kid_of((await suspend(lab, claim)).primary) == "a"
    await lab.engine.close()


# -- a key from the configuration


async def test_a_configured_secret_becomes_the_first_key(store: Store, clock: ManualClock) -> None:
    lab = await Lab.open(store, clock, waitpoint_secret=A, make_keys=False)
    _, ticket = await signed(lab)
    assert kid_of(ticket) == keyring.kid_of(A)
    assert await lab.engine.keys.seed(keyring.kid_of(A), A) == AlreadySeeded(
        keyring.kid_of(A), same_secret=True
    )
    await lab.engine.close()


@pytest.mark.rules
@pytest.mark.parametrize("wrong", ["", "ab", "zz" * 32, A + "aa"])
async def test_a_configured_secret_that_is_none_is_refused_at_once(
    store: Store, wrong: str
) -> None:
    """Before the first request; the text says what is expected, and never what was given"""
    with pytest.raises(InvalidSecretHex, match="must be exactly 64 hex digits, not") as caught:
        await Engine.open(store, options=EngineOptions(waitpoint_secret=wrong))
    assert "FLOWFABRIC_WAITPOINT_SECRET" in str(caught.value)
    assert not wrong or wrong not in str(caught.value)
    await store.close()


async def test_a_configured_secret_does_not_replace_a_key(
    lab: Lab, store_url: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, once, and never which secret"""
    await lab.engine.keys.seed("a", A)
    other = await Lab.open(await open_store(store_url, clock=clock), clock, waitpoint_secret=B)
    with caplog.at_level(logging.WARNING, logger="flowfabric.keys"):
        for _ in range(2):
            assert kid_of((await signed(other))[1]) == "a"
    assert len([record for record in caplog.records if "rotate" in record.message]) == 1
    assert B not in caplog.text
    await other.engine.close()


# -- rotation


async def test_the_first_rotation_follows_no_key(lab: Lab) -> None:
    """E-T300"""
    assert await lab.engine.keys.rotate("a", A) == Rotated(None, "a", 0)
    assert await lab.engine.keys.kids() == Kids("a", ())


async def test_a_rotation_keeps_the_previous_key_for_a_while(lab: Lab) -> None:
    """E-T301"""
    now = lab.clock.now()
    await lab.engine.keys.rotate("a", A)
    assert await lab.engine.keys.rotate("b", B, grace=GRACE) == Rotated("a", "b", 0)
    assert await lab.engine.keys.kids() == Kids("b", (("a", Millis(now + GRACE)),))
    assert await lab.engine.keys.rotate("c", C) == Rotated("b", "c", 0)
    day = Millis(now + 86_400_000)
    assert await lab.engine.keys.kids() == Kids("c", (("a", Millis(now + GRACE)), ("b", day)))


async def test_an_exact_repeat_of_a_rotation_does_nothing(lab: Lab) -> None:
    """E-T302"""
    await lab.engine.keys.rotate("a", A)
    await lab.engine.keys.rotate("b", B, grace=GRACE)
    stored = await stored_keys(lab)
    lab.clock.advance(10)
    assert await lab.engine.keys.rotate("b", B, grace=Millis(5)) == Noop("b")
    assert await stored_keys(lab) == stored


async def test_a_key_id_has_one_secret(lab: Lab) -> None:
    """E-T303: also while it is retired"""
    await lab.engine.keys.rotate("a", A)
    with pytest.raises(RotationConflict):
        await lab.engine.keys.rotate("a", B)
    await lab.engine.keys.rotate("b", B)
    with pytest.raises(RotationConflict):
        await lab.engine.keys.rotate("a", C)
    assert (await lab.engine.keys.kids()).current_kid == "b"


async def test_a_rotation_can_be_taken_back(lab: Lab) -> None:
    """FLAW-39: another kid than the current one is a rotation, never a Noop"""
    await lab.engine.keys.rotate("a", A)
    await lab.engine.keys.rotate("b", B, grace=GRACE)
    until = Millis(lab.clock.now() + GRACE)
    assert await lab.engine.keys.rotate("a", A, grace=GRACE) == Rotated("b", "a", 0)
    assert await lab.engine.keys.kids() == Kids("a", (("b", until),))


async def test_a_key_past_its_grace_is_collected(lab: Lab) -> None:
    """E-T304, E-T305: it is not listed before that either"""
    await lab.engine.keys.rotate("a", A)
    await lab.engine.keys.rotate("b", B, grace=GRACE)
    lab.clock.advance(GRACE)
    assert len((await lab.engine.keys.kids()).verifying) == 1
    lab.clock.advance(1)
    assert await lab.engine.keys.kids() == Kids("b", ())
    assert await lab.engine.keys.rotate("c", C, grace=GRACE) == Rotated("b", "c", 1)


@pytest.mark.rules
@pytest.mark.parametrize("grace", ["1s", timedelta(seconds=1), 1_000])
async def test_a_grace_period_is_a_duration(lab: Lab, grace: str | timedelta | int) -> None:
    await lab.engine.keys.seed("a", A)
    now = lab.clock.now()
    await lab.engine.keys.rotate("b", B, grace=grace)
    assert await lab.engine.keys.kids() == Kids("b", (("a", Millis(now + 1_000)),))


@pytest.mark.rules
@pytest.mark.inside
async def test_a_rotation_has_to_make_sense(lab: Lab) -> None:
    """E-T306: grace, key id, secret; nothing is changed"""
    rotate = lab.engine.keys.rotate
    graces: list[Any] = [-1, 2**53, 1.5, "1", True, None, "soon", timedelta(-1), timedelta(5000)]
    for grace in graces:
        with pytest.raises(InvalidGrace):
            await rotate("a", A, grace=grace)
    for kid in ("", "a:b"):
        with pytest.raises(InvalidKid):
            await rotate(kid, A)
    for secret in ("", "abc", "zz"):
        with pytest.raises(InvalidSecretHex):
            await rotate("a", secret)
    assert await lab.engine.store.records.get(KEYRING, [ONLY]) == {}
    assert await rotate("a", "ab", grace=Millis(2**53 - 1)) == Rotated(None, "a", 0)


@pytest.mark.rules
@pytest.mark.parametrize("grace", ["soon", timedelta(-1), Millis(-1)])
async def test_the_first_fault_of_a_rotation_is_reported(
    lab: Lab, grace: str | timedelta | Millis
) -> None:
    """E-T306: key id, secret, grace, however the grace is given"""
    rotate = lab.engine.keys.rotate
    with pytest.raises(InvalidKid):
        await rotate("a:b", "zz", grace=grace)
    with pytest.raises(InvalidSecretHex):
        await rotate("a", "zz", grace=grace)
    with pytest.raises(InvalidGrace) as refused:
        await rotate("a", A, grace=grace)
    assert "invalid_input" not in str(refused.value)


# -- tokens across rotations


async def test_a_token_of_the_previous_key_is_good_during_the_grace(lab: Lab) -> None:
    """E-T254, E-T255, E-T308, E-X26: up to its last moment, and not after"""
    id, ticket = await signed(lab)
    await lab.engine.keys.rotate("b", B, grace=GRACE)
    lab.clock.advance(GRACE)
    assert await effect(lab, id, ticket) is Effect.APPENDED
    lab.clock.advance(1)
    with pytest.raises(TokenExpired) as caught:
        await deliver(lab, id, ticket)
    assert caught.value.code == "token_expired"
    assert len(await kept(lab, id)) == 1


async def test_a_grace_of_nothing_ends_a_key_at_once(lab: Lab) -> None:
    """FLAW-27, FLAW-39"""
    id, ticket = await signed(lab)
    await lab.engine.keys.rotate("b", B, grace=Millis(0))
    lab.clock.advance(1)
    with pytest.raises(TokenExpired):
        await deliver(lab, id, ticket)


async def test_several_keys_are_in_their_grace_at_once(lab: Lab) -> None:
    """E-T256: A, B, C; each runs out on its own"""
    await lab.engine.keys.seed("a", A)
    tickets = [await signed(lab)]
    await lab.engine.keys.rotate("b", B, grace=GRACE)
    tickets.append(await signed(lab))
    lab.clock.advance(100)
    await lab.engine.keys.rotate("c", C, grace=GRACE)
    tickets.append(await signed(lab))
    assert [kid_of(ticket) for _, ticket in tickets] == ["a", "b", "c"]
    for id, ticket in tickets:
        assert await effect(lab, id, ticket) is Effect.APPENDED
    lab.clock.advance(GRACE - 99)
    with pytest.raises(TokenExpired):
        await deliver(lab, *tickets[0])
    assert await effect(lab, *tickets[1]) is Effect.APPENDED
    lab.clock.advance(100)
    with pytest.raises(TokenExpired):
        await deliver(lab, *tickets[1])
    assert await effect(lab, *tickets[2]) is Effect.APPENDED


async def test_a_token_of_a_collected_key_is_invalid(lab: Lab) -> None:
    """§3.43: nobody knows that key id any more"""
    id, ticket = await signed(lab)
    await lab.engine.keys.rotate("b", B, grace=GRACE)
    lab.clock.advance(GRACE + 1)
    await lab.engine.keys.rotate("c", C, grace=GRACE)
    with pytest.raises(InvalidToken):
        await deliver(lab, id, ticket)
    # Whoever is to be told now gets one of the current key, for the same waitpoint.
    token = await lab.engine.suspensions.token(id, ticket.id)
    assert token is not None
    assert token.kid == "c"
    (listed,) = await lab.engine.suspensions.waitpoints(id)
    assert (listed.token_kid, listed.token_fingerprint) == ("c", token.fingerprint)
    assert await deliver(lab, id, replace(ticket, token=token))


async def test_what_waited_through_a_rotation_keeps_its_token(lab: Lab) -> None:
    """FLAW-26: the token that was handed out is not made again with another key"""
    id, ticket = await signed(lab)
    await lab.engine.keys.rotate("b", B, grace=GRACE)
    assert await lab.engine.suspensions.token(id, ticket.id) == ticket.token


async def test_the_list_shows_the_key_of_the_token_that_is_given_out(lab: Lab) -> None:
    """§3.40: also when the key that signed the first token has retired since"""
    await lab.engine.keys.rotate("a", A)
    claim = await lab.running()
    answer = await suspend(lab, claim)
    await lab.engine.keys.rotate("b", B, grace=GRACE)
    for kid in ("a", "b"):
        token = await lab.engine.suspensions.token(claim.id, answer.primary.id)
        [seen] = await lab.engine.suspensions.waitpoints(claim.id)
        assert token is not None
        assert (seen.token_kid, seen.token_fingerprint) == (kid, token.fingerprint)
        lab.clock.advance(GRACE + 1)


async def test_a_stored_secret_that_is_none_is_told_as_such(lab: Lab) -> None:
    """E-T261: whoever wrote it, nobody is let in; §1.8: what has no token is still listed"""
    id, ticket = await signed(lab)
    stored = await stored_keys(lab)
    ring = keyring.read_ring(stored.doc)
    secret = ring.keys[kid_of(ticket)].secret
    broken = keyring.write_ring(ring).replace(secret.encode(), b"z" * 64)
    assert await lab.engine.store.records.put(KEYRING, SealedKeyring(broken), stored.version)
    lab.clock.advance(1_000)
    with pytest.raises(InvalidSecret) as caught:
        await deliver(lab, id, ticket)
    assert caught.value.code == "invalid_secret"
    assert "zz" not in str(caught.value)
    [listed] = await lab.engine.suspensions.waitpoints(id)
    assert (listed.id, listed.token_kid, listed.token_fingerprint) == (ticket.id, "", "")


# -- more than one process


async def test_every_process_follows_a_rotation(lab: Lab, second_lab: Lab) -> None:
    """E-T307: a new key id at once, the end of an old one within a second"""
    id, old = await signed(second_lab)
    await lab.engine.keys.rotate("b", B, grace=Millis(0))
    other, new = await signed(lab)
    assert await effect(second_lab, other, new) is Effect.APPENDED
    lab.clock.advance(1_000)
    for each in (lab, second_lab):
        with pytest.raises(TokenExpired):
            await deliver(each, id, old)
    assert kid_of((await signed(second_lab))[1]) == "b"


async def test_of_rotations_at_once_one_key_is_current(lab: Lab, second_lab: Lab) -> None:
    """FLAW-39: each follows the one before; nobody's tokens are lost"""
    await lab.engine.keys.seed("a", A)
    labs = [lab, second_lab]
    answers = await asyncio.gather(
        *(labs[n % 2].engine.keys.rotate(f"k{n}", f"{n:02x}" * 32, grace=GRACE) for n in range(6)),
    )
    kids = await lab.engine.keys.kids()
    assert await second_lab.engine.keys.kids() == kids
    followed = {a.previous for a in answers if isinstance(a, Rotated)}
    assert {kids.current_kid, *followed} == {"a", *(f"k{n}" for n in range(6))}
    assert {kid for kid, _ in kids.verifying} == followed


async def test_the_same_rotation_twice_at_once_is_one(lab: Lab, second_lab: Lab) -> None:
    await lab.engine.keys.seed("a", A)
    answers = await asyncio.gather(
        lab.engine.keys.rotate("b", B), second_lab.engine.keys.rotate("b", B)
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["Noop", "Rotated"]


async def test_a_rotation_that_was_overtaken_is_decided_again(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = Race(lab, monkeypatch)
    await lab.engine.keys.seed("a", A)
    race.before("records.put", lambda: second_lab.engine.keys.rotate("b", B))
    assert await lab.engine.keys.rotate("c", C) == Rotated("b", "c", 0)
    kids = await second_lab.engine.keys.kids()
    assert (kids.current_kid, [kid for kid, _ in kids.verifying]) == ("c", ["a", "b"])


async def test_a_rotation_gives_up_in_the_end(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose(*_: object) -> bool:
        return False

    monkeypatch.setattr(lab.engine.store.records, "put", lose)
    with pytest.raises(RetryExhausted, match="the key ring was changed by others"):
        await lab.engine.keys.rotate("a", A)


async def test_keys_survive_a_restart(lab: Lab, store_url: str, clock: ManualClock) -> None:
    await lab.engine.keys.seed("a", A)
    id, ticket = await signed(lab)
    await lab.engine.keys.rotate("b", B, grace=GRACE)
    kids = await lab.engine.keys.kids()
    await lab.engine.close()
    again = await Lab.open(await open_store(store_url, clock=clock), clock, make_keys=False)
    assert await again.engine.keys.kids() == kids
    assert await effect(again, id, ticket) is Effect.APPENDED
    assert await again.engine.suspensions.token(id, ticket.id) == ticket.token
    assert kid_of((await signed(again))[1]) == "b"
    await again.engine.close()

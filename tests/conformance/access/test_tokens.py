"""Access tokens on every store: made, listed, verified, revoked, rotated.

server-sdk §1.6, §10.1.
"""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.core.access.token import (
    CONFIGURED,
    AccessScope,
    Identity,
    TokenState,
)
from flowfabric.core.base.errors import (
    Corruption,
    CredentialsExpired,
    CredentialsRevoked,
    Invalid,
    InvalidCredentials,
    MissingCredentials,
    NotFound,
    TokenExists,
    Unavailable,
    WrongState,
)
from flowfabric.core.base.time import Millis
from flowfabric.engine.access import tokens as service
from flowfabric.engine.access.tokens import MAX_AGE, IssuedToken
from flowfabric.store.rows.record import AUDIT, TOKENS
from tests.kit.damage import spoil
from tests.kit.lab import Lab
from tests.kit.race import Race

READ = frozenset({AccessScope.READ})


async def make(lab: Lab, name: str = "ci", *scopes: str, **options: Any) -> str:
    made = await lab.engine.tokens.create(name, scopes or ("read",), **options)
    return made.secret.reveal()


async def acts(lab: Lab) -> list[tuple[str, str, str]]:
    return [(act.action, act.subject, act.by) for act in await lab.engine.audit.list()]


class Reads:
    """Counts how often tokens are read from the store, and can make it fail."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[str]] = []
        self.down = False
        honest = lab.engine.store.records.get

        async def get(kind: Any, keys: Any) -> Any:
            if kind is TOKENS:
                self.asked.append([*keys])
                if self.down:
                    raise Unavailable("gone")
            return await honest(kind, keys)

        monkeypatch.setattr(lab.engine.store.records, "get", get)


class Ticks:
    """The monotonic clock by which tokens are remembered, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def forget(self) -> None:
        """What was read is too old now."""
        self.now += MAX_AGE


@pytest.fixture(autouse=True)
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    ticks = Ticks()
    monkeypatch.setattr(service, "monotonic", ticks)
    return ticks


# -- made, and known by every process


async def test_a_token_is_made_and_every_process_knows_it(lab: Lab, second_lab: Lab) -> None:
    made = await lab.engine.tokens.create(
        "ci", ["submit", "read", "submit"], namespaces=["b", "a"], expires="30d", by="ada"
    )
    info = made.info
    assert (info.name, info.state, info.created_by) == ("ci", TokenState.LIVE, "ada")
    assert info.scopes == ("read", "submit")
    assert info.namespaces == ("a", "b")
    assert info.expires_at == lab.clock.now() + 30 * 86_400_000
    assert info.last_four == made.secret.reveal()[-4:]
    for engine in (lab.engine, second_lab.engine):
        identity = await engine.tokens.verify(made.secret.reveal())
        scopes = frozenset({AccessScope.READ, AccessScope.SUBMIT})
        assert identity == Identity("ci", scopes, frozenset({"a", "b"}))
        assert await engine.tokens.get("ci") == info
        assert await engine.tokens.list() == [info]


async def test_only_a_hash_is_stored(lab: Lab) -> None:
    text = await make(lab)
    (stored,) = await lab.engine.store.records.page(TOKENS)
    assert stored.digest not in text
    row = bytes(TOKENS.row(stored)[-1])
    assert text.encode() not in row
    assert text[6:].encode() not in row
    assert text not in repr(await lab.engine.tokens.create("other", ["read"]))


@pytest.mark.rules
async def test_a_wrong_wish_makes_nothing(lab: Lab) -> None:
    create = lab.engine.tokens.create
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("CI", ["read"]), {}),
        (("ci", []), {}),
        (("ci", ["write"]), {}),
        (("ci", ["read"]), {"expires": 0}),
        (("ci", ["read"]), {"expires": -1}),
        (("ci", ["read"]), {"expires": "soon"}),
        (("ci", ["read"]), {"expires": 1.5}),
        (("ci", ["read"]), {"expires": timedelta(days=4000)}),
        (("ci", ["read"]), {"namespaces": []}),
        (("ci", ["admin"]), {"namespaces": ["a"]}),
        (("ci", ["read"]), {"by": "a\0"}),
        (("ci", ["read"]), {"by": "a" * 257}),
        (("configured", ["read"]), {}),
    ]
    for args, options in wrong:
        with pytest.raises(Invalid):
            await create(*args, **options)
    assert await lab.engine.tokens.list() == []
    assert await acts(lab) == []


async def test_of_two_that_make_a_name_one_does(lab: Lab, second_lab: Lab) -> None:
    answers = await asyncio.gather(
        *(each.engine.tokens.create("ci", ["read"]) for each in (lab, second_lab)),
        return_exceptions=True,
    )
    (made,) = [each for each in answers if isinstance(each, IssuedToken)]
    (refused,) = [each for each in answers if isinstance(each, BaseException)]
    assert isinstance(refused, TokenExists)
    assert (await second_lab.engine.tokens.verify(made.secret.reveal())).name == "ci"
    assert len(await acts(lab)) == 1


async def test_tokens_are_listed_by_name_page_by_page(lab: Lab) -> None:
    for name in ("b", "a", "c.d"):
        await make(lab, name)
    await lab.engine.tokens.revoke("b")
    tokens = lab.engine.tokens
    assert [(each.name, each.state) for each in await tokens.list()] == [
        ("a", "live"),
        ("b", "revoked"),
        ("c.d", "live"),
    ]
    assert [each.name for each in await tokens.list(limit=2)] == ["a", "b"]
    assert [each.name for each in await tokens.list(after="b", limit=2)] == ["c.d"]
    assert await tokens.list(limit=0) == []
    for wrong in ("B", "a_b", 5):
        with pytest.raises(Invalid):
            await tokens.list(after=wrong)  # type: ignore[arg-type]


async def test_what_does_not_exist_is_not_found(lab: Lab) -> None:
    tokens = lab.engine.tokens
    for call in (tokens.get("ci"), tokens.revoke("ci"), tokens.rotate("ci")):
        with pytest.raises(NotFound, match="no access token ci"):
            await call
    assert await acts(lab) == []


# -- verify


@pytest.mark.rules
async def test_what_is_no_token_is_refused(lab: Lab) -> None:
    """Forged, cut off, in another case, huge, not ASCII; and no read for what has not the form."""
    text = await make(lab)
    verify = lab.engine.tokens.verify
    for nothing in (None, ""):
        with pytest.raises(MissingCredentials):
            await verify(nothing)
    wrong: list[Any] = [
        text[:-1], text + "A", text.upper(), text.swapcase(), f" {text}", f"{text}\n", f"{text}é",
        text.replace("ci", "ce"), "ff_ci_", "ff_" + "A" * 1_000_000, "\ud800" * 60, b"ff_ci", 5,
    ]  # fmt: skip
    for each in wrong:
        with pytest.raises(InvalidCredentials):
            await verify(each)
    assert (await verify(text)).name == "ci"


async def test_a_token_expires_by_the_clock_of_the_store(lab: Lab) -> None:
    text = await make(lab, expires=10_000)
    verify = lab.engine.tokens.verify
    assert (await verify(text)).name == "ci"
    lab.clock.advance(9_999)
    assert (await verify(text)).name == "ci"
    lab.clock.advance(1)
    with pytest.raises(CredentialsExpired):
        await verify(text)
    assert (await lab.engine.tokens.get("ci")).state is TokenState.EXPIRED


async def test_an_expiry_is_seen_although_the_token_is_remembered(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await make(lab, expires=500)
    reads = Reads(lab, monkeypatch)
    await lab.engine.tokens.verify(text)
    lab.clock.advance(500)
    with pytest.raises(CredentialsExpired):
        await lab.engine.tokens.verify(text)
    assert reads.asked == []


async def test_a_token_is_read_once_in_a_while(
    second_lab: Lab, lab: Lab, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await make(lab)
    reads = Reads(second_lab, monkeypatch)
    verify = second_lab.engine.tokens.verify
    assert await asyncio.gather(*(verify(text) for _ in range(50))) == [Identity("ci", READ)] * 50
    assert sum(map(len, reads.asked)) <= 2
    known = len(reads.asked)
    ticks.now += MAX_AGE / 2
    await verify(text)
    assert len(reads.asked) == known
    ticks.now += MAX_AGE / 2
    await verify(text)
    assert len(reads.asked) == known + 1


async def test_steps_of_the_clock_neither_lengthen_nor_shorten_the_memory(
    lab: Lab, second_lab: Lab, ticks: Ticks
) -> None:
    text = await make(lab, expires="1d")
    for step in (-3_600_000, 7_200_000, -3_600_000):
        lab.clock.advance(step)
        assert (await second_lab.engine.tokens.verify(text)).name == "ci"
    await lab.engine.tokens.revoke("ci")
    lab.clock.advance(-3_600_000)
    ticks.forget()
    with pytest.raises(CredentialsRevoked):
        await second_lab.engine.tokens.verify(text)


async def test_guessed_names_do_not_push_known_tokens_out(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await make(lab)
    reads = Reads(lab, monkeypatch)
    monkeypatch.setattr(service, "MAX_KNOWN", 5)
    for number in range(20):
        with pytest.raises(InvalidCredentials):
            await lab.engine.tokens.verify(f"ff_guess{number}_" + "A" * 43)
    guessed = len(reads.asked)
    assert (await lab.engine.tokens.verify(text)).name == "ci"
    assert len(reads.asked) == guessed == 20


async def test_the_memory_of_tokens_is_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_KNOWN", 3)
    texts = [await make(lab, f"t{number}") for number in range(6)]
    reads = Reads(lab, monkeypatch)
    for text in reversed(texts):
        await lab.engine.tokens.verify(text)
    assert reads.asked == [["t2"], ["t1"], ["t0"]]


async def test_a_token_that_is_created_after_a_guess_is_known_at_once(
    lab: Lab, second_lab: Lab
) -> None:
    with pytest.raises(InvalidCredentials):
        await second_lab.engine.tokens.verify("ff_ci_" + "A" * 43)
    text = await make(lab)
    assert (await second_lab.engine.tokens.verify(text)).name == "ci"


async def test_without_the_store_no_caller_gets_in(
    lab: Lab, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await make(lab)
    reads = Reads(lab, monkeypatch)
    reads.down = True
    assert (await lab.engine.tokens.verify(text)).name == "ci", "known for a few seconds"
    ticks.forget()
    with pytest.raises(Unavailable):
        await lab.engine.tokens.verify(text)


async def test_a_record_that_cannot_be_read_costs_no_other(
    lab: Lab, ticks: Ticks, store_url: str
) -> None:
    bad, good = await make(lab, "bad"), await make(lab, "good")
    await spoil(store_url, "access_token", "doc", "bad", "name")
    ticks.forget()
    verify = lab.engine.tokens.verify
    first, second = await asyncio.gather(verify(bad), verify(good), return_exceptions=True)
    assert isinstance(first, Corruption)
    assert isinstance(second, Identity)
    assert [each.name for each in await lab.engine.tokens.list()] == ["good"]


async def test_the_token_of_the_configuration_may_do_everything(lab: Lab) -> None:
    tokens = lab.engine.tokens
    assert not await tokens.any_live()
    tokens.trust("a password of the operator")
    assert await tokens.any_live()
    assert await tokens.verify("a password of the operator") == CONFIGURED
    assert all(CONFIGURED.allows(scope) for scope in AccessScope)
    text = await make(lab)
    assert (await tokens.verify(text)).name == "ci"
    for nothing in ("", None, 5, "é" * 20, "x" * 2000):
        with pytest.raises(Invalid):
            tokens.trust(nothing)  # type: ignore[arg-type]
    for wrong in ("a password of the operato", "A password of the operator", "x"):
        with pytest.raises(InvalidCredentials):
            await tokens.verify(wrong)


async def test_whether_any_token_lives(lab: Lab) -> None:
    tokens = lab.engine.tokens
    await make(lab, "a", expires=5)
    await make(lab, "b")
    assert await tokens.any_live()
    await tokens.revoke("b")
    assert await tokens.any_live()
    lab.clock.advance(5)
    assert not await tokens.any_live()


# -- revoke


async def test_a_revocation_is_seen_at_once_here_and_soon_elsewhere(
    lab: Lab, ticks: Ticks, second_lab: Lab
) -> None:
    text = await make(lab)
    for each in (lab, second_lab):
        await each.engine.tokens.verify(text)
    info = await lab.engine.tokens.revoke("ci", by="bob")
    assert (info.state, info.revoked_by, info.revoked_at) == ("revoked", "bob", lab.clock.now())
    with pytest.raises(CredentialsRevoked):
        await lab.engine.tokens.verify(text)
    ticks.forget()
    with pytest.raises(CredentialsRevoked):
        await second_lab.engine.tokens.verify(text)


async def test_two_revocations_at_once_are_one(lab: Lab, second_lab: Lab) -> None:
    await make(lab)
    one, other = await asyncio.gather(
        lab.engine.tokens.revoke("ci", by="ada"), second_lab.engine.tokens.revoke("ci", by="bob")
    )
    assert one == other
    assert one.revoked_by in ("ada", "bob")
    assert await lab.engine.tokens.revoke("ci", by="eve") == one
    # Within one millisecond records of two processes come in any order.
    assert sorted(await acts(lab)) == [
        ("token.created", "ci", ""),
        ("token.revoked", "ci", one.revoked_by),
    ]


async def test_a_revocation_wins_against_a_rotation_that_began_before(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(lab)
    race = Race(lab, monkeypatch)
    race.before("records.put", lambda: second_lab.engine.tokens.revoke("ci"))
    with pytest.raises(WrongState, match="revoked"):
        await lab.engine.tokens.rotate("ci")


async def test_an_old_read_does_not_bring_a_revoked_token_back(
    lab: Lab, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that began before the revocation ends after it."""
    text = await make(lab)
    ticks.forget()
    honest, read, go = lab.engine.store.records.get, asyncio.Event(), asyncio.Event()

    async def slow(kind: Any, keys: Any) -> Any:
        found = await honest(kind, keys)
        if kind is TOKENS and not read.is_set():
            read.set()
            await go.wait()
        return found

    monkeypatch.setattr(lab.engine.store.records, "get", slow)
    verifying = asyncio.ensure_future(lab.engine.tokens.verify(text))
    await read.wait()
    await lab.engine.tokens.revoke("ci")
    go.set()
    assert (await verifying).name == "ci"
    with pytest.raises(CredentialsRevoked):
        await lab.engine.tokens.verify(text)


async def test_a_name_may_be_used_again_after_the_end(lab: Lab, second_lab: Lab) -> None:
    old = await make(lab)
    with pytest.raises(TokenExists):
        await make(lab)
    await lab.engine.tokens.revoke("ci")
    new = await make(lab, "ci", "work")
    identity = await second_lab.engine.tokens.verify(new)
    assert identity.scopes == {AccessScope.WORK}
    with pytest.raises(InvalidCredentials):
        await second_lab.engine.tokens.verify(old)


# -- rotate


async def test_a_rotation_keeps_the_earlier_secret_for_its_grace(lab: Lab, second_lab: Lab) -> None:
    old = await make(lab, namespaces=["acme"])
    made = await lab.engine.tokens.rotate("ci", grace="1h", by="bob")
    new = made.secret.reveal()
    assert new != old
    assert (made.info.rotated_by, made.info.grace_until) == ("bob", lab.clock.now() + 3_600_000)
    for each in (lab, second_lab):
        for text in (old, new):
            identity = await each.engine.tokens.verify(text)
            assert identity == Identity("ci", READ, frozenset({"acme"}))
    lab.clock.advance(3_600_000)
    with pytest.raises(CredentialsExpired):
        await second_lab.engine.tokens.verify(old)
    assert (await second_lab.engine.tokens.verify(new)).name == "ci"
    assert (await lab.engine.tokens.get("ci")).grace_until is None


async def test_a_rotation_without_grace_ends_the_earlier_secret(lab: Lab) -> None:
    old = await make(lab)
    await lab.engine.tokens.rotate("ci", grace=0)
    with pytest.raises(InvalidCredentials):
        await lab.engine.tokens.verify(old)


async def test_two_rotations_at_once_both_count(lab: Lab, ticks: Ticks, second_lab: Lab) -> None:
    made = [await make(lab)]
    both = await asyncio.gather(
        *(each.engine.tokens.rotate("ci", grace="1h") for each in (lab, second_lab))
    )
    made += [each.secret.reveal() for each in both]
    ticks.forget()
    for text in made:
        assert (await lab.engine.tokens.verify(text)).name == "ci"


async def test_a_rotation_may_extend_the_life(lab: Lab) -> None:
    await make(lab, expires="1h")
    kept = await lab.engine.tokens.rotate("ci")
    assert kept.info.expires_at == lab.clock.now() + 3_600_000
    longer = await lab.engine.tokens.rotate("ci", expires="9h")
    assert longer.info.expires_at == lab.clock.now() + 9 * 3_600_000
    refused: list[dict[str, Any]] = [
        {"grace": -1},
        {"grace": "soon"},
        {"expires": 0},
        {"grace": 1.5},
    ]
    for wrong in refused:
        with pytest.raises(Invalid):
            await lab.engine.tokens.rotate("ci", **wrong)


async def test_what_was_done_is_recorded(lab: Lab) -> None:
    await make(lab, "ci", "work", "read", namespaces=["acme"], expires=5_000, by="ada")
    await lab.engine.tokens.rotate("ci", grace=7, by="bob")
    await lab.engine.tokens.revoke("ci", by="eve")
    found = await lab.engine.store.records.page(AUDIT)
    assert [(act.action, act.by, act.detail) for act in found] == [
        (
            "token.created",
            "ada",
            {"scopes": ["read", "work"], "namespaces": ["acme"], "lifetime": Millis(5_000)},
        ),
        ("token.rotated", "bob", {"grace": 7}),
        ("token.revoked", "eve", {}),
    ]

import base64
import hmac
import re
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    Invalid,
    InvalidSecret,
    InvalidToken,
    MissingToken,
    NoSigningKey,
    TokenExpired,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.wait.keyring import EMPTY_RING, Key, Keyring, rotate, seed
from flowfabric.core.wait.model import Terms, Waitpoint
from flowfabric.core.wait.token import Token, TokenClaims, mint, verify

NOW = Millis(1_000)
SECRET = "0123456789abcdef" * 4
RING = seed(EMPTY_RING, "k1", SECRET, NOW)[0]
WAITPOINT = Waitpoint(
    id=UUID(int=1), execution=UUID(int=2), key="approve", created_at=NOW, kid="k1"
)
TOKEN = mint(RING, WAITPOINT)
DIGEST = TOKEN.reveal()[3:]
CLAIMS = TokenClaims("one", NOW, "ann", ("approved", "rejected"), Millis(2_000), True)
BOUND = mint(RING, WAITPOINT, CLAIMS)
FIVE = (MissingToken, InvalidToken, TokenExpired, NoSigningKey, InvalidSecret)

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.lists(words, max_size=3).map(tuple)
moments = st.integers(0, 2**53).map(Millis)
terms = st.builds(Terms, about=st.none() | words, decisions=names, approvers=names)
waitpoints = st.builds(
    Waitpoint,
    id=st.uuids(),
    execution=st.uuids(),
    key=words,
    created_at=moments,
    kid=st.just("k1"),
    terms=st.none() | terms,
)
claims = st.builds(
    TokenClaims,
    id=words,
    issued_at=moments,
    approver=st.none() | words,
    decisions=names,
    expires_at=st.none() | moments.filter(lambda moment: moment > NOW),
    single_use=st.booleans(),
)


def outcome(
    token: object, *, ring: Keyring = RING, waitpoint: Waitpoint | None = WAITPOINT, now: int = NOW
) -> tuple[type, str]:
    """Which error a presented token gets, and all that its text says."""
    with pytest.raises(FIVE) as caught:
        verify(ring, waitpoint, token, Millis(now))  # type: ignore[arg-type]
    return type(caught.value), str(caught.value)


def refusal(token: object, **given: Any) -> type:
    return outcome(token, **given)[0]


def rotated(*steps: tuple[str, int], grace: int = 100) -> Keyring:
    """The ring after rotations to these kids at these moments."""
    ring = RING
    for kid, moment in steps:
        ring, _ = rotate(ring, kid, kid.encode().hex(), Millis(grace), Millis(moment))
    return ring


def forged(body: bytes, *, text: str | None = None) -> str:
    """A token whose digits cover `body`, whatever it is: what somebody with the key could sign."""
    bound = base64.urlsafe_b64encode(body).rstrip(b"=").decode() if text is None else text
    fields = [b"flowfabric waitpoint token 1", b"k1", WAITPOINT.execution.bytes]
    fields += [WAITPOINT.id.bytes, b"approve", b"1000"]
    message = b"".join(b"\1" + len(f).to_bytes(8, "big") + f for f in fields)
    message += b"\0\1" + len(body).to_bytes(8, "big") + body
    return f"k1:{hmac.digest(bytes.fromhex(SECRET), message, 'sha256').hex()}.{bound}"


class TestMintAndVerify:
    def test_a_valid_token_is_accepted(self) -> None:
        """E-T250: `kid:` and 64 digits, as text or as a token."""
        assert re.fullmatch(r"k1:[0-9a-f]{64}", TOKEN.reveal())
        assert verify(RING, WAITPOINT, TOKEN, NOW) is None
        assert verify(RING, WAITPOINT, TOKEN.reveal(), NOW) is None

    def test_a_bound_token_tells_its_claims(self) -> None:
        assert verify(RING, WAITPOINT, BOUND, NOW) == CLAIMS
        assert forged(msgspec.json.encode(CLAIMS)) == BOUND.reveal()

    @given(waitpoints, st.none() | claims)
    def test_the_round_trip(self, waitpoint: Waitpoint, bound: TokenClaims | None) -> None:
        """E-T250: also for what a store gave back."""
        token = mint(RING, waitpoint, bound)
        assert token == mint(RING, waitpoint, bound)
        stored = msgspec.json.decode(msgspec.json.encode(waitpoint), type=Waitpoint)
        assert verify(RING, stored, token.reveal(), NOW) == bound

    def test_the_key_of_the_waitpoint_has_to_be_there(self) -> None:
        with pytest.raises(NoSigningKey):
            mint(RING, replace(WAITPOINT, kid="gone"))
        with pytest.raises(NoSigningKey):
            mint(EMPTY_RING, WAITPOINT)

    def test_a_stored_secret_that_is_none_signs_nothing(self) -> None:
        """E-T261"""
        with pytest.raises(InvalidSecret):
            mint(Keyring(current="k1", keys={"k1": Key(secret="")}), WAITPOINT)

    @pytest.mark.parametrize(
        "unwritable",
        [
            TokenClaims("x" * 2048, NOW),
            TokenClaims("\ud800", NOW),
            TokenClaims(1, NOW),  # type: ignore[arg-type]
            TokenClaims("x", "now"),  # type: ignore[arg-type]
            TokenClaims("x", NOW, decisions=[]),  # type: ignore[arg-type]
            TokenClaims(object(), NOW),  # type: ignore[arg-type]
        ],
    )
    def test_claims_that_could_not_be_verified_are_not_minted(
        self, unwritable: TokenClaims
    ) -> None:
        with pytest.raises(Invalid):
            mint(RING, WAITPOINT, unwritable)

    def test_the_largest_token_is_verified(self) -> None:
        ring, _ = rotate(RING, "k" * 256, "ab", Millis(0), NOW)
        large = TokenClaims("x" * 2018, NOW)
        token = mint(ring, replace(WAITPOINT, kid="k" * 256), large)
        assert verify(ring, WAITPOINT, token, NOW) == large


class TestRefused:
    @pytest.mark.parametrize("token", [None, "", Token("")])
    def test_no_token(self, token: object) -> None:
        """E-T251"""
        assert refusal(token) is MissingToken

    def test_a_flipped_digit(self) -> None:
        """E-T252"""
        flipped = DIGEST[:-1] + ("0" if DIGEST[-1] != "0" else "1")
        assert refusal(f"k1:{flipped}") is InvalidToken

    def test_an_unknown_kid(self) -> None:
        """E-T253"""
        assert refusal(f"k2:{DIGEST}") is InvalidToken

    def test_the_right_key_under_another_kid(self) -> None:
        """E-T253: the digits cover the kid."""
        ring, _ = rotate(RING, "k2", SECRET, Millis(0), NOW)
        assert refusal(f"k2:{DIGEST}", ring=ring) is InvalidToken

    def test_nothing_is_verified_without_keys(self) -> None:
        assert refusal(TOKEN, ring=EMPTY_RING) is NoSigningKey

    def test_a_stored_secret_that_is_no_hex(self) -> None:
        """E-T261"""
        ring = Keyring(current="k1", keys={"k1": Key(secret="no hex")})
        assert refusal(TOKEN, ring=ring) is InvalidSecret

    def test_a_bound_token_past_its_end(self) -> None:
        assert verify(RING, WAITPOINT, BOUND, Millis(1_999)) == CLAIMS
        assert refusal(BOUND, now=2_000) is TokenExpired

    def test_a_forged_token_does_not_expire(self) -> None:
        changed = replace(CLAIMS, single_use=False)
        tail = mint(RING, WAITPOINT, changed).reveal().partition(".")[2]
        assert refusal(f"{BOUND.reveal().partition('.')[0]}.{tail}", now=9_999) is InvalidToken

    def test_claims_cannot_be_taken_off_or_put_on(self) -> None:
        head, _, tail = BOUND.reveal().partition(".")
        assert refusal(head) is InvalidToken
        assert refusal(f"{TOKEN.reveal()}.{tail}") is InvalidToken

    @given(waitpoints, waitpoints, st.none() | claims)
    def test_the_token_of_another_waitpoint(
        self, one: Waitpoint, other: Waitpoint, bound: TokenClaims | None
    ) -> None:
        """E-T258"""
        assume(one != other)
        assert refusal(mint(RING, one, bound), waitpoint=other) is InvalidToken

    @pytest.mark.parametrize(
        "change",
        [
            {"id": UUID(int=3)},
            {"execution": UUID(int=3)},
            {"id": UUID(int=2), "execution": UUID(int=1)},
            {"key": "approv"},
            {"key": ""},
            {"created_at": Millis(1_001)},
            {"terms": Terms()},
            {"terms": Terms(about="x")},
        ],
    )
    def test_every_part_of_a_waitpoint_counts(self, change: dict[str, Any]) -> None:
        """E-T258, FLAW-51: execution, waitpoint, key, time and terms."""
        assert refusal(TOKEN, waitpoint=replace(WAITPOINT, **change)) is InvalidToken

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (Terms(about="a"), Terms(about="b")),
            (Terms(about=""), Terms()),
            (Terms(decisions=("a", "b")), Terms(decisions=("ab",))),
            (Terms(decisions=("a", "b")), Terms(decisions=("b", "a"))),
            (Terms(decisions=("a",)), Terms(approvers=("a",))),
            (Terms(decisions=('a","b',)), Terms(decisions=("a", "b"))),
        ],
    )
    def test_every_part_of_the_terms_counts(self, one: Terms, other: Terms) -> None:
        """FLAW-51"""
        token = mint(RING, replace(WAITPOINT, terms=one))
        assert refusal(token, waitpoint=replace(WAITPOINT, terms=other)) is InvalidToken

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (("k1", "1", 0), ("k", "11", 0)),
            (("k", "x1", 2), ("k", "x", 12)),
            (("k", "", 1), ("k", "1", 0)),
        ],
    )
    def test_nothing_moves_into_the_next_field(
        self, one: tuple[str, str, int], other: tuple[str, str, int]
    ) -> None:
        """FLAW-51: kid, key and time with the same characters, divided otherwise."""
        ring = Keyring(keys={kid: Key(secret=SECRET) for kid in ("k", "k1")}, current="k")
        (kid, key, moment), (kid_, key_, moment_) = one, other
        made = mint(ring, replace(WAITPOINT, kid=kid, key=key, created_at=Millis(moment)))
        there = replace(WAITPOINT, kid=kid_, key=key_, created_at=Millis(moment_))
        digest = made.reveal().partition(":")[2]
        assert digest != mint(ring, there).reveal().partition(":")[2]
        ring = replace(ring, current=kid_)
        assert refusal(f"{kid_}:{digest}", ring=ring, waitpoint=there) is InvalidToken

    def test_claims_do_not_pass_for_terms(self) -> None:
        body = msgspec.json.encode(CLAIMS)
        assert (
            mint(RING, WAITPOINT, CLAIMS).fingerprint
            != mint(RING, replace(WAITPOINT, terms=Terms(about=body.decode()))).fingerprint
        )


class TestKeysInTurn:
    def test_the_previous_key_inside_its_grace(self) -> None:
        """E-T254, E-T308"""
        ring = rotated(("k2", 1_000))
        assert verify(ring, WAITPOINT, TOKEN, Millis(1_100)) is None

    def test_the_previous_key_past_its_grace(self) -> None:
        """E-T255, E-X26"""
        assert refusal(TOKEN, ring=rotated(("k2", 1_000)), now=1_101) is TokenExpired

    def test_two_rotations_inside_the_grace(self) -> None:
        """E-T256"""
        ring = rotated(("k2", 1_000), ("k3", 1_050))
        assert verify(ring, WAITPOINT, TOKEN, Millis(1_100)) is None
        assert verify(ring, WAITPOINT, mint(ring, WAITPOINT), Millis(1_100)) is None

    def test_two_rotations_past_the_grace(self) -> None:
        """E-T256, E-X26"""
        ring = rotated(("k2", 1_000), ("k3", 1_050))
        assert refusal(TOKEN, ring=ring, now=1_101) is TokenExpired

    def test_a_collected_key_is_unknown(self) -> None:
        """E-T253, E-X26"""
        ring = rotated(("k2", 1_000), ("k3", 2_000))
        assert refusal(TOKEN, ring=ring, now=2_000) is InvalidToken

    def test_the_token_names_the_key(self) -> None:
        """A token minted under another key than the waitpoint's is as good."""
        ring = rotated(("k2", 1_000))
        newer = mint(ring, replace(WAITPOINT, kid="k2"))
        assert newer.kid == "k2"
        assert verify(ring, WAITPOINT, newer, NOW) is None
        assert verify(ring, replace(WAITPOINT, kid="k2"), TOKEN, NOW) is None


SHAPES = (
    " |:|k1|k1:|:D|D|k1:D0|k1:D.|k1:D:|k1::D|k1:k1:D|k1:D..e30|k1:D.e30.e30|k1:D.e|k1:D.e30=|"
    "k1:D.++//|k1:D\n|\nk1:D| k1:D|k1 :D|k1:D |k1:D\0|k1\0:D|k\xe9:D|k1:D.\xe9|\ud800|K1:D"
)
BAD_TEXTS = [shape.replace("D", DIGEST) for shape in SHAPES.split("|")]
BAD_TEXTS += [f"k1:{digest}" for digest in (DIGEST[1:], DIGEST[:40], DIGEST.upper())]
BAD_TEXTS += ["k1:" + "\N{ARABIC-INDIC DIGIT ONE}" * 64, f"k1:{DIGEST}.{'A' * 4096}"]
BAD_TEXTS += [f"{'k' * 257}:{DIGEST}", "k" * 10_000_000]
BAD_OBJECTS = [
    0,
    1.5,
    True,
    False,
    b"",
    TOKEN.reveal().encode(),
    bytearray(b"k1"),
    [],
    {},
    object(),
]


class TestMalformed:
    @pytest.mark.parametrize("text", BAD_TEXTS, ids=range(len(BAD_TEXTS)))
    def test_text_that_is_no_token(self, text: str) -> None:
        """E-T252"""
        assert refusal(text) is refusal(Token(text)) is InvalidToken

    @pytest.mark.parametrize("thing", BAD_OBJECTS, ids=range(len(BAD_OBJECTS)))
    def test_things_that_are_no_text(self, thing: object) -> None:
        assert refusal(thing) is InvalidToken

    @pytest.mark.parametrize(
        "body",
        [
            b"{}",
            b"null",
            b"\xff",
            b'{"id":"one"}',
            b'{"id":"one", "issued_at":1}',
            b'{"issued_at":1,"id":"one"}',
            b'{"id":"one","issued_at":1,"single_use":false}',
            b'{"id":"one","issued_at":1,"more":1}',
            b'{"id":"\\u006fne","issued_at":1}',
            b'{"id":"one","issued_at":1,"id":"one"}',
            b"[" * 2000,
            msgspec.json.encode(TokenClaims("x" * 4096, NOW)),
        ],
    )
    def test_signed_claims_that_are_never_written(self, body: bytes) -> None:
        """What a newer release might forbid by them is unknown, so they are refused."""
        assert refusal(forged(body)) is InvalidToken

    def test_one_spelling_only(self) -> None:
        """Unused bits of the last base64 character have to be zero."""
        body = msgspec.json.encode(TokenClaims("on", NOW))
        text = forged(body).partition(".")[2]
        assert len(body) % 3 != 0
        assert verify(RING, WAITPOINT, forged(body), NOW) == TokenClaims("on", NOW)
        assert refusal(forged(body, text=text[:-1] + chr(ord(text[-1]) + 1))) is InvalidToken

    @given(st.data(), st.sampled_from([TOKEN, BOUND]), st.characters())
    def test_any_changed_character(self, data: st.DataObject, token: Token, other: str) -> None:
        """E-T252"""
        text = token.reveal()
        place = data.draw(st.integers(0, len(text) - 1))
        assume(text[place] != other)
        near = chr(ord(text[place]) ^ 1)
        for character in (other, near, text[place].swapcase(), ""):
            changed = text[:place] + character + text[place + 1 :]
            assert changed == text or refusal(changed) is InvalidToken

    @given(
        st.text()
        | st.binary()
        | st.from_regex(r"(k1|k2):[0-9a-f]{64}(\.[A-Za-z0-9_-]{0,40})?")
        | st.recursive(st.none() | st.booleans() | st.floats() | st.integers(), st.lists),
        st.none() | st.just(WAITPOINT),
        st.sampled_from([RING, EMPTY_RING, rotated(("k2", 500)), rotated(("k2", 1_000))]),
    )
    def test_nothing_else_comes_out(
        self, token: object, at: Waitpoint | None, ring: Keyring
    ) -> None:
        """E-T259: whatever is presented, one of five errors answers."""
        assert refusal(token, ring=ring, waitpoint=at) in FIVE


class TestNoOracle:
    """INV-21, FLAW-27: the answer does not tell whether the waitpoint exists."""

    unusable = Keyring(current="k1", keys={"k1": Key(secret="no hex")})
    wrong = "k1:" + "0" * 64

    @pytest.mark.parametrize(
        ("token", "ring", "now", "expected"),
        [
            (None, RING, NOW, MissingToken),
            (None, EMPTY_RING, NOW, MissingToken),
            ("", RING, NOW, MissingToken),
            ("nonsense", RING, NOW, InvalidToken),
            ("nonsense", EMPTY_RING, NOW, InvalidToken),
            (wrong, EMPTY_RING, NOW, NoSigningKey),
            ("k9:" + "0" * 64, RING, NOW, InvalidToken),
            (wrong, rotated(("k2", 1_000)), 1_101, TokenExpired),
            (wrong, rotated(("k2", 1_000)), 1_100, InvalidToken),
            (wrong, unusable, NOW, InvalidSecret),
            (wrong, RING, NOW, InvalidToken),
            (wrong + ".e30", RING, NOW, InvalidToken),
            (mint(RING, replace(WAITPOINT, key="other")), RING, NOW, InvalidToken),
        ],
    )
    def test_the_same_answer_for_both(
        self, token: object, ring: Keyring, now: int, expected: type
    ) -> None:
        """E-T259, INV-21"""
        existing = outcome(token, ring=ring, now=now)
        assert existing == outcome(token, ring=ring, waitpoint=None, now=now)
        assert existing[0] is expected

    @pytest.mark.parametrize("token", [TOKEN, BOUND])
    @pytest.mark.parametrize("now", [NOW, 9_999])
    def test_a_genuine_token_of_nothing_is_like_a_bad_one(self, token: Token, now: int) -> None:
        """INV-21"""
        assert outcome(token, waitpoint=None, now=now) == outcome(self.wrong, now=now)

    def test_not_even_the_stand_in_can_be_signalled(self) -> None:
        nobody = Waitpoint(UUID(int=0), UUID(int=0), "", Millis(0), "k1")
        assert refusal(mint(RING, nobody), waitpoint=None) is InvalidToken

    @pytest.mark.parametrize("waitpoint", [WAITPOINT, None])
    def test_digests_are_compared_in_constant_time(
        self, waitpoint: Waitpoint | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same comparison, of equal lengths, whether or not the waitpoint exists."""
        compared: list[tuple[int, int]] = []
        real = hmac.compare_digest

        def spy(one: Any, other: Any) -> bool:
            compared.append((len(one), len(other)))
            return real(one, other)

        monkeypatch.setattr(hmac, "compare_digest", spy)
        refusal(self.wrong, waitpoint=waitpoint)
        assert compared == [(64, 64)]

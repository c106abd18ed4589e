import hashlib
import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from rich.pretty import pretty_repr

from flowfabric.core.base.errors import (
    Corruption,
    FlowFabricError,
    Invalid,
    InvalidGrace,
    InvalidKid,
    InvalidSecret,
    InvalidSecretHex,
    InvalidToken,
    RotationConflict,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.wait.keyring import (
    EMPTY_RING,
    MAX_GRACE,
    AlreadySeeded,
    Key,
    Keyring,
    Kids,
    Noop,
    Rotated,
    Seeded,
    kid_of,
    kids,
    read_ring,
    rotate,
    secret_of,
    seed,
    verifies,
    write_ring,
)

NOW = Millis(1_000)
GRACE = Millis(100)
SECRET = "0123456789abcdef" * 4
ARABIC_ZERO = "\N{ARABIC-INDIC DIGIT ZERO}"
OTHER = "fedcba9876543210" * 4
BAD_KIDS: list[Any] = ["", ":", "a:b", "a b", "a\0", "ä", "\ud800", "a\n", "a" * 257, None, 1, b"a"]


def at(moment: int) -> Millis:
    return Millis(moment)


def seeded(kid: str = "a", secret: str = SECRET) -> Keyring:
    return seed(EMPTY_RING, kid, secret, NOW)[0]


def rotated(ring: Keyring, kid: str, secret: str = OTHER, *, now: Millis = NOW) -> Keyring:
    return rotate(ring, kid, secret, GRACE, now)[0]


def recorded(call: Callable[[], object]) -> str:
    """The error of the call as a recorder that keeps every variable would write it down.

    Our own frame is left out: how the caller keeps its secrets is not under test.
    """
    with pytest.raises(FlowFabricError) as caught:
        call()
    assert caught.tb.tb_next is not None
    frames = caught.tb.tb_next.tb_next
    error = caught.value
    told = traceback.TracebackException(type(error), error, frames, capture_locals=True)
    assert error.__context__ is None or error.__suppress_context__
    return "".join(told.format()) + repr(error) + repr(error.args)


class TestSeed:
    def test_the_first_key_becomes_current(self) -> None:
        """E-T309: seeded."""
        ring, outcome = seed(EMPTY_RING, "a", SECRET, NOW)
        assert outcome == Seeded("a")
        assert ring == Keyring(current="a", keys={"a": Key(secret=SECRET, created_at=NOW)})

    @pytest.mark.parametrize("secret", [SECRET, SECRET.upper()])
    def test_repeating_it_changes_nothing(self, secret: str) -> None:
        """E-T309: repeat with the same secret, however its digits are spelt."""
        ring = seeded()
        assert seed(ring, "a", secret, at(2_000)) == (ring, AlreadySeeded("a", True))

    def test_another_secret_for_the_kid_never_overwrites(self) -> None:
        """E-T309: repeat with another secret."""
        ring = seeded()
        assert seed(ring, "a", OTHER, NOW) == (ring, AlreadySeeded("a", False))

    def test_another_current_kid_asks_for_a_rotation(self) -> None:
        """E-T309: another key is active."""
        with pytest.raises(Invalid, match="rotate") as caught:
            seed(seeded(), "b", OTHER, NOW)
        assert type(caught.value) is Invalid

    def test_a_retired_kid_is_seeded_already(self) -> None:
        ring = rotated(seeded(), "b")
        assert seed(ring, "a", SECRET, at(9_999)) == (ring, AlreadySeeded("a", True))

    @pytest.mark.parametrize(
        "secret", ["", "ab", SECRET[:-1], SECRET[:-2], SECRET + "ab", SECRET[:-1] + "g", None, b"a"]
    )
    def test_a_secret_has_exactly_64_hex_digits(self, secret: Any) -> None:
        """E-T309: a bad length is refused, and FLAW-39: so is everything else."""
        with pytest.raises(InvalidSecretHex):
            seed(EMPTY_RING, "a", secret, NOW)

    @pytest.mark.parametrize("kid", BAD_KIDS)
    def test_a_kid_fits_into_a_token(self, kid: Any) -> None:
        """E-T306"""
        with pytest.raises(InvalidKid):
            seed(EMPTY_RING, kid, SECRET, NOW)


class TestRotate:
    def test_the_first_rotation_has_no_previous_key(self) -> None:
        """E-T300: no previous, nothing collected, nothing verifying."""
        ring, outcome = rotate(EMPTY_RING, "a", "ab", GRACE, NOW)
        assert outcome == Rotated(None, "a", 0)
        assert kids(ring, NOW) == Kids("a", ())

    def test_the_previous_key_verifies_through_its_grace(self) -> None:
        """E-T301"""
        ring, outcome = rotate(seeded(), "b", OTHER, GRACE, at(2_000))
        assert outcome == Rotated("a", "b", 0)
        assert kids(ring, at(2_000)) == Kids("b", (("a", at(2_100)),))

    @pytest.mark.parametrize("secret", [OTHER, OTHER.upper()])
    def test_an_exact_repeat_is_none(self, secret: str) -> None:
        """E-T302: nothing is retired or collected once more, whatever the grace."""
        ring = rotated(seeded(), "b")
        assert rotate(ring, "b", secret, at(5), at(9_999)) == (ring, Noop("b"))

    def test_another_secret_for_the_current_kid_conflicts(self) -> None:
        """E-T303"""
        with pytest.raises(RotationConflict, match="another secret"):
            rotate(seeded(), "a", OTHER, GRACE, NOW)

    def test_another_secret_for_a_kid_in_grace_conflicts(self) -> None:
        """E-T303"""
        with pytest.raises(RotationConflict, match="another secret"):
            rotate(rotated(seeded(), "b"), "a", OTHER, GRACE, NOW)

    def test_a_retired_key_becomes_current_again(self) -> None:
        """FLAW-39: a rotation is taken back, which is no Noop"""
        ring, outcome = rotate(rotated(seeded(), "b"), "a", SECRET, GRACE, at(1_050))
        assert outcome == Rotated("b", "a", 0)
        assert kids(ring, at(1_050)) == Kids("a", (("b", at(1_150)),))

    @pytest.mark.parametrize("secret", [SECRET, OTHER])
    def test_a_kid_past_its_grace_is_free(self, secret: str) -> None:
        """FLAW-39: its key is collected first, as if the kid were new"""
        ring, outcome = rotate(rotated(seeded(), "b"), "a", secret, GRACE, at(1_101))
        assert outcome == Rotated("b", "a", 1)
        assert (set(ring.keys), ring.keys["a"].secret) == ({"a", "b"}, secret)

    def test_a_key_past_its_grace_is_collected(self) -> None:
        """E-T304"""
        ring = rotated(seeded(), "b", now=at(2_000))
        ring, outcome = rotate(ring, "c", "cc", GRACE, at(2_101))
        assert outcome == Rotated("b", "c", 1)
        assert set(ring.keys) == {"b", "c"}

    def test_a_key_at_the_end_of_its_grace_is_kept(self) -> None:
        ring = rotated(seeded(), "b", now=at(2_000))
        ring, outcome = rotate(ring, "c", "cc", GRACE, at(2_100))
        assert outcome == Rotated("b", "c", 0)
        assert kids(ring, at(2_100)).verifying == (("a", at(2_100)), ("b", at(2_200)))

    def test_rapid_rotations_keep_every_key_valid(self) -> None:
        """E-T256: any number of keys can be in their grace."""
        ring = EMPTY_RING
        for number in range(20):
            ring = rotated(ring, f"k{number}", f"{number:02x}", now=at(number))
        assert kids(ring, at(19)).current_kid == "k19"
        assert kids(ring, at(19)).verifying == tuple((f"k{n}", n + 101) for n in range(19))

    def test_no_grace_means_this_moment_only(self) -> None:
        """E-X26"""
        ring, _ = rotate(seeded(), "b", OTHER, at(0), NOW)
        assert (verifies(ring, "a", NOW), verifies(ring, "a", at(NOW + 1))) == (True, False)

    def test_a_current_kid_without_its_key_can_be_replaced(self) -> None:
        ring, outcome = rotate(Keyring(current="lost"), "a", SECRET, GRACE, NOW)
        assert outcome == Rotated("lost", "a", 0)
        assert kids(ring, NOW) == Kids("a", ())

    @pytest.mark.parametrize("kid", BAD_KIDS)
    def test_an_invalid_kid_is_refused(self, kid: Any) -> None:
        """E-T306: a kid with a colon, and FLAW-39: whatever else no token could carry."""
        with pytest.raises(InvalidKid):
            rotate(seeded(), kid, OTHER, GRACE, NOW)

    @pytest.mark.parametrize(
        "secret",
        [
            "",
            "a",
            "abc",
            "zz",
            "ab ",
            " ab",
            "ab\n",
            "a b1",
            "ab" * 513,
            ARABIC_ZERO * 2,
            None,
            b"ab",
        ],
    )
    def test_an_invalid_secret_is_refused(self, secret: Any) -> None:
        """E-T306: bad hex."""
        with pytest.raises(InvalidSecretHex):
            rotate(seeded(), "b", secret, GRACE, NOW)

    @pytest.mark.parametrize("grace", [-1, 2**53, 1.0, True, "1", None, float("nan")])
    def test_an_invalid_grace_is_refused(self, grace: Any) -> None:
        """E-T306"""
        with pytest.raises(InvalidGrace):
            rotate(seeded(), "b", OTHER, grace, NOW)

    def test_the_extremes_are_accepted(self) -> None:
        ring, _ = rotate(seeded(), "~" * 256, "ab" * 512, MAX_GRACE, NOW)
        assert kids(ring, NOW) == Kids("~" * 256, (("a", at(NOW + MAX_GRACE)),))
        assert secret_of(ring, "~" * 256) == b"\xab" * 512


class TestKids:
    def test_an_empty_ring_has_none(self) -> None:
        """E-T305: uninitialised."""
        assert kids(EMPTY_RING, NOW) == Kids(None, ())

    def test_those_past_their_grace_are_not_listed(self) -> None:
        """E-T305"""
        ring = rotated(seeded(), "b")
        assert kids(ring, at(NOW + GRACE)).verifying == (("a", NOW + GRACE),)
        assert kids(ring, at(NOW + GRACE + 1)) == Kids("b", ())

    def test_the_first_to_run_out_is_listed_first(self) -> None:
        ring = seeded()
        for kid, grace in (("b", 50), ("c", 20), ("d", 20)):
            ring, _ = rotate(ring, kid, OTHER, at(grace), at(0))
        assert kids(ring, at(0)).verifying == (("b", 20), ("c", 20), ("a", 50))

    def test_a_retired_key_without_an_end_counts_as_run_out(self) -> None:
        """E-X26: an unreadable moment is no licence for ever."""
        ring = Keyring(current="b", keys={"a": Key(secret=SECRET), "b": Key(secret=OTHER)})
        assert not verifies(ring, "a", NOW)
        assert kids(ring, NOW) == Kids("b", ())


class TestSecretOf:
    def test_it_is_the_bytes_behind_the_digits(self) -> None:
        """E-T308: the prior key is still there after a rotation."""
        ring = rotated(seeded(), "b")
        assert secret_of(ring, "a") == bytes.fromhex(SECRET)
        assert secret_of(ring, "b") == bytes.fromhex(OTHER)

    @pytest.mark.parametrize("stored", ["", "zz", "abc", "ab cd", "äb", ARABIC_ZERO + "1"])
    def test_stored_text_that_is_no_secret(self, stored: str) -> None:
        """E-T261: also for an empty one, with which anybody could sign."""
        with pytest.raises(InvalidSecret):
            secret_of(Keyring(current="a", keys={"a": Key(secret=stored)}), "a")

    def test_an_unknown_kid(self) -> None:
        with pytest.raises(InvalidToken):
            secret_of(seeded(), "b")


class TestKidOf:
    def test_it_depends_on_the_secret_alone(self) -> None:
        expected = "seed-" + hashlib.sha256(bytes.fromhex(SECRET)).hexdigest()[:8]
        assert kid_of(SECRET) == kid_of(SECRET.upper()) == expected
        assert kid_of(OTHER) != expected

    @pytest.mark.parametrize("secret", ["", "abc", "no hex at all", None])
    def test_what_is_no_secret_has_none(self, secret: Any) -> None:
        with pytest.raises(InvalidSecretHex):
            kid_of(secret)


class TestStored:
    def test_nothing_stored_is_the_empty_ring(self) -> None:
        assert read_ring(None) == EMPTY_RING == Keyring()

    def test_a_ring_survives_the_journey(self) -> None:
        ring = rotated(seeded(), "b")
        assert read_ring(write_ring(ring)) == ring

    def test_what_a_newer_release_wrote_survives_a_rotation(self) -> None:
        data = b'{"new":1,"current":"a","keys":{"a":{"secret":"ab","created_at":1,"kms":"x"}}}'
        stored = msgspec.json.decode(write_ring(rotated(read_ring(data), "b")))
        assert (stored["new"], stored["keys"]["a"]["kms"]) == (1, "x")

    @pytest.mark.parametrize(
        "data", [b"", b"[]", b'{"keys":{"a":{"secret":1}}}', b'{"keys":"\xff"}']
    )
    def test_what_is_no_ring(self, data: bytes) -> None:
        with pytest.raises(Corruption):
            read_ring(data)


class TestNothingIsShown:
    """INV-22, E-X22: secrets appear in no text but the stored one."""

    def test_in_any_representation(self) -> None:
        ring = rotated(seeded(), "b")
        unknown = msgspec.structs.replace(ring.keys["a"], unknown={"copy": SECRET})
        for value in (ring, unknown, Keyring(keys={"a": unknown}, unknown={"copy": SECRET})):
            shown = repr(value) + str(value) + f"{value}" + pretty_repr(value)
            assert SECRET not in shown
            assert OTHER not in shown
            assert "<REDACTED>" in shown

    @pytest.mark.parametrize(
        "call",
        [
            lambda: seed(EMPTY_RING, "a:b", SECRET, NOW),
            lambda: seed(EMPTY_RING, "a", SECRET + "0", NOW),
            lambda: seed(seeded(), "b", SECRET, NOW),
            lambda: rotate(seeded(), "a:b", SECRET, GRACE, NOW),
            lambda: rotate(seeded(), "b", SECRET + "0", GRACE, NOW),
            lambda: rotate(seeded(), "b", SECRET, at(-1), NOW),
            lambda: rotate(seeded("a", OTHER), "a", SECRET, GRACE, NOW),
            lambda: rotate(rotated(seeded("a", OTHER), "b"), "a", SECRET, GRACE, NOW),
            lambda: kid_of(SECRET + "0"),
            lambda: secret_of(Keyring(keys={"a": Key(secret=SECRET + "0")}), "a"),
            lambda: secret_of(seeded(), "b"),
            lambda: read_ring(b'{"keys":{"a":{"secret":"%s","until":"x"}}}' % SECRET.encode()),
            lambda: read_ring(b'{"keys":{"a":{"secret":"%s"' % SECRET.encode()),
        ],
    )
    def test_in_any_error(self, call: Callable[[], object]) -> None:
        told = recorded(call)
        assert SECRET not in told
        assert OTHER not in told
        assert re.search(r"[0-9a-f]{16}", told) is None


class RingMachine(RuleBasedStateMachine):
    """Random seeds and rotations beside a model that keeps, per kid, its secret and its end."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = EMPTY_RING
        self.now = 1_000
        self.current: str | None = None
        self.secrets: dict[str, str] = {}
        self.ends: dict[str, int] = {}

    names = st.sampled_from("abcdef")
    secrets_ = st.sampled_from([SECRET, OTHER, "00" * 32])

    @rule(span=st.integers(0, 60))
    def wait(self, span: int) -> None:
        self.now += span

    @rule(kid=names, secret=secrets_)
    def seed(self, kid: str, secret: str) -> None:
        if kid not in self.secrets and self.current is not None:
            with pytest.raises(Invalid, match="rotate"):
                seed(self.ring, kid, secret, at(self.now))
            return
        self.ring, outcome = seed(self.ring, kid, secret, at(self.now))
        if kid in self.secrets:
            assert outcome == AlreadySeeded(kid, self.secrets[kid] == secret)
        else:
            assert outcome == Seeded(kid)
            self.secrets[kid], self.current = secret, kid

    @rule(kid=names, secret=secrets_, grace=st.integers(0, 100))
    def rotate(self, kid: str, secret: str, grace: int) -> None:
        gone = [old for old, end in self.ends.items() if end < self.now]
        if kid not in gone and self.secrets.get(kid, secret) != secret:
            with pytest.raises(RotationConflict):
                rotate(self.ring, kid, secret, at(grace), at(self.now))
            return
        before = self.ring
        self.ring, outcome = rotate(before, kid, secret, at(grace), at(self.now))
        if kid == self.current:
            assert (self.ring, outcome) == (before, Noop(kid))
            return
        assert outcome == Rotated(self.current, kid, len(gone))
        for old in gone:
            del self.secrets[old], self.ends[old]
        if self.current is not None:
            self.ends[self.current] = self.now + grace
        self.ends.pop(kid, None)
        self.secrets[kid], self.current = secret, kid

    @invariant()
    def the_ring_is_what_the_model_says(self) -> None:
        assert {kid: key.secret for kid, key in self.ring.keys.items()} == self.secrets
        assert [kid for kid, key in self.ring.keys.items() if key.until is None] == (
            [] if self.current is None else [self.current]
        )
        for moment in (self.now, self.now + 30):
            alive = {kid: end for kid, end in self.ends.items() if end >= moment}
            shown = kids(self.ring, at(moment))
            assert (shown.current_kid, dict(shown.verifying)) == (self.current, alive)
            verifying = {kid for kid in self.secrets if verifies(self.ring, kid, at(moment))}
            assert verifying == alive.keys() | ({self.current} - {None})

    @invariant()
    def the_ring_survives_being_stored(self) -> None:
        assert read_ring(write_ring(self.ring)) == self.ring


def test_random_sequences_agree_with_the_model() -> None:
    """E-T256, E-T304, E-X26: at most one current key, every key in its grace verifies, no other."""
    run_state_machine_as_test(RingMachine, settings=settings(deadline=None, stateful_step_count=30))


@given(st.text(), st.text(), st.integers(), st.integers())
def test_strange_arguments_are_invalid_or_work(kid: str, secret: str, grace: int, now: int) -> None:
    """FLAW-39: nothing but an Invalid comes out."""
    with suppress(Invalid):
        seed(EMPTY_RING, kid, secret, at(now))
    with suppress(Invalid, RotationConflict):
        rotate(seeded(), kid, secret, at(grace), at(now))
    with suppress(Invalid):
        kid_of(secret)

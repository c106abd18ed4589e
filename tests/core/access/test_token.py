"""Access tokens: their form, who they stand for, and how they end (server-sdk §1.6, §10.1)."""

import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.pretty import pretty_repr

from flowfabric.core.access.token import (
    ANONYMOUS,
    CONFIGURED,
    MAX_PRESENTED,
    MAX_REPLACED,
    AccessScope,
    AccessToken,
    Identity,
    SecretText,
    TokenState,
    check_request,
    create,
    identity_of,
    info_of,
    new_secret,
    read_credentials,
    revoke,
    rotate,
    state_of,
    verify,
    with_implied,
)
from flowfabric.core.base import document
from flowfabric.core.base.errors import (
    CredentialsExpired,
    CredentialsRevoked,
    FlowFabricError,
    Forbidden,
    Invalid,
    InvalidCredentials,
    MissingCredentials,
    TokenExists,
    Unauthenticated,
    WrongState,
)
from flowfabric.core.base.redact import without_secrets
from flowfabric.core.base.time import MAX_MILLIS, Millis

NOW = Millis(1_000_000)
HOUR = Millis(3_600_000)
S = AccessScope


def secret(name: str = "ci", seed: int = 1) -> SecretText:
    return new_secret(name, bytes([seed]) * 32)


def made(
    name: str = "ci",
    scopes: tuple[str, ...] = ("read",),
    namespaces: Any = None,
    lifetime: Millis | None = None,
) -> AccessToken:
    request = check_request(name, scopes, namespaces, lifetime)
    return create(None, NOW, request, secret(name), "ada")


def check(token: AccessToken | None, text: object, now: int = NOW) -> Identity:
    return verify(token, Millis(now), read_credentials(text))


class TestForm:
    def test_a_token_names_its_record_and_keeps_only_a_hash(self) -> None:
        text = secret().reveal()
        assert text.startswith("ff_ci_")
        assert len(text) == len("ff_ci_") + 43
        token = made()
        assert token.last_four == text[-4:]
        stored = document.write(token).decode()
        assert text not in stored
        assert text.removeprefix("ff_ci_") not in stored
        assert read_credentials(text).name == "ci"

    def test_nothing_shows_a_secret(self) -> None:
        text, token = secret().reveal(), made()
        shown = repr(token) + pretty_repr(token) + repr(secret()) + f"{secret()}"
        assert text not in shown
        assert token.digest not in shown
        assert token.digest not in repr(info_of(token, NOW))

    def test_a_token_that_was_passed_as_something_else_is_hidden(self) -> None:
        assert secret().reveal() not in without_secrets(f"no run {secret().reveal()}")

    @pytest.mark.parametrize(
        "name", ["", "A", "a_b", "-a", "a-", ".a", "a b", "é", "a" * 65, "a\n", None, 5, b"a"]
    )
    def test_a_name_fits_into_a_token(self, name: Any) -> None:
        with pytest.raises(Invalid, match="name of a token"):
            check_request(name, ["read"])

    @pytest.mark.parametrize("name", ["a", "7", "ci-deploy", "a.b-c", "a" * 64])
    def test_names(self, name: str) -> None:
        assert read_credentials(new_secret(name, b"\xff" * 32).reveal()).name == name

    @pytest.mark.parametrize("name", [ANONYMOUS.name, CONFIGURED.name])
    def test_the_names_of_the_server_are_taken(self, name: str) -> None:
        with pytest.raises(Invalid, match="the server uses it"):
            check_request(name, ["read"])

    @pytest.mark.parametrize("scopes", [[], "read", None, ["write"], ["READ"], [None], 5])
    def test_scopes_are_words_of_the_list(self, scopes: Any) -> None:
        with pytest.raises(Invalid):
            check_request("ci", scopes)

    @pytest.mark.parametrize("namespaces", [[], "a", [""], [None], ["a\0"], ["n"] * 101, 5])
    def test_namespaces_are_names(self, namespaces: Any) -> None:
        with pytest.raises(Invalid):
            check_request("ci", ["read"], namespaces)

    def test_an_admin_is_never_limited_to_namespaces(self) -> None:
        """It could make a token for the others."""
        with pytest.raises(Invalid, match="admin"):
            check_request("ci", ["admin", "read"], ["acme"])


class TestScopes:
    @pytest.mark.parametrize(
        ("given", "implied"),
        [
            ({S.READ}, {S.READ}),
            ({S.SUBMIT}, {S.SUBMIT}),
            ({S.WORK}, {S.WORK}),
            ({S.SIGNAL}, {S.SIGNAL}),
            ({S.OPERATE}, {S.OPERATE, S.READ}),
            ({S.ADMIN}, set(S)),
            ({S.SUBMIT, S.READ}, {S.SUBMIT, S.READ}),
        ],
    )
    def test_which_scope_implies_which(self, given: set[S], implied: set[S]) -> None:
        assert with_implied(given) == implied
        identity = identity_of(made(scopes=tuple(given)))
        assert {scope for scope in S if identity.allows(scope)} == implied

    def test_the_scopes_of_a_newer_release_allow_nothing(self) -> None:
        token = replace(made(), scopes=("read", "teleport"))
        assert identity_of(token).scopes == {S.READ}

    def test_an_identity_requires_or_forbids(self) -> None:
        identity = identity_of(made(scopes=("operate",), namespaces=["acme"]))
        identity.require(S.READ)
        with pytest.raises(Forbidden, match="submit") as caught:
            identity.require(S.SUBMIT)
        assert caught.value.scope == "submit"
        with pytest.raises(Forbidden, match="all namespaces"):
            identity.require(S.OPERATE, everywhere=True)
        identity_of(made(scopes=("operate",))).require(S.OPERATE, everywhere=True)

    def test_namespaces_are_seen_or_not(self) -> None:
        limited = identity_of(made(namespaces=["b", "a", "b"]))
        assert [limited.sees(name) for name in ("a", "b", "c", "", "A")] == [
            True, True, False, False, False,
        ]  # fmt: skip
        assert not limited.sees_all
        assert identity_of(made()).sees("anything")
        assert identity_of(made()).sees_all


class TestVerify:
    def test_the_holder_is_known_by_name(self) -> None:
        identity = check(made(scopes=("submit",), namespaces=["acme"]), secret().reveal())
        assert identity == Identity("ci", frozenset({S.SUBMIT}), frozenset({"acme"}))

    @pytest.mark.parametrize("text", [None, ""])
    def test_no_token_is_missing(self, text: str | None) -> None:
        with pytest.raises(MissingCredentials):
            check(made(), text)

    @pytest.mark.parametrize(
        "change",
        [
            lambda text: text[:-1],
            lambda text: text + "A",
            lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
            lambda text: text.upper(),
            lambda text: text.lower(),
            lambda text: text.replace("ff_", "FF_"),
            lambda text: text.replace("ff_", ""),
            lambda text: f" {text}",
            lambda text: f"{text}\n",
            lambda text: f"{text}\0",
            lambda text: text.replace("_ci_", "_ce_"),
            lambda text: text + "é",
            lambda text: text + "\ud800",
            lambda text: "Bearer " + text,
            lambda text: text * 2,
            lambda text: "ff_ci_" + "A" * 10_000_000,
            lambda text: "x" * (MAX_PRESENTED + 1),
            lambda text: text.encode(),
            lambda text: 5,
            lambda text: "ff__" + text[6:],
        ],
    )
    def test_anything_else_is_invalid(self, change: Any) -> None:
        """Forged, cut off, in another case, huge, not ASCII."""
        with pytest.raises(InvalidCredentials) as caught:
            check(made(), change(secret().reveal()))
        assert str(caught.value) == "invalid_credentials: the access token is not valid"

    def test_a_name_that_does_not_exist_looks_like_a_wrong_secret(self) -> None:
        with pytest.raises(InvalidCredentials) as unknown:
            check(None, secret().reveal())
        with pytest.raises(InvalidCredentials) as wrong:
            check(made(), secret(seed=2).reveal())
        assert str(unknown.value) == str(wrong.value)

    def test_only_the_holder_learns_of_revocation_and_expiry(self) -> None:
        gone = revoke(made(lifetime=HOUR), NOW, "ada")
        for token in (gone, made(lifetime=HOUR)):
            with pytest.raises(InvalidCredentials):
                check(token, secret(seed=2).reveal(), NOW + 2 * HOUR)

    def test_it_expires_at_the_moment(self) -> None:
        token = made(lifetime=HOUR)
        assert check(token, secret().reveal(), NOW + HOUR - 1).name == "ci"
        for later in (NOW + HOUR, NOW + 2 * HOUR, MAX_MILLIS):
            with pytest.raises(CredentialsExpired):
                check(token, secret().reveal(), later)

    def test_a_clock_before_its_creation_does_not_matter(self) -> None:
        assert check(made(lifetime=HOUR), secret().reveal(), 0).name == "ci"

    def test_a_lifetime_beyond_all_time_ends_with_time(self) -> None:
        assert made(lifetime=MAX_MILLIS).expires_at == MAX_MILLIS

    @given(st.text(max_size=100))
    def test_no_text_is_a_token_by_accident(self, text: str) -> None:
        with pytest.raises(Unauthenticated):
            check(made(), text)
        with pytest.raises(Unauthenticated):
            check(made(), f"ff_ci_{text}")

    def test_a_damaged_record_lets_no_caller_in(self) -> None:
        for digest in ("", "0", secret().digest.upper()):
            with pytest.raises(InvalidCredentials):
                check(replace(made(), digest=digest), secret().reveal())

    def test_no_traceback_holds_a_token(self) -> None:
        text = secret().reveal()[:-1] + "!"
        for refused in (text, secret(seed=2).reveal()):
            with pytest.raises(FlowFabricError) as caught:
                verify(made(), NOW, read_credentials(refused))
            assert caught.tb.tb_next is not None
            told = traceback.TracebackException(
                type(caught.value), caught.value, caught.tb.tb_next, capture_locals=True
            )
            assert refused not in "".join(told.format())


class TestRevoke:
    def test_a_revoked_token_is_refused_with_all_its_secrets(self) -> None:
        rotated = rotate(made(), NOW, secret(seed=2), HOUR, "ada")
        gone = revoke(rotated, Millis(NOW + 5), "bob")
        assert (gone.revoked_at, gone.revoked_by) == (NOW + 5, "bob")
        assert state_of(gone, NOW) is TokenState.REVOKED
        with pytest.raises(CredentialsRevoked):
            check(gone, secret(seed=2).reveal())
        with pytest.raises(InvalidCredentials):
            check(gone, secret().reveal())

    def test_the_first_revocation_counts(self) -> None:
        gone = revoke(made(), NOW, "ada")
        assert revoke(gone, Millis(NOW + 5), "bob") == gone

    def test_revoked_is_said_before_expired(self) -> None:
        with pytest.raises(CredentialsRevoked):
            check(revoke(made(lifetime=HOUR), NOW, ""), secret().reveal(), NOW + 2 * HOUR)


class TestCreate:
    def test_the_name_of_a_live_token_is_taken(self) -> None:
        with pytest.raises(TokenExists, match="ci"):
            create(made(), NOW, check_request("ci", ["read"]), secret(seed=2), "")

    @pytest.mark.parametrize("how", ["revoked", "expired"])
    def test_the_name_of_one_that_is_over_is_free_and_its_secret_stays_invalid(
        self, how: str
    ) -> None:
        old = revoke(made(), NOW, "") if how == "revoked" else made(lifetime=HOUR)
        later = Millis(NOW + HOUR)
        new = create(old, later, check_request("ci", ["work"]), secret(seed=2), "bob")
        assert new.revoked_at is None
        assert check(new, secret(seed=2).reveal(), later).scopes == {S.WORK}
        with pytest.raises(InvalidCredentials):
            check(new, secret().reveal(), later)


class TestRotate:
    def test_both_secrets_are_valid_during_the_grace(self) -> None:
        token = rotate(made(), NOW, secret(seed=2), HOUR, "bob")
        assert (token.rotated_at, token.rotated_by) == (NOW, "bob")
        assert token.last_four == secret(seed=2).reveal()[-4:]
        for seed in (1, 2):
            assert check(token, secret(seed=seed).reveal(), NOW + HOUR - 1).name == "ci"
        assert info_of(token, NOW).grace_until == NOW + HOUR
        with pytest.raises(CredentialsExpired):
            check(token, secret().reveal(), NOW + HOUR)
        assert check(token, secret(seed=2).reveal(), NOW + HOUR).name == "ci"
        assert info_of(token, Millis(NOW + HOUR)).grace_until is None

    def test_without_grace_the_old_secret_is_refused_at_once(self) -> None:
        token = rotate(made(), NOW, secret(seed=2), Millis(0), "")
        with pytest.raises(InvalidCredentials):
            check(token, secret().reveal())

    def test_a_grace_never_outlives_the_token(self) -> None:
        token = rotate(made(lifetime=HOUR), NOW, secret(seed=2), Millis(5 * HOUR), "")
        assert token.expires_at == NOW + HOUR
        for seed in (1, 2):
            with pytest.raises(CredentialsExpired):
                check(token, secret(seed=seed).reveal(), NOW + HOUR)

    def test_a_rotation_may_extend_the_life_of_the_new_secret_only(self) -> None:
        long = Millis(9 * HOUR)
        token = rotate(made(lifetime=HOUR), NOW, secret(seed=2), long, "", lifetime=long)
        assert check(token, secret(seed=2).reveal(), NOW + 8 * HOUR).name == "ci"
        with pytest.raises(CredentialsExpired):
            check(token, secret().reveal(), NOW + HOUR)

    def test_secrets_past_their_grace_are_forgotten_and_the_others_are_few(self) -> None:
        token = made()
        for seed in range(2, 20):
            token = rotate(token, Millis(NOW + seed), secret(seed=seed), HOUR, "")
        assert len(token.replaced) == MAX_REPLACED
        for seed in range(11, 20):
            assert check(token, secret(seed=seed).reveal(), NOW + 20).name == "ci"
        with pytest.raises(InvalidCredentials):
            check(token, secret(seed=10).reveal(), NOW + 20)
        token = rotate(token, Millis(NOW + 9 * HOUR), secret(seed=20), Millis(0), "")
        assert token.replaced == ()

    def test_what_is_over_is_not_rotated(self) -> None:
        for token in (revoke(made(), NOW, ""), made(lifetime=Millis(1))):
            with pytest.raises(WrongState, match="create a new one"):
                rotate(token, Millis(NOW + 1), secret(seed=2), HOUR, "")


def test_the_errors_are_apart_from_those_of_waitpoint_tokens() -> None:
    """server-sdk §10.1, 6: each has a code of its own, and none invites a retry."""
    kinds: list[type[FlowFabricError]] = [
        MissingCredentials,
        InvalidCredentials,
        CredentialsExpired,
        CredentialsRevoked,
    ]
    assert [kind.code for kind in kinds] == [
        "missing_credentials",
        "invalid_credentials",
        "credentials_expired",
        "credentials_revoked",
    ]
    assert not any(kind.retryable for kind in kinds)
    assert not Forbidden.retryable
    assert all(issubclass(kind, Unauthenticated) for kind in kinds)
    assert not issubclass(Forbidden, Invalid | Unauthenticated)

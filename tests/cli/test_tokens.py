"""`flowfabric tokens …` and `flowfabric audit`"""

import asyncio
import getpass
import re
from datetime import datetime

import pytest

from flowfabric import Fabric
from flowfabric.core.access.token import Identity
from flowfabric.core.base.errors import CredentialsRevoked, InvalidCredentials
from tests.cli.terminal import Cli


def verify(cli: Cli, text: str) -> Identity:
    """Who a server on the same store would take this for."""

    async def ask() -> Identity:
        async with Fabric(cli.url) as fabric:
            return await (await fabric.engine()).tokens.verify(text)

    return asyncio.run(ask())


@pytest.fixture
def store(cli: Cli) -> Cli:
    cli("migrate")
    return cli


def test_a_store_without_tokens_says_so(store: Cli) -> None:
    assert store("tokens", "list").stderr.startswith("no tokens: flowfabric tokens create")
    assert store.lines("tokens", "list") == []
    assert store("audit").stderr == "no audit records\n"


def test_a_token_is_printed_alone_on_stdout_once(store: Cli) -> None:
    made = store("tokens", "create", "ci-deploy", "--scope", "submit", "--scope", "read")
    text = made.stdout.strip()
    assert re.fullmatch(r"ff_ci-deploy_[\w-]{43}", text)
    assert made.stderr == "ci-deploy: keep it safe, it is not shown again\n"
    assert verify(store, text).name == "ci-deploy"
    shown = store("tokens", "list").output + store("tokens", "show", "ci-deploy").output
    shown += store("tokens", "list", "--json").output + store("audit", "--json").output
    assert text not in shown
    assert text.removeprefix("ff_ci-deploy_")[:20] not in shown
    assert f"…{text[-4:]}" in shown


def test_what_a_token_allows(store: Cli) -> None:
    answer = store.json(
        *("tokens", "create", "ci", "--scope", "work", "--namespace", "b", "--namespace", "a"),
        *("--expires", "30d", "--by", "ada"),
    )
    assert verify(store, answer.pop("token")).namespaces == frozenset({"a", "b"})
    assert (answer["scopes"], answer["namespaces"]) == (["work"], ["a", "b"])
    (listed,) = store.lines("tokens", "list")
    assert listed == answer == store.json("tokens", "show", "ci")
    assert (listed["state"], listed["created_by"]) == ("live", "ada")
    life = datetime.fromisoformat(listed["expires_at"]) - datetime.fromisoformat(
        listed["created_at"]
    )
    assert life.days == 30


def test_the_user_who_is_logged_in_made_it(store: Cli) -> None:
    made = store.json("tokens", "create", "ci", "--scope", "read")
    assert made["created_by"] == getpass.getuser()
    assert "all" in store("tokens", "list").stdout


def test_a_revoked_token_is_refused_and_stays_in_the_list(store: Cli) -> None:
    text = store("tokens", "create", "ci", "--scope", "read").stdout.strip()
    assert store("tokens", "revoke", "ci").stdout == "revoked ci\n"
    assert store("tokens", "revoke", "ci").stdout == "ci was revoked already\n"
    assert store.json("tokens", "revoke", "ci")["changed"] is False
    with pytest.raises(CredentialsRevoked):
        verify(store, text)
    assert store.lines("tokens", "list")[0]["state"] == "revoked"
    assert "revoked by" in store("tokens", "show", "ci").stdout


def test_a_rotation_prints_the_new_secret(store: Cli) -> None:
    old = store("tokens", "create", "ci", "--scope", "read").stdout.strip()
    new = store("tokens", "rotate", "ci", "--grace", "1h").stdout.strip()
    assert verify(store, old) == verify(store, new)
    assert "earlier secret until" in store("tokens", "show", "ci").stdout
    last = store.json("tokens", "rotate", "ci", "--grace", "0s", "--expires", "2d")
    assert last["expires_at"] is not None
    with pytest.raises(InvalidCredentials):
        verify(store, new)
    assert verify(store, last["token"]) == verify(store, old)


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["create", "CI", "--scope", "read"], 2, "the name of a token must be 1 to 64 lower-case"),
        (["create", "anonymous", "--scope", "read"], 2, "no token can have the name anonymous"),
        (
            ["create", "ci", "--scope", "read", "--expires", "soon"],
            2,
            "--expires is not a duration",
        ),
        (["create", "ci", "--scope", "read", "--expires", "0s"], 2, "expires must be 1 to"),
        (
            ["create", "ci", "--scope", "admin", "--namespace", "a"],
            2,
            "a token with the scope admin",
        ),
        (["rotate", "ci"], 3, "no access token ci"),
        (["rotate", "ci", "--grace", "x"], 2, "--grace is not a duration"),
        (["revoke", "ci"], 3, "no access token ci"),
        (["show", "ci"], 3, "no access token ci"),
    ],
)
def test_a_mistake_is_one_readable_line(
    store: Cli, words: list[str], code: int, complaint: str
) -> None:
    assert store.complaint("tokens", *words, code=code).startswith(complaint)
    assert store.lines("tokens", "list") == store.lines("audit") == []


def test_a_scope_is_one_of_the_list(store: Cli) -> None:
    assert "write" in store("tokens", "create", "ci", "--scope", "write", code=2).stderr
    assert "--scope" in store("tokens", "create", "ci", code=2).stderr


def test_a_name_in_use_is_a_conflict(store: Cli) -> None:
    store("tokens", "create", "ci", "--scope", "read")
    complaint = store.complaint("tokens", "create", "ci", "--scope", "read", code=1)
    assert complaint == "an access token ci exists: rotate or revoke it"
    store("tokens", "revoke", "ci")
    complaint = store.complaint("tokens", "rotate", "ci", code=1)
    assert complaint == "the access token ci is revoked: create a new one"


def test_the_audit_says_who_did_what(store: Cli) -> None:
    store("tokens", "create", "ci", "--scope", "read", "--by", "ada")
    store("tokens", "revoke", "ci", "--by", "bob")
    store("keys", "seed", "--kid", "one")
    found = store.lines("audit")
    assert [(act["action"], act["subject"], act["by"]) for act in found] == [
        ("token.created", "ci", "ada"),
        ("token.revoked", "ci", "bob"),
        ("key.seeded", "one", getpass.getuser()),
    ]
    assert [act["action"] for act in store.lines("audit", "--limit", "1")] == ["token.created"]
    assert store.lines("audit", "--since", "2020-01-01T00:00") == found
    assert store.lines("audit", "--since", "2100-01-01T00:00") == []
    assert "token.created" in store("audit", "--since", "1h").stdout
    assert store.complaint("audit", "--since", "then", code=2).startswith("--since is a duration")

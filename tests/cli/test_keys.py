"""`flowfabric keys …`"""

from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.patient import Patient
from tests.cli.terminal import Cli

SECRET = "5ec2e7" * 10 + "abcd"


def test_a_store_without_keys_says_so(cli: Cli) -> None:
    cli("migrate")
    assert cli("keys", "list").stderr.startswith("no keys: one is made when")
    assert cli.lines("keys", "list") == []


def test_the_first_key_is_seeded_once(cli: Cli) -> None:
    cli("migrate")
    assert cli("keys", "seed", "--kid", "one").stdout == "seeded one\n"
    answer = cli.json("keys", "seed", "--kid", "one")
    assert answer == {"kid": "one", "seeded": False, "same_secret": False}
    assert cli("keys", "seed", "--kid", "one").stdout == "one exists already, with another secret\n"
    complaint = cli.complaint("keys", "seed", "--kid", "two", code=2)
    assert complaint.endswith("rotate to a new one instead")


def test_a_secret_comes_from_a_file_or_from_stdin_and_is_never_shown(
    cli: Cli, tmp_path: Path
) -> None:
    cli("migrate")
    (tmp_path / "secret").write_text(SECRET + "\n")
    words = ("--secret-file", str(tmp_path / "secret"), "--kid", "one")
    seeded = cli("keys", "seed", *words)
    again = cli("keys", "rotate", "--kid", "one", "--secret-file", "-", input=SECRET)
    assert again.stdout == "one is the current key already\n"
    shown = seeded.output + again.output + cli("keys", "list").output
    assert SECRET not in shown + cli("keys", "list", "--json").output


def test_a_secret_has_a_name_of_its_own(cli: Cli) -> None:
    cli("migrate")
    first = cli("keys", "seed", "--secret-file", "-", input=SECRET).stdout
    second = cli("keys", "seed", "--secret-file", "-", input=SECRET).stdout
    kid = first.removeprefix("seeded ").strip()
    assert second == f"{kid} exists already, with this secret\n"


def test_rotating_makes_a_key_and_the_old_one_verifies_for_a_while(
    cli: Cli, patient: Patient
) -> None:
    id = patient.start("ship")
    before = cli.json("keys", "list")["kid"]
    issued = cli.json("waitpoints", "token", id)
    answer = cli.json("keys", "rotate", "--grace", "2h")
    assert (answer["rotated"], answer["previous"]) == (True, before)
    current, verifying = cli.lines("keys", "list")
    assert current == {"kid": answer["kid"], "state": "current", "until": None}
    assert (verifying["kid"], verifying["state"]) == (before, "verifying")
    assert datetime.fromisoformat(verifying["until"]).utcoffset() is not None
    assert "verifies until" in cli("keys", "list").stdout
    assert cli.json("signal", issued["id"], "--token", issued["token"])["resumed"] is True


def test_without_grace_tokens_of_the_old_key_are_refused_at_once(
    cli: Cli, patient: Patient
) -> None:
    id = patient.start("ship")
    issued = cli.json("waitpoints", "token", id)
    cli("keys", "rotate", "--kid", "two", "--grace", "0s")
    cli("keys", "rotate", "--kid", "three", "--grace", "0s")
    complaint = cli.complaint("signal", issued["id"], "--token", issued["token"], code=1)
    assert complaint in ("the token is not valid here", "the token is not valid any more")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--secret-file", "nowhere"], "the secret cannot be read from nowhere: No such file"),
        (["--kid", "a:b"], "a key id is 1 to 256 printable ASCII characters"),
        (["--grace", "soon"], "--grace is not a duration"),
    ],
)
def test_a_wrong_rotation_is_one_readable_line(cli: Cli, words: list[str], complaint: str) -> None:
    cli("migrate")
    assert cli.complaint("keys", "rotate", *words, code=2).startswith(complaint)


def test_what_is_no_secret_is_refused_without_being_shown(cli: Cli) -> None:
    cli("migrate")
    result = cli("keys", "rotate", "--secret-file", "-", input="pass phrase", code=2)
    assert result.stderr.startswith("error: a secret is an even number")
    assert "pass phrase" not in result.output


def test_a_known_name_with_another_secret_is_a_conflict(cli: Cli) -> None:
    cli("migrate")
    cli("keys", "seed", "--kid", "one")
    complaint = cli.complaint("keys", "rotate", "--kid", "one", code=1)
    assert complaint == "this key id is known with another secret"

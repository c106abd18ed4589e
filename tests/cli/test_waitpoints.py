"""`flowfabric waitpoints …`, and what `run show` tells of a run that waits."""

import msgspec
import pytest

from flowfabric import RunId
from flowfabric.core.wait.token import digest_of
from tests.cli.patient import PLAN, Patient
from tests.cli.terminal import NOBODY, Cli


def fields(line: str) -> list[str]:
    return [word.strip() for word in line.split("  ") if word.strip()]


def test_the_list_tells_who_waits_for_what(cli: Cli, patient: Patient) -> None:
    paying, ordering = patient.start("pay"), patient.start("order")
    header, first, second = cli("waitpoints", "list").stdout.splitlines()
    assert fields(header)[:4] == ["run", "name", "state", "waits for"]
    assert fields(first)[:4] == [paying, "budget", "active", "approved, rejected"]
    assert fields(first)[5:] == ["ada, bob", msgspec.json.encode(PLAN).decode()]
    assert fields(second)[:4] == [ordering, "paid", "active", "any signal"]


def test_the_list_is_of_one_run_when_told_to(cli: Cli, patient: Patient) -> None:
    patient.start("pay")
    id = patient.start("order")
    assert [item["key"] for item in cli.lines("waitpoints", "list", id)] == ["paid"]
    assert len(cli.lines("waitpoints", "list", "--limit", "1")) == 1


def test_the_list_tells_when_a_wait_is_over(cli: Cli, patient: Patient) -> None:
    id = patient.start("publish")
    for item in cli.lines("waitpoints", "list", id):
        assert item["activated_at"] < item["expires_at"]
        assert item["terms"]["approvers"] == []
    assert "anyone" in cli("waitpoints", "list", id).stdout


def test_an_empty_list_says_so(cli: Cli, patient: Patient) -> None:
    cli("migrate")
    assert cli("waitpoints", "list").stderr == "nothing waits\n"
    id = patient.start("order")
    cli("run", "cancel", id)
    assert cli("waitpoints", "list", id).stderr == f"{id} waits for nothing from outside\n"
    assert cli.lines("waitpoints", "list") == []


@pytest.mark.parametrize("command", ["list", "token", "revoke", "close"])
def test_a_run_that_does_not_exist_is_not_found(cli: Cli, command: str) -> None:
    cli("migrate")
    assert cli.complaint("waitpoints", command, NOBODY, code=3).startswith("no run")
    assert "is not a run's id" in cli.complaint("waitpoints", command, "seven", code=2)


def test_a_token_is_alone_on_stdout_and_called_a_secret_on_stderr(
    cli: Cli, patient: Patient
) -> None:
    id = patient.start("ship")
    result = cli("waitpoints", "token", id)
    kid, _, digits = result.stdout.strip().partition(":")
    assert kid == cli.json("keys", "list")["kid"]
    assert len(digits) == 64
    assert result.stderr.startswith("this token is a secret: its bearer may answer 'carrier'")
    answer = cli.json("waitpoints", "token", id, "carrier")
    assert answer["token"] == result.stdout.strip()
    assert answer["id"].startswith(f"{id}/")


def test_a_token_is_shown_nowhere_else(cli: Cli, patient: Patient) -> None:
    id = patient.start("ship")
    token = cli("waitpoints", "token", id).stdout.strip()
    place = cli.json("waitpoints", "token", id)["id"]
    cli("signal", place, "--token", token)
    for words in (["waitpoints", "list"], ["run", "show", id], ["run", "events", id]):
        shown = cli(*words).output + cli(*words, "--json").output
        assert token not in shown
        assert token.partition(":")[2] not in shown


def test_which_waitpoint_is_meant_must_be_clear(cli: Cli, patient: Patient) -> None:
    id = patient.start("publish")
    complaint = cli.complaint("waitpoints", "token", id, code=2)
    assert complaint == f"{id} has several open waitpoints, name one: legal, style"
    complaint = cli.complaint("waitpoints", "token", id, "money", code=3)
    assert complaint == f"{id} has no open waitpoint 'money'"
    assert cli("waitpoints", "token", id, "legal").stdout


def test_a_bound_token_can_be_taken_back_alone(cli: Cli, patient: Patient) -> None:
    id = patient.start("pay")
    words = ("waitpoints", "token", id, "--approver")
    ada, bob = (cli.json(*words, name) for name in ("ada", "bob"))
    printed = cli("waitpoints", "revoke", id, "--token", "-", input=ada["token"] + "\n").stdout
    assert printed == f"revoked one token of 'budget' of {id}\n"
    complaint = cli.complaint("approve", ada["id"], "--token", ada["token"], code=1)
    assert complaint == "the token was revoked"
    assert cli("approve", bob["id"], "--token", bob["token"]).stdout


def test_every_token_can_be_taken_back(cli: Cli, patient: Patient) -> None:
    id = patient.start("ship")
    answer = cli.json("waitpoints", "token", id)
    assert cli.json("waitpoints", "revoke", id) == {
        "id": answer["id"],
        "name": "carrier",
        "all": True,
    }
    complaint = cli.complaint("signal", answer["id"], "--token", answer["token"], code=1)
    assert complaint == "every token issued before was revoked"


def test_a_closed_waitpoint_accepts_nothing(cli: Cli, patient: Patient) -> None:
    id = patient.start("ship")
    answer = cli.json("waitpoints", "token", id)
    assert cli("waitpoints", "close", id, "carrier").stdout == f"closed 'carrier' of {id}\n"
    complaint = cli.complaint("signal", answer["id"], "--token", answer["token"], code=1)
    assert complaint == "the waitpoint accepts no signals any more"
    complaint = cli.complaint("waitpoints", "close", answer["id"], code=3)
    assert "has no open waitpoint" in complaint


def test_a_run_is_told_why_what_it_waits_for_was_closed(cli: Cli, patient: Patient) -> None:
    id = patient.start("ship")
    closed = cli.json("waitpoints", "close", id, "--reason", "the carrier is broke")
    assert (closed["closed"], closed["reason"]) == (True, "the carrier is broke")
    patient.work()
    assert "waits for: the carrier is broke" in cli.typed("run", "show", id).stdout
    assert "reason: the carrier is broke" in cli("run", "events", id).stdout


def test_show_tells_what_a_run_waits_for_and_how_to_answer(cli: Cli, patient: Patient) -> None:
    id = patient.start("pay")
    result = cli("run", "show", id)
    (line,) = [line for line in result.stdout.splitlines() if "approved, rejected" in line]
    assert fields(line)[0] == "budget"
    assert f"answer with: flowfabric approve {id} budget --as APPROVER" in result.stderr
    assert f"answer with: flowfabric reject {id} budget --as APPROVER" in result.stderr
    (item,) = cli.json("run", "show", id)["waitpoints"]
    assert (item["key"], item["terms"]["about"]) == ("budget", digest_of(PLAN))
    assert item["about"] == PLAN


def test_show_tells_how_to_send_a_signal(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    assert f"answer with: flowfabric signal {id} paid JSON" in cli("run", "show", id).stderr


def test_show_of_a_run_that_nothing_can_answer_names_the_operator(
    cli: Cli, patient: Patient
) -> None:
    id = patient.suspend_without_a_step("gate")
    cli("waitpoints", "close", id)
    printed = cli("run", "show", id).stderr
    assert printed == f"only an operator can wake it: flowfabric resume {RunId(id)}\n"


def test_show_of_a_run_that_does_not_wait_says_nothing_of_it(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    cli("signal", id, "paid")
    assert cli("run", "show", id).stderr == ""
    assert msgspec.json.decode(cli("run", "show", id, "--json").stdout)["state"] == "waiting"


def test_approvers_see_what_is_to_be_approved(cli: Cli, patient: Patient) -> None:
    id = patient.start("pay")
    assert '{"amount":250,"to":"ada"}' in cli("waitpoints", "list").stdout
    assert '{"amount":250,"to":"ada"}' in cli("run", "show", id).stdout
    shown = cli("waitpoints", "show", id)
    assert '"amount": 250' in shown.stdout
    assert digest_of(PLAN) in shown.stdout
    assert "answer with: flowfabric approve" in shown.stderr
    assert cli.json("waitpoints", "show", id, "budget")["about"] == PLAN
    assert cli("waitpoints", "show", id, "other", code=3).stdout == ""

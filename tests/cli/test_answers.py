"""`flowfabric signal`, `approve`, `reject`, `resume`"""

from pathlib import Path

import msgspec
import pytest

from flowfabric.core.wait.token import digest_of
from tests.cli.patient import PLAN, Patient
from tests.cli.terminal import NOBODY, Cli


def address(cli: Cli, id: str) -> str:
    return f"{id}/{cli.json('waitpoints', 'list', id)['id']}"


def token(cli: Cli, id: str, *words: str) -> str:
    return cli("waitpoints", "token", id, *words).stdout.strip()


# -- signal


def test_a_signal_lets_a_run_go_on(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    printed = cli("signal", id, "paid", '{"amount": 3}').stdout
    assert printed == f"signalled {id}: the run continues\n"
    assert patient.result(id) == {"amount": 3}


def test_the_address_of_a_waitpoint_may_be_in_capitals(cli: Cli, patient: Patient) -> None:
    """As everywhere else where a uuid is read"""
    id = patient.start("order")
    where = address(cli, id)
    shown = cli.json("waitpoints", "show", where.upper())
    assert f"{id}/{shown['id']}" == where
    complaint = cli.complaint("waitpoints", "show", f"{id}/nonsense", code=2)
    assert "'nonsense' is not a waitpoint's id" in complaint


def test_a_signal_as_json_is_one_document(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    answer = cli.json("signal", id, "other")
    assert answer == {
        "id": id,
        "signal": answer["signal"],
        "effect": "buffered_for_pending_waitpoint",
        "resumed": False,
        "duplicate": False,
    }


def test_a_signal_that_comes_before_the_wait_is_kept(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    assert cli("signal", id, "later").stdout.endswith("kept until the run waits for it\n")


def test_a_payload_comes_from_a_file_or_from_stdin(
    cli: Cli, patient: Patient, tmp_path: Path
) -> None:
    first, second = patient.start("order"), patient.start("order")
    (tmp_path / "paid.json").write_text("[1]")
    cli("signal", first, "paid", "--file", str(tmp_path / "paid.json"))
    cli("signal", second, "paid", "-", input='{"from": "stdin"}')
    assert patient.result(first) == [1]
    assert patient.result(second) == {"from": "stdin"}


def test_a_key_makes_a_repeat_harmless(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    cli("signal", id, "paid", "1", "--key", "k")
    assert cli("signal", id, "paid", "2", "--key", "k").stdout == f"{id} was signalled before\n"
    assert patient.result(id) == 1


def test_a_delay_holds_the_run_back(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    cli("signal", id, "paid", "--delay", "1h")
    assert cli.json("run", "show", id)["state"] == "delayed"


def test_a_callback_takes_a_token(cli: Cli, patient: Patient) -> None:
    id = patient.start("ship")
    cli("signal", address(cli, id), '{"parcel": 7}', "--token", token(cli, id))
    assert patient.result(id) == {"parcel": 7}


def test_a_token_may_come_from_the_environment(
    cli: Cli, patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = patient.start("ship")
    monkeypatch.setenv("FLOWFABRIC_WAITPOINT_TOKEN", token(cli, id))
    assert cli.json("signal", address(cli, id), "1")["resumed"] is True


def test_a_callback_without_a_token_says_where_to_give_it(cli: Cli, patient: Patient) -> None:
    id = patient.start("ship")
    complaint = cli.complaint("signal", address(cli, id), "1", code=2)
    assert complaint == "a token is required: give --token or set FLOWFABRIC_WAITPOINT_TOKEN"


def test_a_wrong_token_is_refused_and_not_repeated(cli: Cli, patient: Patient) -> None:
    id = patient.start("ship")
    right = token(cli, id)
    wrong = right[:-4] + "0000"
    result = cli("signal", address(cli, id), "1", "--token", wrong, code=1)
    assert result.stderr == "error: the token is not valid here\n"
    answer = cli("signal", address(cli, id), "1", "--token", wrong, "--json", code=1)
    assert msgspec.json.decode(answer.stderr)["error"] == "invalid_token"
    assert wrong not in result.output + answer.output


def test_a_token_for_a_run_is_wrong_usage(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    complaint = cli.complaint("signal", id, "paid", "--token", "x", code=2)
    assert complaint.startswith("a token belongs to one callback")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "a signal to a run needs a name"),
        (["paid", "{"], "the payload is not JSON: "),
        (["paid", "NaN"], "the payload is not JSON: NaN is not a number"),
        (["paid", "1e400"], "the payload is not JSON: Number out of range"),
        (["paid", '"\\ud800"'], "the payload is not JSON: "),
        (["paid", '{"a": 1, "a": 2}'], "the payload is not JSON: a member is named twice"),
        (["paid", "1", "--file", "x"], "the payload is given twice"),
        (["paid", "--file", "nowhere.json"], "the payload cannot be read from nowhere.json: No "),
        (["paid", "{a:", "1}"], "a name and one JSON value, not 3 words: quote the JSON"),
        (["paid", "--delay", "soon"], "delay is not a duration"),
    ],
)
def test_a_wrong_signal_is_one_readable_line(cli: Cli, words: list[str], complaint: str) -> None:
    cli("migrate")
    assert cli.complaint("signal", NOBODY, *words, code=2).startswith(complaint)


def test_a_signal_to_an_unknown_run_is_not_found(cli: Cli) -> None:
    cli("migrate")
    assert cli.complaint("signal", NOBODY, "paid", code=3) == f"no run {NOBODY}"


def test_a_signal_to_a_run_that_has_ended_fails(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    cli("run", "cancel", id)
    assert cli.complaint("signal", id, "paid", code=1) == f"run {id} has ended"


# -- approve and reject


def test_the_only_approval_needs_no_name(cli: Cli, patient: Patient) -> None:
    id = patient.start("pay")
    printed = cli("approve", id, "--as", "ada", "--comment", "fine").stdout
    assert printed == f"approved {id}: the run continues\n"
    assert patient.result(id) == "approved ['ada: fine']"


def test_a_refusal_may_leave_the_others_to_decide(cli: Cli, patient: Patient) -> None:
    id = patient.start("pay")
    printed = cli("reject", id, "budget", "--as", "ada").stdout
    assert printed == f"rejected {id}: counted, the run waits for more\n"
    assert cli.json("reject", id, "--as", "bob")["resumed"] is True
    assert patient.result(id).startswith("rejected")


def test_several_approvals_are_named(cli: Cli, patient: Patient) -> None:
    id = patient.start("publish")
    complaint = cli.complaint("approve", id, "--as", "ada", code=2)
    assert complaint == f"{id} has several open approvals, name one: legal, style"
    cli("approve", id, "legal", "--as", "ada")
    cli("reject", id, "style", "--as", "ada")
    assert patient.result(id) == {"legal": True, "style": False}


def test_an_approval_is_for_exactly_one_thing(cli: Cli, patient: Patient) -> None:
    id = patient.start("pay")
    other = msgspec.json.encode({**PLAN, "amount": 9000}).decode()
    complaint = cli.complaint("approve", id, "--as", "ada", "--about", other, code=1)
    assert complaint == (
        "what is to be approved is not what the sender approves; "
        "`flowfabric waitpoints show RUN` shows what is to be approved"
    )
    same = '{"to": "ada", "amount": 250}'
    assert cli("approve", id, "--as", "ada", "--about", "-", input=same).stdout


def test_the_approver_is_named(cli: Cli, patient: Patient) -> None:
    id = patient.start("pay")
    assert cli.complaint("approve", id, code=2) == "who decides? give --as, or a token"
    complaint = cli.complaint("approve", id, "--as", "eve", code=1)
    assert complaint == "the sender is not one of the approvers"


def test_an_approver_decides_once(cli: Cli, patient: Patient) -> None:
    id = patient.start("pay")
    cli("reject", id, "--as", "ada")
    assert cli.complaint("approve", id, "--as", "ada", code=1) == "decided before: rejected"
    assert cli("reject", id, "--as", "ada").stdout == f"{id} was rejected before\n"


def test_a_token_decides_for_its_approver(
    cli: Cli, patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = patient.start("pay")
    words = ("--approver", "ada", "--decision", "approved", "--single-use")
    monkeypatch.setenv("FLOWFABRIC_WAITPOINT_TOKEN", token(cli, id, *words))
    place = address(cli, id)
    complaint = cli.complaint("reject", place, code=1)
    assert complaint == "the token does not allow 'rejected'"
    assert cli("approve", id).stdout == f"approved {id}: the run continues\n"
    assert cli("approve", place).stdout == f"{place} was approved before\n"


def test_a_decision_never_goes_to_a_namesake(cli: Cli, patient: Patient) -> None:
    id = patient.start("split")
    complaint = cli.complaint("approve", id, "part", "--as", "ada", code=2)
    assert complaint.startswith("several approvals are called 'part', name one: ")
    digest = digest_of(2)
    items = cli.lines("waitpoints", "list", id)
    (second,) = [item["id"] for item in items if item["terms"]["about"] == digest]
    cli("reject", f"{id}/{second}", "--as", "ada")
    cli("approve", id, "--as", "ada")
    assert patient.result(id) == [True, False]


def test_a_run_that_waits_for_no_approval_says_so(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    assert cli.complaint("approve", id, "--as", "ada", code=3) == f"{id} has no open approval"
    complaint = cli.complaint("reject", id, "budget", "--as", "ada", code=3)
    assert complaint == "the run has no open approval 'budget'"


def test_a_decision_whose_answer_was_lost_can_be_typed_again(cli: Cli, patient: Patient) -> None:
    """INV-14: also the one that ended the approval, while the run continues and after its end"""
    id = patient.start("pay")
    assert cli("approve", id, "budget", "--as", "ada").stdout
    for _ in range(2):
        assert cli("approve", id, "budget", "--as", "ada").stdout == f"{id} was approved before\n"
        complaint = cli.complaint("reject", id, "budget", "--as", "ada", code=1)
        assert complaint == "decided before: approved"
        patient.work()


@pytest.mark.parametrize(
    "words", [["signal"], ["approve"], ["waitpoints", "list"], ["run", "show"]]
)
def test_a_token_where_an_id_belongs_is_not_repeated(
    cli: Cli, patient: Patient, words: list[str]
) -> None:
    """Texts of errors end in logs"""
    id = patient.start("ship")
    secret = token(cli, id, "--approver", "ada")
    digits = secret.partition(":")[2]
    for target in (secret, f"{id}/{secret}", secret.partition(":")[2]):
        more = ["1"] if words == ["signal"] else []
        answer = cli(*words, target, *more, *["--as", "ada"] * (words == ["approve"]), code=2)
        assert "<hidden>" in answer.stderr
        assert digits[:20] not in answer.output


def test_approving_for_an_unknown_run_is_not_found(cli: Cli) -> None:
    cli("migrate")
    assert cli.complaint("approve", NOBODY, "--as", "ada", code=3) == f"no run {NOBODY}"


# -- resume


def test_an_operator_wakes_a_run_without_what_it_waits_for(cli: Cli, patient: Patient) -> None:
    id = patient.start("pay")
    assert cli("resume", id).stdout == f"resumed {id}\n"
    assert patient.result(id) == "resumed []"


def test_a_run_may_be_resumed_later(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    assert cli.json("resume", id, "--delay", "1h") == {"id": id, "state": "delayed"}
    assert cli.complaint("resume", id, "--delay", "soon", code=2).startswith("--delay is not a")


def test_only_a_suspended_run_is_resumed(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    cli("run", "cancel", id)
    complaint = cli.complaint("resume", id, code=1)
    assert complaint == f"run {id} is not suspended, so it cannot be resumed"
    assert f"no run {NOBODY}" == cli.complaint("resume", NOBODY, code=3)

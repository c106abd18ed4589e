"""`flowfabric run …`"""

from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from tests.cli.patient import Patient
from tests.cli.terminal import NOBODY, Cli, Work, Worker, follow


@pytest.fixture
def greeted(cli: Cli, work: Work) -> str:
    id = cli.submit("greet", "--arg", "name=Bob")
    assert work() == 1
    return id


@pytest.fixture
def failed(cli: Cli, work: Work) -> str:
    id = cli.submit("divide", "--arg", "a=1", "--arg", "b=0", "--tag", "app.env=dev")
    while work():
        pass
    return id


def test_show_tells_everything_about_a_run(cli: Cli, greeted: str) -> None:
    shown = cli("run", "show", greeted).stdout
    fields = dict(line.split(None, 1) for line in shown.splitlines() if line.strip())
    assert fields["id"].strip() == greeted
    assert fields["kind"].strip() == "greet"
    assert fields["state"].strip() == "completed"
    assert fields["payload"].strip() == '{"name":"Bob"}'
    assert fields["result"].strip() == '"hello Bob"'
    assert fields["1"].split()[:3] == ["initial", "success", "ada"]


def test_show_as_json_is_one_document_with_stable_names(cli: Cli, greeted: str) -> None:
    shown = cli.json("run", "show", greeted)
    assert (shown["id"], shown["kind"], shown["state"]) == (greeted, "greet", "completed")
    assert (shown["payload"], shown["result"]) == ({"name": "Bob"}, "hello Bob")
    assert shown["attempts"][0]["worker"]["id"] == "ada"
    for name in ("created_at", "started_at", "ended_at"):
        assert datetime.fromisoformat(shown[name]).utcoffset() is not None


def test_show_of_a_failed_run_has_the_traceback_of_the_task(cli: Cli, failed: str) -> None:
    shown = cli.typed("run", "show", failed).stdout
    assert "ZeroDivisionError: division by zero (handler_error)" in shown
    assert "return a / b" in shown
    document = msgspec.json.decode(cli.typed("run", "show", failed, "--json").stdout)
    assert "return a / b" in document["failure"]["detail"]


def test_show_has_the_steps_with_times_results_and_errors(cli: Cli, work: Work) -> None:
    id = cli.submit("checkout", "--arg", "order=7")
    while work():
        pass
    typed = cli.typed("run", "show", id, "--json").stdout
    price, charge, raised = msgspec.json.decode(typed)["steps"]
    assert (price["name"], price["result"], price["error"]) == ("price_of", 70, None)
    assert price["started_at"] <= price["ended_at"]
    assert (charge["name"], charge["result"]) == ("charge", "paid 70")
    assert (raised["name"], raised["error"], raised["attempt"]) == (
        "charge",
        "ConnectionError: no answer for 70",
        1,
    )
    shown = cli.typed("run", "show", id).stdout.splitlines()
    header = next(number for number, line in enumerate(shown) if line.startswith("step "))
    assert shown[header].split() == [
        "step",
        "branch",
        "started",
        "ended",
        "took",
        "result",
        "error",
    ]
    assert shown[header + 1].split()[-1] == "70"
    assert shown[header + 3].rstrip().endswith("attempt 1: ConnectionError: no answer for 70")


def test_show_says_which_step_failed_a_run(cli: Cli, work: Work) -> None:
    id = cli.submit("checkout", "--arg", "order=70")
    while work():
        pass
    shown = msgspec.json.decode(cli.typed("run", "show", id, "--json").stdout)
    assert shown["failure"]["step"] == "charge"
    assert [step["attempt"] for step in shown["steps"]] == [None, 1, 2]


def test_show_has_the_tries_of_a_step(cli: Cli, work: Work) -> None:
    id = cli.submit("persistent")
    work()
    (step,) = msgspec.json.decode(cli.typed("run", "show", id, "--json").stdout)["steps"]
    assert (step["name"], step["tries"], step["of"]) == ("knock", 1, 5)
    assert (step["error"], step["result"]) == ("ConnectionError: no answer", None)
    started, due = (datetime.fromisoformat(step[name]) for name in ("started_at", "next_try_at"))
    assert timedelta(0) <= due - started - timedelta(hours=1) < timedelta(minutes=1)
    shown = cli.typed("run", "show", id).stdout.splitlines()
    header = next(number for number, line in enumerate(shown) if line.startswith("step "))
    assert shown[header].split()[-1] == "tries"
    assert "attempt 1: ConnectionError: no answer" in shown[header + 1]
    assert " 1 of 5, next at " in shown[header + 1]
    assert "tries a step again" in cli.typed("why", id).stdout


def test_show_has_the_waits_among_the_steps(cli: Cli, patient: Patient) -> None:
    id = patient.start("order")
    cli("signal", id, "paid", '{"amount": 5}')
    assert patient.result(id) == {"amount": 5}
    (wait,) = cli.json("run", "show", id)["steps"]
    assert (wait["name"], wait["waited"], wait["result"]) == (
        "signal:paid",
        "signalled",
        {"amount": 5},
    )
    assert wait["started_at"] <= wait["ended_at"]


def test_show_tells_when_a_delayed_run_may_start(cli: Cli) -> None:
    id = cli.submit("greet", "--arg", "name=x", "--delay", "1h")
    assert " delayed until 20" in cli("run", "show", id).stdout


@pytest.mark.parametrize("command", ["show", "result", "events", "cancel", "replay"])
def test_a_run_that_does_not_exist_is_not_found(cli: Cli, command: str) -> None:
    cli("migrate")
    assert cli("run", command, NOBODY, code=3).stdout == ""
    complaint = cli("run", command, NOBODY, "--json", code=3).stderr
    assert msgspec.json.decode(complaint)["error"] == "not_found"


@pytest.mark.parametrize("command", ["show", "result", "events", "cancel", "replay"])
def test_a_malformed_id_is_wrong_usage(cli: Cli, command: str) -> None:
    cli("migrate")
    assert "'seven' is not a run's id" in cli.complaint("run", command, "seven", code=2)


def test_list_shows_the_newest_first(cli: Cli, greeted: str) -> None:
    second = cli.submit("wait_for", "--arg", "gate=x")
    header, *rows = cli("run", "list").stdout.splitlines()
    assert header.split()[:4] == ["id", "kind", "lane", "state"]
    assert rows[0].split()[:4] == [second, "wait_for", "slow", "waiting"]
    assert rows[1].split()[:4] == [greeted, "greet", "default", "completed"]


def test_list_without_runs_says_so(cli: Cli) -> None:
    cli("migrate")
    result = cli("run", "list")
    assert (result.stdout, result.stderr) == ("", "no runs\n")
    assert cli.lines("run", "list") == []


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (["--state", "completed"], ["greet"]),
        (["--state", "completed", "--state", "waiting"], ["wait_for", "greet"]),
        (["--lane", "slow"], ["wait_for"]),
        (["--kind", "divide"], ["divide"]),
        (["--tag", "app.size=big"], ["wait_for"]),
        (["--namespace", "other"], []),
        (["--since", "1h"], ["wait_for", "divide", "greet"]),
        (["--since", "0s"], []),
        (["--since", "2020-01-01T00:00"], ["wait_for", "divide", "greet"]),
        (["--since", "9000-01-01"], []),
        (["--limit", "1"], ["wait_for"]),
    ],
)
def test_list_filters(
    cli: Cli, greeted: str, failed: str, words: list[str], kinds: list[str]
) -> None:
    cli.submit("wait_for", "--arg", "gate=x")
    assert [run["kind"] for run in cli.lines("run", "list", *words)] == kinds


def test_list_goes_on_where_it_ended(cli: Cli) -> None:
    ids = [cli.submit("greet", "--arg", f"name={n}") for n in range(3)]
    first = cli("run", "list", "--limit", "2", "--ids")
    cursor = first.stderr.split("--cursor ")[1].strip()
    second = cli("run", "list", "--limit", "2", "--ids", "--cursor", cursor)
    assert first.stdout.split() + second.stdout.split() == ids[::-1]
    assert second.stderr == ""
    printed = cli("run", "list", "--limit", "2", "--json").stderr
    assert msgspec.json.decode(printed) == {"cursor": cursor}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--since", "noon"], "--since is a duration such as 2h"),
        (["--tag", "big"], "--tag is written app.tenant=acme, not 'big'"),
        (["--cursor", "x"], "not a cursor: 'x'"),
    ],
)
def test_a_wrong_filter_is_one_readable_line(cli: Cli, words: list[str], complaint: str) -> None:
    cli("migrate")
    assert cli.complaint("run", "list", *words, code=2).startswith(complaint)


def test_list_shows_why_runs_failed(cli: Cli, failed: str) -> None:
    header, row = cli("run", "list").stdout.splitlines()
    assert header.split()[-1] == "failure"
    assert row.rstrip().endswith("ZeroDivisionError: division by zero")
    (run,) = cli.lines("run", "list")
    assert run["failure"]["message"] == "ZeroDivisionError: division by zero"
    assert run["waits_for"] is None


def test_list_shows_what_runs_wait_for(cli: Cli, patient: Patient) -> None:
    patient.start("pay")
    patient.start("publish")
    patient.start("order")
    patient.start("ship")
    cli.submit("greet", "--arg", "name=x", "--delay", "1h")
    delayed, *others = cli.lines("run", "list")
    assert [run["waits_for"] for run in others] == [
        "callback carrier",
        "signal paid",
        "approval legal or approval style",
        "approval budget",
    ]
    assert delayed["waits_for"] == "a delay"
    assert datetime.fromisoformat(delayed["due_at"]).utcoffset() is not None
    assert "a delay (59m" in cli("run", "list").stdout


def test_failures_are_grouped_by_error(cli: Cli, failed: str, work: Work) -> None:
    for number in (7, 8):
        last = cli.submit("shout", "--arg", f'text="no order {number}"')
    while work():
        pass
    header, first, second = cli("run", "failures").stdout.splitlines()
    assert header.split() == ["runs", "task", "error", "first", "last", "example"]
    assert first.startswith("2     shout   RuntimeError: no order …")
    assert first.split()[-1] == last
    assert second.split()[:2] == ["1", "divide"]
    shout, divide = cli.lines("run", "failures")
    assert (shout["count"], shout["kind"], shout["example"]) == (2, "shout", last)
    assert (shout["error"], shout["message"]) == (
        "RuntimeError: no order …",
        "RuntimeError: no order 8",
    )
    assert divide["error"] == "ZeroDivisionError: division by zero"
    assert datetime.fromisoformat(divide["first_at"]).utcoffset() is not None
    assert [group["example"] for group in cli.lines("run", "failures", "--task", "divide")] == [
        failed
    ]
    assert cli.lines("run", "failures", "--since", "0s") == []
    cut = cli("run", "failures", "--limit", "1")
    assert (len(cut.stdout.splitlines()), cut.stderr) == (
        2,
        "there are more errors (1): use --limit\n",
    )


def test_without_failures_there_is_a_note(cli: Cli, greeted: str) -> None:
    assert cli("run", "failures").stderr == "no failed runs\n"
    assert cli.lines("run", "failures") == []
    assert cli.complaint("run", "failures", "--since", "noon", code=2).startswith("--since is a")


def test_times_have_a_zone(cli: Cli, greeted: str) -> None:
    shown = cli("run", "show", greeted).stdout
    created = next(line for line in shown.splitlines() if line.startswith("created"))
    moment = datetime.fromisoformat(created.removeprefix("created").strip())
    assert moment.utcoffset() == moment.astimezone().utcoffset()


def test_cancel_ends_a_run(cli: Cli) -> None:
    id = cli.submit("greet", "--arg", "name=x")
    assert cli("run", "cancel", id, "--reason", "enough").stdout == f"cancelled {id}\n"
    shown = cli.json("run", "show", id)
    assert (shown["state"], shown["cancel_reason"]) == ("cancelled", "enough")
    assert cli.json("run", "cancel", id) == {"id": id, "state": "cancelled"}


def test_cancel_says_that_a_run_cleans_up_first(cli: Cli, patient: Patient) -> None:
    id = patient.start("rent")
    said = cli("run", "cancel", id).stdout
    assert said.startswith(f"cancelling {id}: it cleans up first, until ")
    answer = cli.json("run", "cancel", id)
    assert (answer["id"], answer["state"]) == (id, "waiting")
    assert datetime.fromisoformat(answer["until"]).utcoffset() is not None
    assert "cleans up" in cli("run", "show", id).stdout
    assert "cancelled on the command line" in cli("why", id).stdout
    patient.work()
    assert cli.json("run", "show", id)["state"] == "cancelled"
    assert cli("run", "cancel", id).stdout == f"cancelled {id}\n"


def test_cancel_with_force_does_not_wait_for_a_cleanup(cli: Cli, patient: Patient) -> None:
    id, cleaning = patient.start("rent"), patient.start("rent")
    cli("run", "cancel", cleaning)
    said = cli("run", "cancel", "--force", id, cleaning).stdout
    assert said.splitlines() == [f"cancelled {id}", f"cancelled {cleaning}"]
    assert cli.json("run", "show", id)["state"] == "cancelled"


def test_the_sum_of_many_counts_those_that_clean_up(
    cli: Cli, patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    ids = [cli.submit("greet", "--arg", f"name={n}") for n in range(19)]
    said = cli("run", "cancel", *ids, patient.start("rent")).stdout
    assert said == "cancelled 20 runs, 1 of them after their clean-up\n"


def test_cancelling_a_run_that_has_ended_fails(cli: Cli, greeted: str) -> None:
    assert cli.complaint("run", "cancel", greeted, code=1).endswith("has ended already (success)")


def test_replay_runs_an_ended_run_again(cli: Cli, greeted: str, work: Work) -> None:
    assert cli("run", "replay", greeted, "--yes").stdout == f"replayed {greeted}\n"
    assert cli.json("run", "show", greeted)["state"] == "waiting"
    assert work() == 1
    assert cli.json("run", "replay", greeted, "--yes") == {"id": greeted, "state": "waiting"}


def test_a_run_is_held_back_and_let_go(cli: Cli, work: Work) -> None:
    id = cli.submit("greet", "--arg", "name=x")
    assert cli("run", "hold", id, "--reason", "not today").stdout == f"held {id}\n"
    assert work() == 0
    assert "an operator holds it back: not today" in cli("why", id).stdout
    assert cli.json("run", "unhold", id) == {"id": id, "state": "waiting"}
    assert id in cli.complaint("run", "unhold", id, code=1)
    assert work() == 1


def test_replaying_a_run_that_has_not_ended_fails(cli: Cli) -> None:
    id = cli.submit("greet", "--arg", "name=x")
    assert id in cli.complaint("run", "replay", id, code=1)


def test_many_ids_come_from_stdin_and_each_is_answered(cli: Cli, greeted: str) -> None:
    ids = [cli.submit("greet", "--arg", f"name={n}") for n in range(3)]
    result = cli("run", "cancel", "-", code=1, input="\n".join([*ids, greeted]))
    assert result.stdout.splitlines() == [f"cancelled {id}" for id in ids]
    assert result.stderr.startswith(f"error: {greeted}")


def test_many_ids_on_a_terminal_are_a_bar_and_a_sum(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    ids = [cli.submit("greet", "--arg", f"name={n}") for n in range(20)]
    result = cli("run", "cancel", *ids, NOBODY, code=3)
    assert result.stdout == "cancelled 20 runs\n"
    assert "21/21" in result.stderr
    assert f"no run {NOBODY}" in result.stderr


def test_failures_that_differ_exit_with_1(cli: Cli, greeted: str) -> None:
    result = cli("run", "cancel", greeted, NOBODY, code=1)
    assert len(result.stderr.splitlines()) == 2


def test_no_ids_on_stdin_is_wrong_usage(cli: Cli) -> None:
    assert cli("run", "cancel", "-", code=2, input="").stderr == "error: no ids on stdin\n"


def test_result_prints_what_a_run_returned(cli: Cli, greeted: str) -> None:
    result = cli("run", "result", greeted)
    assert (result.stdout, result.stderr) == ('"hello Bob"\n', "")
    answer = cli.json("run", "result", greeted)
    assert (answer["outcome"], answer["result"]) == ("success", "hello Bob")


def test_result_of_a_failed_run_exits_with_1(cli: Cli, failed: str) -> None:
    complaint = cli.complaint("run", "result", failed, code=1)
    assert complaint == f"{failed} failed: ZeroDivisionError: division by zero"
    answer = cli.json("run", "result", failed, code=1)
    assert answer["failure"]["message"] == "ZeroDivisionError: division by zero"


def test_result_of_a_cancelled_run_tells_the_reason(cli: Cli) -> None:
    id = cli.submit("greet", "--arg", "name=x")
    cli("run", "cancel", id, "--reason", "enough")
    assert cli.complaint("run", "result", id, code=1) == f"{id} cancelled: enough"


def test_result_of_a_run_that_goes_on_does_not_wait_by_itself(cli: Cli) -> None:
    id = cli.submit("greet", "--arg", "name=x")
    complaint = cli.complaint("run", "result", id, code=1)
    assert complaint == f"{id} has not ended: it is waiting (use --wait)"


def test_result_waits_when_told_to(cli: Cli, worker: Worker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    id = cli.submit("wait_for", "--arg", f"gate={gate}")
    with worker():
        follow(cli.url, id, "claimed")
        gate.touch()
        assert cli("run", "result", id, "--wait").stdout == '"through"\n'


def test_waiting_for_a_result_has_an_end(cli: Cli) -> None:
    id = cli.submit("greet", "--arg", "name=x")
    result = cli("run", "result", id, "--wait", "--timeout", "10ms", code=1)
    last = result.stderr.splitlines()[-1]
    why = "no live worker takes work of namespace default"
    assert last == f"error: {id} is still waiting after 10ms: {why}"


def test_events_tell_what_happened(cli: Cli, failed: str) -> None:
    header, *rows = cli("run", "events", failed).stdout.splitlines()
    assert header.split() == ["number", "at", "event", "attempt", "worker", "detail"]
    assert [" ".join(row.split()[3:5]) for row in rows[:2]] == ["claimed 1", "retry scheduled"]
    kinds = [event["kind"] for event in cli.lines("run", "events", failed)]
    assert kinds == ["claimed", "retry_scheduled", "claimed", "failed"]


def test_events_go_on_after_a_number(cli: Cli, greeted: str) -> None:
    first, second = cli.lines("run", "events", greeted)
    assert cli.lines("run", "events", greeted, "--after", str(first["seq"])) == [second]


def test_a_run_to_which_nothing_happened_has_no_events(cli: Cli) -> None:
    id = cli.submit("greet", "--arg", "name=x")
    assert cli("run", "events", id).stderr.startswith("no events")
    assert cli.lines("run", "events", id) == []


def test_following_events_ends_with_the_run(cli: Cli, greeted: str, work: Work) -> None:
    lines = cli("run", "events", greeted, "--follow").stdout.splitlines()
    assert [line.split()[3] for line in lines] == ["claimed", "completed"]
    cli("run", "replay", greeted, "--yes")
    work()
    kinds = [event["kind"] for event in cli.lines("run", "events", greeted, "-f")]
    assert kinds == ["claimed", "completed", "replayed", "claimed", "completed"]

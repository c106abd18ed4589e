"""`flowfabric submit`"""

from pathlib import Path

import pytest

from flowfabric.cli import ending
from tests.cli.terminal import APP, Cli, Worker


def test_a_submitted_run_is_told_by_its_id(cli: Cli) -> None:
    word, id = cli("submit", APP, "greet", "--arg", "name=Bob").stdout.split()
    assert word == "submitted"
    assert cli.json("run", "show", id)["payload"] == {"name": "Bob"}


def test_submitting_as_json_gives_one_document(cli: Cli) -> None:
    answer = cli.json("submit", APP, "greet", "--args", '{"name": "Bob"}')
    assert answer == {"id": answer["id"], "duplicate": False}


@pytest.mark.parametrize(
    ("words", "payload"),
    [
        (["greet", "--arg", "name=7", "--arg", "times=2"], {"name": "7", "times": 2}),
        (["greet", "--arg", "name=a=b"], {"name": "a=b"}),
        (["greet", "--args", '{"name": "x", "times": 3}', "--arg", "name=y"], None),
        (["on_day", "--arg", "day=2025-03-01"], {"day": "2025-03-01"}),
    ],
)
def test_an_argument_is_json_where_the_parameter_takes_it_and_text_elsewhere(
    cli: Cli, words: list[str], payload: dict[str, object] | None
) -> None:
    expected = payload or {"name": "y", "times": 3}
    assert cli.json("run", "show", cli.submit(*words))["payload"] == expected


def test_a_known_key_gives_the_earlier_run(cli: Cli) -> None:
    words = ("submit", APP, "greet", "--arg", "name=Bob", "--key", "k")
    first = cli.json(*words)
    assert cli.json(*words) == {"id": first["id"], "duplicate": True}
    assert cli(*words).stdout == f"{first['id']} was submitted before\n"


def test_options_of_a_submission_are_kept(cli: Cli) -> None:
    options = "--delay 1h --priority 5 --lane fast --namespace acme --tag app.env=dev --key k"
    shown = cli.json("run", "show", cli.submit("greet", "--arg", "name=x", *options.split()))
    assert shown["state"] == "delayed"
    assert shown["priority"] == 5
    assert (shown["lane"], shown["namespace"], shown["key"]) == ("fast", "acme", "k")
    assert shown["tags"] == {"app.env": "dev"}


def test_waiting_prints_the_result(cli: Cli, worker: Worker) -> None:
    with worker():
        result = cli("submit", APP, "greet", "--arg", "name=Bob", "--wait")
    assert result.stdout == '"hello Bob"\n'
    assert result.stderr.startswith("submitted 0")


def test_waiting_shows_state_and_progress(cli: Cli, worker: Worker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = ("submit", APP, "wait_for", "--arg", f"gate={gate}", "--wait", "--timeout", "1s")
    with worker():
        result = cli(*words, code=1)
        gate.touch()
    assert "active · on ada · 40 % waiting [for] the gate\n" in result.stderr
    assert "is still active after 1s" in result.stderr


def test_waiting_says_after_a_while_why_no_worker_comes(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "LOOK_EVERY", 0.001)
    words = ("submit", APP, "greet", "--arg", "name=Bob", "--wait", "--timeout", "1s")
    why = "no live worker takes work of namespace default"
    assert f"\nwaiting · {why}\n" in cli(*words, code=1).stderr


def test_waiting_on_a_terminal_has_one_line_that_changes(
    cli: Cli, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    words = ("submit", APP, "wait_for", "--arg", "gate=nowhere", "--wait", "--timeout", "1s")
    with worker():
        result = cli(*words, code=1)
    assert "40 % waiting [for] the gate" in result.stderr


def test_waiting_for_a_run_that_fails_exits_with_1_and_says_why(cli: Cli, worker: Worker) -> None:
    words = ("submit", APP, "shout", "--arg", "text=no \x1b[31mway", "--wait")
    with worker():
        result = cli(*words, code=1)
        answer = cli.json(*words, code=1)
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].endswith("failed: RuntimeError: no  [31mway")
    assert answer["outcome"] == "failed"
    assert answer["failure"] == {
        "message": "RuntimeError: no \x1b[31mway",
        "category": "handler_error",
    }
    assert answer["duplicate"] is False


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--args", "[1]"], "--args is not a JSON object"),
        (["--args", "{"], "--args is not JSON: "),
        (["--args", '{"name": "a", "name": "b"}'], "--args is not JSON: a member is named twice"),
        (["--arg", "name"], "--arg is written name=value, not 'name'"),
        (["--arg", "nam=x"], "greet has no parameter 'nam'; it takes name, times"),
        (["--arg", "name=x", "--tag", "x"], "--tag is written name=value, not 'x'"),
        (["--arg", "name=x", "--delay", "soon"], "delay is not a duration"),
        (["--arg", "name=x", "--lane", "\x01"], "lane has a non-printable"),
        (["--arg", "name=x", "--tag", "x=y"], "'x' is not a key such as 'app.tenant'"),
    ],
)
def test_a_wrong_submission_is_one_readable_line(
    cli: Cli, words: list[str], complaint: str
) -> None:
    assert cli.complaint("submit", APP, "greet", *words, code=2).startswith(complaint)


def test_an_argument_that_does_not_fit_is_named(cli: Cli) -> None:
    words = ("submit", APP, "greet", "--arg", "name=x", "--arg", "times=often")
    complaint = cli.complaint(*words, code=2)
    assert "times" in complaint
    assert complaint.endswith("it takes name, times")


def test_nothing_is_submitted_when_something_is_wrong(cli: Cli) -> None:
    cli.complaint("submit", APP, "greet", code=2)
    cli("migrate")
    assert cli.lines("run", "list") == []


def test_an_unknown_task_is_not_found_and_the_nearest_is_named(cli: Cli) -> None:
    complaint = cli.complaint("submit", APP, "gret", code=3)
    known = "checkout, divide, greet, on_day, persistent, shout, teller, wait_for"
    assert complaint == f"no task 'gret' in {APP}; did you mean 'greet'? (known: {known})"


def test_a_url_on_the_command_line_beats_the_application(cli: Cli, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    words = ("submit", APP, "greet", "--arg", "name=x", "--url", other)
    id = cli.json(*words)["id"]
    assert [run["id"] for run in cli.lines("run", "list", "--url", other)] == [id]

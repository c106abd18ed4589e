"""Going back to a step, and changing what is recorded, on the command line."""

from typing import Any

import msgspec
import pytest

from tests.cli.terminal import NOBODY, Cli, Work


def shown(cli: Cli, id: str) -> Any:
    """What is known about a run; it may contain the traceback of a step."""
    return msgspec.json.decode(cli.typed("run", "show", id, "--json").stdout)


@pytest.fixture
def bought(cli: Cli, work: Work) -> str:
    """A run with two recorded steps that has succeeded."""
    id = cli.submit("checkout", "--arg", "order=5")
    work()
    assert shown(cli, id)["state"] == "completed"
    return id


@pytest.fixture
def refused(cli: Cli, work: Work) -> str:
    """A run whose second step always raises."""
    id = cli.submit("checkout", "--arg", "order=50")
    work()
    assert shown(cli, id)["state"] == "failed"
    return id


class Keyboard:
    """A terminal whose user answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
        self.asked: list[str] = []
        self.answer = answer
        monkeypatch.setattr("flowfabric.cli.runs.confirm", self._confirm)
        monkeypatch.setattr("flowfabric.cli.runs.sys", self)
        self.stdin = self

    def isatty(self) -> bool:
        return True

    def _confirm(self, text: str, **options: Any) -> bool:
        self.asked.append(text)
        return self.answer


def test_replay_refuses_completed_runs_without_a_terminal(
    cli: Cli, bought: str, refused: str
) -> None:
    """Nothing is replayed, not even what could be."""
    message = cli.complaint("run", "replay", refused, bought, code=2)
    assert message == (
        f"run {bought} has succeeded, and a replay executes the work again; confirm with --yes"
    )
    assert shown(cli, refused)["state"] == "failed"
    cli("run", "replay", "-", input=bought, code=2)
    assert cli("run", "replay", refused).stdout == f"replayed {refused}\n"
    assert cli("run", "replay", bought, "--yes").stdout == f"replayed {bought}\n"


@pytest.mark.parametrize("answer", [True, False])
def test_replay_asks_before_it_executes_completed_runs(
    cli: Cli, bought: str, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    keyboard = Keyboard(monkeypatch, answer)
    cli("run", "replay", bought, code=0 if answer else 1)
    (asked,) = keyboard.asked
    assert bought in asked
    state = shown(cli, bought)["state"]
    assert state == ("waiting" if answer else "completed")


def test_json_is_for_scripts_and_asks_nothing(
    cli: Cli, bought: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyboard = Keyboard(monkeypatch, answer=True)
    assert "not_confirmed" in cli("run", "replay", bought, "--json", code=2).stderr
    assert keyboard.asked == []


def test_replay_from_a_step(cli: Cli, bought: str, work: Work) -> None:
    cli("run", "replay", bought, "--from-step", "charge", "--yes")
    steps = shown(cli, bought)["steps"]
    assert [step["name"] for step in steps if step["error"] is None] == ["price_of"]
    assert work() == 1
    assert shown(cli, bought)["state"] == "completed"
    message = cli.complaint("run", "replay", bought, "--from-step", "x", "--yes", code=3)
    assert "no step 'x' among the recorded ones (price_of, charge)" in message


def test_fork(cli: Cli, bought: str, work: Work) -> None:
    made = cli.json("run", "fork", bought, "--from-step", "charge", "--key", "once")
    id = made["id"]
    assert made == {
        "id": id,
        "forked_from": bought,
        "from_step": "charge",
        "duplicate": False,
    }
    again = cli("run", "fork", bought, "--from-step", "charge", "--key", "once")
    assert again.stdout == f"{id} was forked before\n"
    text = cli.typed("run", "show", id).stdout
    assert f"{bought} at charge" in text
    assert [row["id"] for row in cli.lines("run", "list", "--tag", _tag(bought))] == [id]
    work()
    assert cli("run", "result", id).stdout.strip() == "50"


def _tag(id: str) -> str:
    return f"flowfabric.forked_from={id}"


def test_a_fork_has_other_arguments_and_options(cli: Cli, bought: str, work: Work) -> None:
    words = ("--args", '{"order": 7}', "--lane", "default", "--priority", "5", "--tag", "app.a=b")
    id = cli.json("run", "fork", bought, *words)["id"]
    facts = shown(cli, id)
    assert (facts["payload"], facts["priority"], facts["tags"]["app.a"]) == ({"order": 7}, 5, "b")
    work()
    assert cli("run", "result", id).stdout.strip() == "70"
    for wrong in ("[1]", "{", "7"):
        cli.complaint("run", "fork", bought, "--args", wrong, code=2)
    assert cli.complaint("run", "fork", NOBODY, code=3) == f"no run {NOBODY}"


def test_skip_a_step_that_cannot_succeed(cli: Cli, refused: str, work: Work) -> None:
    words = ("run", "step", "skip", refused, "charge")
    assert "give its result" in cli.complaint(*words, code=2)
    assert "--result is not JSON" in cli.complaint(*words, "--result", "{", code=2)
    done = cli(*words, "--result", '"by hand"', "--reason", "paid", "--by", "ada").stdout
    assert done == f"charge is skipped in run {refused}; it is not recorded so far\n"
    cli("run", "replay", refused)
    work()
    assert shown(cli, refused)["state"] == "completed"
    assert 'skipped: "by hand"' in cli.typed("run", "show", refused).stdout
    events = cli.lines("run", "events", refused)
    (event,) = [event for event in events if event["kind"] == "step_skipped"]
    assert (event["detail"]["by"], event["detail"]["reason"]) == ("ada", "paid")


def test_rename_a_step(cli: Cli, bought: str) -> None:
    words = ("run", "step", "rename", bought)
    assert cli(*words, "charge", "pay", "--reason", "clearer").stdout == "renamed to pay\n"
    assert cli(*words, "pay", "pay").stdout.startswith("renamed to nothing")
    assert cli.json(*words, "pay", "charge") == {"id": bought, "steps": ["charge"]}
    assert "no step 'x'" in cli.complaint(*words, "x", "y", code=3)
    (first, _) = (
        event for event in cli.lines("run", "events", bought) if event["kind"] == "step_renamed"
    )
    assert first["detail"]["by"] != ""

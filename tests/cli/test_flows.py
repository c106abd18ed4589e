"""`flowfabric flow …`"""

import asyncio
from collections.abc import Awaitable, Callable
from io import StringIO
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace
from rich.console import Console

from flowfabric import AnyOf, Fabric
from flowfabric.cli.flows import print_flows
from flowfabric.cli.output import Screen
from flowfabric.core.base.time import Millis
from flowfabric.core.flow.model import Flow, FlowState
from flowfabric.worker.api.flow import FlowBuilder
from tests.cli import sample
from tests.cli.graphs import parsed
from tests.cli.terminal import Cli, Work, same_tasks

NO_FLOW = "01a1e105-5216-7000-b234-22890e43ab8b"

Build = Callable[[FlowBuilder], None]


@pytest.fixture
def declare(cli: Cli) -> Callable[..., str]:
    """Declares a flow of the sample's tasks; returns its id."""

    def declare(name: str, build: Build, **options: object) -> str:
        async def work(fabric: Fabric) -> str:
            async with fabric.flow(name, **options) as flow:  # type: ignore[arg-type]
                build(flow)
            return str(flow.id)

        return asyncio.run(_within(cli.url, work))

    return declare


@pytest.fixture
def finish(work: Work) -> Work:
    """Runs everything, and everything that comes of it; returns how many were run."""

    def finish() -> int:
        done = 0
        while count := work():
            done += count
        return done

    return finish


async def _within(url: str, work: Callable[[Fabric], Awaitable[str]]) -> str:
    async with same_tasks(url) as fabric:
        return await work(fabric)


def chain(flow: FlowBuilder) -> None:
    first = flow.add(sample.greet, "ada", name="first")
    flow.add(sample.greet, "bob", after=first, name="second")


def failing(flow: FlowBuilder) -> None:
    """One divides by zero; what comes after it is skipped, except the cleanup."""
    good = flow.add(sample.divide, 4, 2, name="good")
    bad = flow.add(sample.divide, 1, 0, name="bad")
    flow.add(sample.greet, "all", after=[good, bad], name="publish")
    flow.add(sample.greet, "you", after=bad, on="failure", name="cleanup")


def racing(flow: FlowBuilder) -> None:
    runners = [flow.add(sample.greet, str(n), name=f"runner {n}") for n in range(3)]
    flow.add(sample.greet, "winner", after=runners, join=AnyOf(), name="winner")


def test_the_list_tells_what_became_of_flows(
    cli: Cli, finish: Work, declare: Callable[..., str]
) -> None:
    old = declare("nightly", failing)
    finish()
    new = declare("hourly", chain)
    header, first, second = cli("flow", "list").stdout.splitlines()
    assert header.split() == ["id", "kind", "state", "members", "ended", "age", "took"]
    assert first.split()[:4] == [new, "hourly", "running", "2"]
    assert second.split()[:4] == [old, "nightly", "failed", "4"]
    assert all(words in second for words in ("2 completed", "1 failed", "1 skipped"))


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_long_kind_breaks_no_line_of_the_list(width: int) -> None:
    """A narrow terminal shows fewer columns; all it shows is whole but for the kind"""
    screen, printed = Screen(), StringIO()
    screen.out = Console(file=printed, width=width, markup=False, highlight=False)
    long = Flow(id=UUID(NO_FLOW), kind="reports." * 12, state=FlowState.COMPLETED, nodes=100_000)
    short = replace(long, kind="nightly", ended={"success": 99_000, "skipped": 1_000})
    print_flows(screen, [long, short], Millis(90_000_000))
    header, first, *rest = (line.rstrip() for line in printed.getvalue().splitlines())
    assert header.split()[:3] == ["id", "kind", "state"]
    assert first.split()[0] == rest[0].split()[0] == NO_FLOW
    assert first.split()[1].startswith("reports")
    assert first.split()[1].endswith("…")
    assert rest[0].split()[1:3] == ["nightly", "completed"]
    assert len(rest) == (2 if width == 100 else 1)  # only endings may need a second line


def test_the_list_is_filtered(cli: Cli, declare: Callable[..., str]) -> None:
    mine = declare("hourly", chain, tags={"app.tenant": "acme"})
    other = declare("nightly", chain)

    def ids(*words: str) -> list[str]:
        return [flow["id"] for flow in cli.lines("flow", "list", *words)]

    assert ids() == [other, mine]
    assert ids("--kind", "hourly") == [mine]
    assert ids("--tag", "app.tenant=acme") == [mine]
    assert ids("--limit", "1") == [other]
    assert ids("--state", "running", "--state", "failed") == [other, mine]
    assert ids("--state", "failed") == []
    assert ids("--namespace", "elsewhere") == []
    assert cli("flow", "list", "--kind", "yearly").stderr == "no flows\n"


@pytest.mark.parametrize("words", [["--state", "tired"], ["--tag", "acme"], ["--limit", "0"]])
def test_a_filter_that_cannot_be_understood_is_refused(cli: Cli, words: list[str]) -> None:
    cli("migrate")
    cli("flow", "list", *words, code=2)


def test_show_tells_what_a_flow_waits_for(cli: Cli, declare: Callable[..., str]) -> None:
    id = declare("race", racing, tags={"app.tenant": "acme"})
    shown = cli("flow", "show", id).stdout
    facts = {line.split()[0]: line for line in shown.splitlines() if line}
    assert facts["state"].split() == ["state", "running"]
    assert facts["members"].split("members")[1].strip() == "4, 3 edges"
    assert "3 waiting, 1 waiting for others" in facts["living"]
    assert "app.tenant=acme" in facts["tags"]
    assert facts["winner"].split() == ["winner", "any", "of", "3", "none", "3"]
    assert "{fp:" not in shown


def test_show_as_a_document(cli: Cli, finish: Work, declare: Callable[..., str]) -> None:
    id = declare("nightly", failing)
    facts = cli.json("flow", "show", id)
    assert (facts["id"], facts["state"], facts["nodes"]) == (id, "running", 4)
    assert facts["states"] == {"waiting": 2, "waiting_children": 2}
    assert {join["name"] for join in facts["joins"]} == {"publish", "cleanup"}
    assert {busy["name"] for busy in facts["busy"]} == {"good", "bad"}
    finish()
    facts = cli.json("flow", "show", id)
    assert facts["state"] == "failed"
    assert facts["states"] == {"completed": 2, "failed": 1, "skipped": 1}
    assert facts["joins"] == facts["busy"] == []
    assert facts["ended"] == {"success": 2, "failed": 1, "skipped": 1}


def test_show_does_not_drown_people(cli: Cli, declare: Callable[..., str]) -> None:
    def many(flow: FlowBuilder) -> None:
        for n in range(50):
            flow.add(sample.greet, str(n))

    shown = cli("flow", "show", declare("many", many)).stdout
    assert "… 30 more" in shown
    assert len(shown.splitlines()) < 40


def test_cancel_ends_the_members(cli: Cli, finish: Work, declare: Callable[..., str]) -> None:
    id = declare("nightly", chain)
    assert cli("flow", "cancel", id, "--reason", "a [bad] idea").stdout == f"cancelled flow {id}\n"
    assert finish() == 0
    facts = cli.json("flow", "show", id)
    assert (facts["state"], facts["ended"]) == ("cancelled", {"cancelled": 2})
    assert "a [bad] idea (cancel_all)" in cli("flow", "show", id).stdout


def test_cancel_again_tells_the_first_reason(cli: Cli, declare: Callable[..., str]) -> None:
    id = declare("nightly", chain)
    cli("flow", "cancel", id, "--reason", "first")
    result = cli("flow", "cancel", id, "--reason", "second")
    assert result.stderr == "it was cancelled before: first (cancel_all)\n"


def test_cancel_may_leave_members_alone(
    cli: Cli, finish: Work, declare: Callable[..., str]
) -> None:
    id = declare("nightly", chain)
    answer = cli.json("flow", "cancel", id, "--policy", "flow_only")
    assert (answer["policy"], answer["remaining"]) == ("flow_only", [])
    assert finish() == 2
    cli("flow", "cancel", id, "--policy", "gently", code=2)


def test_cancel_without_waiting_leaves_members_to_the_workers(
    cli: Cli, finish: Work, declare: Callable[..., str]
) -> None:
    id = declare("nightly", chain)
    answer = cli.json("flow", "cancel", id, "--no-wait")
    assert (answer["scheduled"], len(answer["remaining"])) == (True, 2)
    assert finish() == 0
    assert cli.json("flow", "show", id)["states"] == {"cancelled": 2}


def test_cancel_of_a_flow_that_has_ended_fails(
    cli: Cli, finish: Work, declare: Callable[..., str]
) -> None:
    id = declare("nightly", chain)
    finish()
    assert "completed" in cli.complaint("flow", "cancel", id, code=1)


def test_replay_runs_what_did_not_succeed(
    cli: Cli, finish: Work, declare: Callable[..., str]
) -> None:
    id = declare("nightly", failing)
    finish()
    assert cli("flow", "replay", id).stdout == f"replayed 2 members of flow {id}\n"
    facts = cli.json("flow", "show", id)
    assert facts["state"] == "running"
    assert facts["states"] == {"waiting": 1, "waiting_children": 1, "completed": 2}
    finish()
    answer = cli.json("flow", "replay", id)
    assert (answer["id"], len(answer["replayed"])) == (id, 2)


def test_replay_of_a_good_flow_does_nothing(
    cli: Cli, finish: Work, declare: Callable[..., str]
) -> None:
    id = declare("nightly", chain)
    finish()
    assert cli("flow", "replay", id).stdout.startswith("nothing to replay")


def test_the_graph_is_text_in_a_pipe(cli: Cli, finish: Work, declare: Callable[..., str]) -> None:
    id = declare("nightly", failing)
    finish()
    shown = cli("flow", "graph", id).stdout
    assert "\x1b" not in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "✗ bad" in shown
    assert "↷ publish" in shown
    assert "! on failure" in shown


def test_the_graph_as_mermaid_and_svg(
    cli: Cli, declare: Callable[..., str], tmp_path: Path
) -> None:
    id = declare("nightly", failing)
    text = cli("flow", "graph", id, "--format", "mermaid").stdout
    assert text.startswith("graph TD\n")
    assert '-. "on failure" .->' in text
    file = tmp_path / "flow.svg"
    result = cli("flow", "graph", id, "--format", "svg", "--output", str(file))
    assert result.stdout == ""
    assert result.stderr == f"written to {file}\n"
    titles = [each.text for each in parsed(file.read_text()).iter() if each.text]
    assert "Flow nightly: running" in titles


def test_the_graph_as_a_document(cli: Cli, declare: Callable[..., str]) -> None:
    facts = cli.json("flow", "graph", declare("nightly", failing))
    assert facts["flow"]["kind"] == "nightly"
    assert {member["name"] for member in facts["members"]} == {
        "good",
        "bad",
        "publish",
        "cleanup",
    }
    assert sorted(edge["edge"]["on"] for edge in facts["edges"]) == [
        "on_failure",
        "on_success",
        "on_success",
    ]


def test_a_file_that_cannot_be_written_is_told(
    cli: Cli, declare: Callable[..., str], tmp_path: Path
) -> None:
    id = declare("nightly", chain)
    path = str(tmp_path / "nowhere" / "flow.svg")
    complaint = cli.complaint("flow", "graph", id, "-o", path, code=1)
    assert complaint == f"{path} cannot be written: No such file or directory"


@pytest.mark.parametrize("command", ["show", "cancel", "replay", "graph"])
def test_a_flow_that_does_not_exist_is_not_found(cli: Cli, command: str) -> None:
    cli("migrate")
    assert cli.complaint("flow", command, NO_FLOW, code=3) == f"no flow {NO_FLOW}"
    complaint = cli.complaint("flow", command, "seven", code=2)
    assert complaint.startswith("'seven' is not a flow's id")
    run = "{fp:86}:01a1e105-5216-7000-b234-22890e43ab8b"
    assert "is not a flow's id" in cli.complaint("flow", command, run, code=2)


def test_errors_are_documents_for_programs(cli: Cli) -> None:
    cli("migrate")
    result = cli("flow", "show", NO_FLOW, "--json", code=3)
    assert result.stderr.startswith('{"error":"not_found"')


@pytest.mark.parametrize("command", ["list", "show", "cancel", "replay", "graph"])
def test_every_command_has_a_help(cli: Cli, command: str) -> None:
    assert "--url" in cli("flow", command, "--help").stdout

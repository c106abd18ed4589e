"""`flowfabric lanes …`"""

import getpass

from tests.cli.terminal import Cli, Work


def test_lanes_are_listed_with_their_runs(cli: Cli, work: Work) -> None:
    cli.submit("greet", "--arg", "name=x")
    work()
    cli.submit("wait_for", "--arg", "gate=x")
    header, *rows = cli("lanes", "list").stdout.splitlines()
    assert header.split() == ["lane", "waiting", "completed"]
    assert [row.split() for row in rows] == [["default", "0", "1"], ["slow", "1", "0"]]
    default, slow = cli.lines("lanes", "list")
    assert (default["lane"], default["runs"]["completed"]) == ("default", 1)
    assert (slow["lane"], slow["runs"]["waiting"], slow["capped"]) == ("slow", 1, [])


def test_a_store_without_lanes_says_so(cli: Cli) -> None:
    cli("migrate")
    assert cli("lanes", "list").stderr.startswith("no lanes")
    assert cli.lines("lanes", "list") == []


def test_a_paused_lane_rests_until_it_is_resumed(cli: Cli, work: Work) -> None:
    cli.submit("greet", "--arg", "name=x")
    assert cli("lanes", "pause", "default").stdout == "paused default\n"
    assert work() == 0
    assert cli("lanes", "resume", "default").stdout == "resumed default\n"
    assert work() == 1


def test_several_lanes_are_paused_at_once_and_it_is_known_by_whom(cli: Cli) -> None:
    """The state of a lane tells who decided it, when and why."""
    cli.submit("greet", "--arg", "name=x")
    words = ("--by", "ada", "--reason", "the bill")
    answers = cli.lines("lanes", "pause", "default", "slow", *words)
    assert [answer["lane"] for answer in answers] == ["default", "slow"]
    printed = answers[0]
    assert (printed["state"], printed["by"], printed["reason"]) == ("paused", "ada", "the bill")
    assert printed["at"].endswith("Z")
    again = cli("lanes", "pause", "slow", "--by", "bob").stdout
    assert again.startswith("slow is paused already (by ada, 2")
    assert again.endswith(", the bill)\n")
    rows = cli("lanes", "list").stdout.splitlines()
    assert rows[1].startswith("default  paused (by ada, 2")
    shown = cli("lanes", "show", "slow").stdout
    assert "reason   the bill" in shown
    assert cli("lanes", "drain", "slow").stdout == "draining slow\n"
    printed = cli.json("lanes", "resume", "slow")
    assert (printed["state"], printed["by"]) == ("open", getpass.getuser())
    assert cli("lanes", "resume", "slow").stdout.startswith("slow is open already (by ")


def test_a_lane_has_a_weight_and_a_limit(cli: Cli, work: Work) -> None:
    """Set, shown, and taken away."""
    cli.submit("greet", "--arg", "name=x")
    words = ("lanes", "set", "default")
    assert cli(*words, "--weight", "3", "--concurrency", "10").stdout == (
        "default: weight 3, 10 at once\n"
    )
    header, row = cli("lanes", "list").stdout.splitlines()
    assert header.split() == ["lane", "weight", "at", "once", "waiting"]
    assert row.split() == ["default", "3", "10", "1"]
    printed = cli.json(*words, "--concurrency", "0")
    assert (printed["weight"], printed["concurrency"]) == (3, None)
    assert cli.json("lanes", "show", "default")["runs"]["waiting"] == 1
    assert cli.complaint(*words, code=2) == "neither --weight nor --concurrency is given"
    assert cli.complaint(*words, "--weight", "0", code=2) == (
        "the weight of a lane must be 1 to 1000"
    )
    assert cli.complaint("lanes", "show", "fastt", code=3) == "no lane fastt"


def test_a_draining_lane_begins_nothing(cli: Cli, work: Work) -> None:
    cli("migrate")
    cli("lanes", "drain", "default")
    cli.submit("greet", "--arg", "name=x")
    assert work() == 0
    cli("lanes", "resume", "default")
    assert work() == 1


def test_pausing_an_unused_lane_is_worth_a_note(cli: Cli) -> None:
    cli("migrate")
    result = cli("lanes", "pause", "fastt")
    assert result.stdout == "paused fastt\n"
    assert result.stderr == "nothing has been submitted to lane 'fastt' so far\n"


def test_a_lane_that_cannot_be_is_wrong_usage(cli: Cli) -> None:
    cli("migrate")
    assert cli.complaint("lanes", "pause", "x" * 65, code=2).startswith("lane has 65 bytes")

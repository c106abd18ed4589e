"""`flowfabric lanes …`"""

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


def test_several_lanes_are_paused_at_once(cli: Cli) -> None:
    cli.submit("greet", "--arg", "name=x")
    answers = cli.lines("lanes", "pause", "default", "slow")
    assert answers == [{"lane": "default", "paused": True}, {"lane": "slow", "paused": True}]
    assert cli.lines("lanes", "resume", "slow") == [{"lane": "slow", "paused": False}]


def test_pausing_a_lane_nobody_used_is_worth_a_note(cli: Cli) -> None:
    cli("migrate")
    result = cli("lanes", "pause", "fastt")
    assert result.stdout == "paused fastt\n"
    assert result.stderr == "nothing was submitted to lane 'fastt' so far\n"


def test_a_lane_that_cannot_be_is_wrong_usage(cli: Cli) -> None:
    cli("migrate")
    assert cli.complaint("lanes", "pause", "x" * 65, code=2).startswith("lane has 65 bytes")

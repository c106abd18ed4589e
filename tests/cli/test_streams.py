"""The output of a run on the command line."""

import msgspec
import pytest

from tests.cli.terminal import NOBODY, Cli, Work


@pytest.fixture
def told(cli: Cli, work: Work) -> str:
    """A run that has emitted text, a document, bytes and a summary, in two attempts."""
    id = cli.submit("teller")
    work()
    return id


def test_stream_shows_all_attempts(cli: Cli, told: str) -> None:
    lines = cli("run", "stream", told).stdout.splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == [
        "1  stdout  hello",
        '1  token  {"n":1}',
        "1  event  (2 bytes)",
        '1  event  {"done":1}',
        "2  event  again",
    ]


def test_stream_of_one_attempt_as_json(cli: Cli, told: str) -> None:
    lines = cli("run", "stream", told, "--attempt", "1", "--json").stdout.splitlines()
    frames = [msgspec.json.decode(line) for line in lines]
    assert [frame["value"] for frame in frames] == [
        "hello\n",
        {"n": 1},
        {"base64": "AP8="},
        {"done": 1},
    ]
    assert [frame["mode"] for frame in frames] == ["durable", "best_effort", "durable", "summary"]
    after = frames[1]["cursor"]
    rest = cli("run", "stream", told, "--after", after).stdout.splitlines()
    assert len(rest) == 3
    kept = cli("run", "stream", told, "--durable", "--json").stdout.splitlines()
    assert len(kept) == 4


def test_stream_follows_to_the_end(cli: Cli, told: str) -> None:
    assert len(cli("run", "stream", told, "--follow").stdout.splitlines()) == 5


def test_summary(cli: Cli, told: str) -> None:
    assert msgspec.json.decode(cli("run", "summary", told).stdout) == {"done": 1}
    assert cli("run", "summary", told, "--json").stdout == '{"done":1}\n'
    assert "no summary" in cli.complaint("run", "summary", told, "--attempt", "2", code=3)


def test_a_run_without_output(cli: Cli, work: Work) -> None:
    id = cli.submit("greet", "--arg", "name=Ada")
    found = cli("run", "stream", id)
    assert found.stdout == ""
    assert "no output" in found.stderr
    assert cli("run", "stream", id, "--json").stdout == ""


def test_what_is_asked_wrongly(cli: Cli, told: str) -> None:
    cli("run", "stream", NOBODY, code=3)
    cli("run", "stream", told, "--attempt", "0", code=2)
    cli("run", "stream", told, "--attempt", "9", code=3)
    assert "not a cursor" in cli.complaint("run", "stream", told, "--after", "x", code=2)

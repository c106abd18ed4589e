"""`flowfabric migrate`, `flowfabric version`, and how stores are reached."""

import contextlib
import re
from pathlib import Path

import pytest

from flowfabric.core.base.errors import Overloaded
from flowfabric.engine.execution.views import Views
from flowfabric.store.open import shown_url
from tests.cli.terminal import APP, Cli

SECRET = "hunter2"
UNREACHABLE = f"postgresql://me:{SECRET}@127.0.0.1:1/work"


@pytest.mark.inside
def test_migrate_makes_a_database_and_tells_its_version(cli: Cli, tmp_path: Path) -> None:
    printed = cli("migrate").stdout
    assert re.fullmatch(rf"{re.escape(cli.url)} is at schema version \d+\n", printed)
    assert (tmp_path / "work.db").exists()
    assert cli.json("migrate").keys() == {"url", "version"}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///work.db", "sqlite:////srv/shop/work.db"),
        ("sqlite:////var/lib/work.db", "sqlite:////var/lib/work.db"),
        ("sqlite://:memory:", "sqlite://:memory:"),
        (f"postgresql://me:{SECRET}@host/db", "postgresql://me:***@host/db"),
    ],
)
def test_people_see_where_a_store_is(url: str, shown: str, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        assert shown_url(url) == shown.replace("/srv/shop", str(tmp_path))


def test_version_names_the_release(cli: Cli) -> None:
    answer = cli.json("version")
    assert answer.keys() == {"version", "python", "sqlite"}
    assert cli("version").stdout.startswith(f"flowfabric {answer['version']} ")


@pytest.mark.inside
def test_looking_makes_no_database(cli: Cli, tmp_path: Path) -> None:
    complaint = cli.complaint("run", "list", code=4)
    assert complaint.startswith(f"there is no database at {tmp_path / 'work.db'}")
    assert not (tmp_path / "work.db").exists()


@pytest.mark.inside
def test_without_a_store_nothing_can_be_done(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWFABRIC_URL")
    expected = "no store: give --url or set FLOWFABRIC_URL"
    for words in (("run", "list"), ("lanes", "list"), ("schedules", "list")):
        assert cli.complaint(*words, code=2) == expected


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        (f"oracle://me:{SECRET}@host/db", "'oracle' is not a known store"),
        (f"me:{SECRET}@host", "that is not the URL of a store"),
        ("sqlite://work.db", "a file needs three slashes"),
    ],
)
def test_a_wrong_url_is_one_readable_line(cli: Cli, url: str, complaint: str) -> None:
    for words in (("run", "list"), ("migrate",)):
        answer = cli.complaint(*words, "--url", url, code=2)
        assert answer.startswith(complaint)
        assert SECRET not in answer


@pytest.mark.parametrize(
    "words",
    [
        ("run", "list"),
        ("lanes", "list"),
        ("migrate",),
        ("worker", APP),
        ("submit", APP, "greet", "--arg", "name=x"),
    ],
)
def test_a_store_that_does_not_answer_is_unavailable(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli(*words, "--url", UNREACHABLE, code=4)
    assert result.stdout == ""
    assert SECRET not in result.output


def test_a_path_where_no_database_can_be_is_unavailable(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/nowhere/work.db"
    assert "does not exist" in cli.complaint("migrate", "--url", url, code=4)


def test_a_path_that_the_system_refuses_is_one_readable_line(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/{'long' * 100}/work.db"
    for words in (("run", "list"), ("migrate",), ("doctor",)):
        assert "File name too long" in cli.complaint(*words, "--url", url, code=4)


@pytest.mark.inside
def test_an_error_in_json_has_a_stable_word(cli: Cli) -> None:
    result = cli("run", "list", "--json", code=4)
    assert result.stdout == ""
    assert result.stderr.startswith('{"error":"no_database","message":"there is no database')


@pytest.mark.inside
def test_an_overloaded_store_counts_as_unavailable(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def overloaded(*_: object) -> None:
        raise Overloaded("the queue is full", retry_after=1.0)

    cli("migrate")
    monkeypatch.setattr(Views, "list", overloaded)
    assert cli.complaint("run", "list", code=4) == "overloaded: the queue is full"


@pytest.mark.inside
def test_debug_shows_where_an_error_came_from(cli: Cli) -> None:
    result = cli.typed("run", "list", "--debug", code=1)
    assert result.exception is not None
    assert "there is no database" in str(result.exception)


@pytest.mark.parametrize("command", ["migrate", "doctor", "prove"])
def test_help_offers_a_server_only_where_one_will_do(cli: Cli, command: str) -> None:
    assert "FLOWFABRIC_TOKEN" in cli("run", "list", "--help").stdout
    assert "FLOWFABRIC_TOKEN" not in cli(command, "--help").stdout


def test_help_tells_the_exit_codes(cli: Cli) -> None:
    shown = " ".join(cli("--help").stdout.split())
    for part in ("0 success", "1 the run did not succeed", "2 wrong usage", "3 not found", "4 the"):
        assert part in shown


def test_wrong_words_are_wrong_usage(cli: Cli) -> None:
    for words in (("run", "list", "--limit", "none"), ("run", "show"), ("dance",)):
        assert cli(*words, code=2).stdout == ""

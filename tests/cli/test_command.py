"""What `@command` does for every command, and lists that are read page by page."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
import pytest
from typer import Argument, Option, Typer
from typer.testing import CliRunner

from flowfabric.cli import table
from flowfabric.cli.application import Application
from flowfabric.cli.command import command, help_of
from flowfabric.cli.errors import ExitCode, Root, usage
from flowfabric.cli.output import Screen
from flowfabric.cli.table import Table, pages
from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric
from tests.cli.terminal import APP, Cli


def refuse(text: str) -> str:
    raise usage(f"not {text}")


@pytest.fixture
def app() -> Typer:
    app = Typer(cls=Root)

    @command(app)
    async def look(
        fabric: Fabric, engine: Engine, screen: Screen, word: Annotated[str, Argument()]
    ) -> ExitCode:
        """Looks."""
        same = await fabric.engine() is engine
        screen.answer({"word": word, "same": same}, f"{word} {same}")
        return ExitCode.NOT_FOUND

    @command(app)
    async def mine(application: Application, screen: Screen) -> None:
        screen.line(f"{application.name} {sorted(application.fabric.tasks)[0]}")

    @command(app, "check-it")
    async def check(screen: Screen, word: Annotated[str, Option(parser=refuse)] = "") -> None:
        screen.line("checked")

    return app


def test_a_command_gets_the_open_store_and_its_code_is_the_exit_code(app: Typer, cli: Cli) -> None:
    cli("migrate")
    plain = CliRunner().invoke(app, ["look", "here"])
    assert (plain.exit_code, plain.stdout) == (3, "here True\n")
    printed = CliRunner().invoke(app, ["look", "here", "--json"])
    assert (printed.exit_code, printed.stdout) == (3, '{"word":"here","same":true}\n')


def test_what_is_wrong_with_an_option_is_json_too(app: Typer) -> None:
    for words in (["look"], ["look", "here", "--bogus"], ["nothing"]):
        result = CliRunner().invoke(app, [*words, "--json"])
        assert (result.exit_code, result.stdout) == (2, "")
        assert msgspec.json.decode(result.stderr)["error"] == "usage"
        assert "Usage:" in CliRunner().invoke(app, words).stderr


def test_a_command_gets_the_application_by_its_name(app: Typer, cli: Cli) -> None:
    result = CliRunner().invoke(app, ["mine", APP])
    assert (result.exit_code, result.stdout) == (0, f"{APP} checkout\n")


def test_only_what_needs_a_store_asks_for_one(app: Typer) -> None:
    def options(name: str) -> list[str]:
        text = CliRunner().invoke(app, [name, "--help"]).output
        return [option for option in ("--url", "--json", "--debug") if option in text]

    assert options("look") == options("mine") == ["--url", "--json", "--debug"]
    assert options("check-it") == ["--json", "--debug"]


def test_help_has_no_line_breaks_of_the_source() -> None:
    """They stand at other places than the end of a terminal's line."""

    async def explained() -> None:
        """What it does.

        It goes on
        below.

        And on.
        """

    assert help_of(explained) == "What it does.\n\nIt goes on below.\n\nAnd on."


def test_a_wrong_argument_is_told_as_json_wherever_the_option_stands(app: Typer) -> None:
    result = CliRunner().invoke(app, ["check-it", "--word", "x", "--json"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == '{"error":"usage","message":"not x"}\n'


@pytest.mark.parametrize(
    ("limit", "asked"), [(None, [3, 3, 3, 3]), (4, [3, 1]), (6, [3, 3]), (9, [3, 3, 3, 2])]
)
def test_a_list_is_read_page_by_page(
    limit: int | None, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "PAGE", 3)
    sizes: list[int] = []

    async def fetch(after: int | None, size: int) -> Sequence[int]:
        sizes.append(size)
        first = 0 if after is None else after + 1
        return range(first, min(first + size, 7))

    async def collect() -> list[int]:
        return [number async for number in pages(fetch, lambda number: number, limit)]

    assert asyncio.run(collect()) == list(range(7))[:limit]
    assert sizes == asked


def test_a_table_that_is_a_part_of_a_page_has_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = Table[int](row=lambda number: [("number", str(number))])
    numbers.below(Screen(), [])
    assert capsys.readouterr().out == ""
    numbers.below(Screen(), [1, 2, 3], most=2)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["", "number", "1", "2", "… 1 more"]

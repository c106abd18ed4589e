"""`flowfabric schedules …`"""

import asyncio
import re
from typing import Any

import pytest

from tests.cli.terminal import Cli, Work, same_tasks


@pytest.fixture
def declared(url: str) -> None:
    """A cron and an interval, as an application declares them."""

    async def put() -> None:
        async with same_tasks(url) as fabric:
            greet, divide = fabric.get_task("greet"), fabric.get_task("divide")
            berlin: dict[str, Any] = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
            await fabric.schedules.put("nightly", greet, args=("ada",), **berlin)
            await fabric.schedules.put("often", divide, args=(1, 2), every="90m", lane="slow")

    asyncio.run(put())


MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d"


@pytest.mark.usefixtures("declared")
def test_schedules_are_listed_by_name(cli: Cli) -> None:
    header, nightly, often = cli("schedules", "list").stdout.splitlines()
    assert header.split() == ["name", "task", "when", "time", "zone", "next", "last"]
    assert re.match(rf"nightly +greet +30 2 \* \* \* +Europe/Berlin +{MOMENT}$", nightly.rstrip())
    assert re.match(rf"often +divide +every 1h30m +{MOMENT}$", often.rstrip())
    first, second = cli.lines("schedules", "list")
    assert (first["name"], first["cron"], first["payload"]) == (
        "nightly",
        "30 2 * * *",
        {"name": "ada"},
    )
    assert (second["name"], second["every"], second["lane"]) == ("often", 5_400_000, "slow")
    assert second["next_at"].endswith("Z")


def test_a_store_without_schedules_says_so(cli: Cli) -> None:
    cli("migrate")
    assert cli("schedules", "list").stderr.startswith("no schedules")
    assert cli.lines("schedules", "list") == []


@pytest.mark.usefixtures("declared")
def test_one_schedule_is_shown(cli: Cli) -> None:
    lines = cli("schedules", "show", "often").stdout.splitlines()
    shown = dict(line.strip().split(maxsplit=1) for line in lines)
    assert (shown["task"], shown["when"], shown["lane"]) == ("divide", "every 1h30m", "slow")
    assert "last" not in shown
    assert shown["payload"] == '{"a":1,"b":2}'
    assert "max_retries" in shown["policy"]
    assert cli.json("schedules", "show", "nightly")["timezone"] == "Europe/Berlin"


@pytest.mark.usefixtures("declared")
def test_schedules_are_paused_and_resumed(cli: Cli) -> None:
    assert cli("schedules", "pause", "often", "nightly").stdout == "paused often\npaused nightly\n"
    assert cli("schedules", "list").stdout.count("paused") == 2
    assert cli.json("schedules", "show", "often")["paused"]
    resumed = cli("schedules", "resume", "often").stdout
    assert re.fullmatch(rf"resumed often, next {MOMENT}\n", resumed)
    (answer,) = cli.lines("schedules", "resume", "nightly")
    assert (answer["name"], answer["paused"]) == ("nightly", False)


@pytest.mark.usefixtures("declared")
def test_a_triggered_schedule_gives_a_run(cli: Cli, work: Work) -> None:
    id = cli("schedules", "trigger", "nightly").stdout.strip()
    other = cli.json("schedules", "trigger", "often")
    assert other["name"] == "often"
    assert work() == 2
    assert cli.json("run", "result", id)["result"] == "hello ada"
    assert cli.json("run", "result", other["id"])["result"] == 0.5


@pytest.mark.usefixtures("declared")
def test_schedules_are_removed(cli: Cli) -> None:
    assert cli("schedules", "remove", "often").stdout == "removed often\n"
    assert cli.lines("schedules", "remove", "nightly") == [{"name": "nightly", "removed": True}]
    assert cli.lines("schedules", "list") == []


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "trigger", "remove"])
def test_an_unknown_schedule_is_not_found(cli: Cli, verb: str) -> None:
    cli("migrate")
    assert cli.complaint("schedules", verb, "nightly", code=3) == "no schedule nightly"


@pytest.mark.inside
def test_without_a_database_there_is_nothing_to_look_at(cli: Cli) -> None:
    assert "there is no database" in cli.complaint("schedules", "list", code=4)

"""`flowfabric quotas …`"""

import asyncio
from collections.abc import Callable

import pytest

from flowfabric import Fabric
from tests.cli.terminal import Cli


def submit(url: str, customers: str) -> None:
    """Runs of an application without a worker: a run keeps its slot."""

    async def run() -> None:
        async with Fabric(url) as fabric:

            @fabric.task(quotas=["api"], concurrency=2, concurrency_key="customer")
            async def call(customer: str) -> None: ...

            @fabric.task()
            async def other() -> None: ...

            await call.submit_many(list(customers))
            await other.with_options(quotas={"api": "eve"}).submit()

    asyncio.run(run())


@pytest.fixture
def wait_for(cli: Cli) -> Callable[[str], None]:
    cli("migrate")
    return lambda customers: submit(cli.url, customers)


def test_a_quota_is_made_changed_and_deleted(cli: Cli) -> None:
    """C-T96: made, changed limit by limit, deleted."""
    cli("migrate")
    assert cli("quotas", "list").stderr.startswith("no quotas: a task declares one")
    words = ("quotas", "set", "api")
    assert cli(*words, "--rate", "100/m", "--concurrency", "5").stdout == "api: 5 at once, 100/m\n"
    assert cli(*words, "--rate", "7/90s").stdout == "api: 5 at once, 7/90s\n"
    assert cli(*words, "--concurrency", "0").stdout == "api: 7/90s\n"
    printed = cli.json(
        *words, "--concurrency-per-key", "1", "--rate-per-key", "2/s", "--rate", "none"
    )
    assert printed["rate"] is None
    rate = {"count": 2, "window": 1000, "smooth": False}
    assert (printed["concurrency_per_key"], printed["rate_per_key"]) == (1, rate)
    assert cli(*words, "--rate", "5/m smooth").stdout.endswith("5/m smooth, 2/s per key\n")
    cli(*words, "--rate", "none")
    row = cli("quotas", "list").stdout.splitlines()[1]
    assert row.split() == ["api", "1", "2/s", "0", "0", "0"]
    assert "next start" not in cli("quotas", "show", "api").stdout
    per_key = ("--concurrency-per-key", "0", "--rate-per-key", "none")
    assert cli(*words, *per_key).stdout == "api: no limit\n"
    assert cli("quotas", "delete", "api").stdout == "deleted api\n"
    assert cli.complaint("quotas", "delete", "api", code=3) == "no quota api"
    assert cli.lines("quotas", "list") == []


@pytest.mark.inside
def test_a_quota_tells_who_has_a_slot_and_who_waits(
    cli: Cli, wait_for: Callable[[str], None]
) -> None:
    """C-T95: running and waiting, by key; a raised limit lets through."""
    cli("quotas", "set", "api", "--rate", "4/h", "--concurrency", "3")
    wait_for("aaab")
    printed = cli.json("quotas", "show", "api")
    assert (printed["running"], printed["admitted"], printed["waiting"]) == (0, 3, 2)
    assert [key["key"] for key in printed["keys"]] == ["", "eve"]
    assert printed["opens_at"] is None
    shown = cli("quotas", "show", "api").stdout
    assert "3 of 3" in shown
    assert "the rate allows it now" in shown
    assert "(no key)" in shown
    own = cli.json("quotas", "show", "task:call")
    held = {key["key"]: key["admitted"] for key in own["keys"]}
    assert held["a"] <= 2
    cli("quotas", "set", "api", "--concurrency", "5")
    printed = cli.json("quotas", "show", "api")
    assert (printed["admitted"], printed["waiting"]) == (4, 1)
    assert printed["opens_at"].endswith("Z")
    note = cli("quotas", "set", "task:call", "--concurrency-per-key", "9").stderr
    assert note.startswith("the next worker")


def test_a_quota_is_asked_for_one_run(cli: Cli, wait_for: Callable[[str], None]) -> None:
    """C-T94, C-T95: admitted, no slot, or a rate with the time to ask again."""
    cli("quotas", "set", "api", "--concurrency", "1")
    wait_for("ab")
    runs = {run["id"]: run["state"] for run in cli.lines("run", "list", "--kind", "call")}
    admitted = next(id for id, state in runs.items() if state == "waiting")
    refused = next(id for id, state in runs.items() if state == "rate_limited")
    assert cli("quotas", "check", "api", admitted).stdout == "admitted before\n"
    printed = cli.json("quotas", "check", "api", admitted)
    assert printed == {"answer": "admitted", "id": admitted, "already": True}
    shown = cli("quotas", "check", "api", refused, code=1).stdout
    assert shown == "api has no free slot: 1 of 1 are taken\n"
    printed = cli.json("quotas", "check", "api", refused, code=1)
    assert (printed["answer"], printed["cap"], printed["taken"]) == ("concurrency_exceeded", 1, 1)
    cli("quotas", "set", "api", "--rate", "1/h", "--concurrency", "0")
    late = cli.lines("run", "list", "--state", "rate_limited")[0]["id"]
    shown = cli("quotas", "check", "api", late, code=1).stdout
    assert shown.startswith("the rate of api is used up: retry after 59m")
    assert cli.complaint("quotas", "check", "none", late, code=3) == "no quota none"
    assert cli("quotas", "release", "api", late).stdout == f"{late} has no room in api\n"
    assert cli.json("quotas", "release", "api", admitted) == {"id": admitted}


@pytest.mark.parametrize(
    ("words", "complaint", "code"),
    [
        (["set", "api"], "no limit is given: --rate, --concurrency, or one of them per key", 2),
        (["set", "api", "--rate", "soon"], "--rate is not a rate such as '100/m' or '5/30s'", 2),
        (["set", "api", "--rate-per-key", "0/m"], "the count of --rate-per-key must be", 2),
        (["set", " ", "--rate", "1/m"], "the name of a quota must be printable text", 2),
        (["show", "api"], "no quota api", 3),
    ],
)
def test_a_wrong_word_is_one_readable_line(
    cli: Cli, words: list[str], complaint: str, code: int
) -> None:
    cli("migrate")
    assert cli.complaint("quotas", *words, code=code).startswith(complaint)

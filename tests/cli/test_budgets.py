"""`flowfabric budgets …`"""

import asyncio
from uuid import UUID

import pytest

from flowfabric import Context, Fabric
from tests.cli.terminal import NOBODY, Cli


def test_a_budget_is_made_and_changed_part_by_part(cli: Cli) -> None:
    """C-T93: what is not given stays, what was spent stays."""
    cli("migrate")
    assert cli("budgets", "list").stderr.startswith("no budgets: make one with fabric.budget")
    words = ["--hard", "tokens=1_000", "--hard", "calls=7", "--soft", "tokens=800"]
    made = cli("budgets", "set", "team", *words).stdout
    assert made == "made team: 0 of 7 calls (0 %), 0 of 1000 tokens (0 %)\n"
    cli("budgets", "spend", "team", "tokens=740", "calls=1", "other=3")
    words = ["--hard", "calls=none", "--on-hard", "suspend", "--every", "1d", "--more", "tokens=5"]
    changed = cli("budgets", "set", "team", *words).stdout
    assert changed.startswith("changed team: 740 of 1000 tokens (74 %), 1 calls, 3 other")
    printed = cli.json("budgets", "show", "team")
    assert printed["limits"] == {"tokens": {"hard": 1000, "soft": 800, "more": 5}}
    assert (printed["on_hard"], printed["on_soft"], printed["every"]) == (
        "suspend",
        "warn",
        86_400_000,
    )
    printed = cli.json("budgets", "set", "team", "--cron", "0 0 * * *", "--timezone", "Asia/Tokyo")
    assert (printed["every"], printed["next_reset_at"][11:16]) == (None, "15:00")
    printed = cli.json("budgets", "set", "team", "--every", "none", "--soft", "tokens=none")
    assert (printed["cron"], printed["next_reset_at"], printed["used"]["tokens"]) == (
        None,
        None,
        740,
    )
    assert printed["limits"] == {"tokens": {"hard": 1000, "soft": None, "more": None}}


def test_spending_is_counted_refused_and_corrected(cli: Cli) -> None:
    """C-T80, C-T81, C-T82, C-T84: counted once by key, refused whole, reset."""
    cli("migrate")
    cli("budgets", "set", "org", "--hard", "tokens=100")
    cli("budgets", "set", "team", "--hard", "tokens=10", "--soft", "tokens=5", "--parent", "org")
    spend = ("budgets", "spend", "team")
    assert cli(*spend, "tokens=4", "--key", "k").stdout == "counted 4 tokens\n"
    assert cli(*spend, "tokens=4", "--key", "k").stdout == "counted before: 4 tokens\n"
    assert cli.json(*spend, "tokens=4", "--key", "k")["counted"] == {}
    assert "6 of 5 tokens" in cli(*spend, "tokens=2").stderr
    complaint = cli.complaint(*spend, "tokens=5", code=1)
    assert complaint == "budget team: 6 of 10 tokens are taken, 5 more do not fit"
    assert '"budget_exceeded"' in cli(*spend, "tokens=5", "--json", code=1).stderr
    granted = cli("budgets", "grant", "team", "tokens=3", "--key", "g").stdout
    assert granted == "team: the soft limit of tokens is 8 now\n"
    assert cli.json("budgets", "grant", "team", "tokens=3", "--key", "g")["soft"] == 8
    shown = cli("budgets", "show", "team").stdout
    for part in ("part of            org", "2 times, last 2", "60 %", "8 (3 granted)"):
        assert part in shown
    assert "parts              team" in cli("budgets", "show", "org").stdout
    assert cli("budgets", "list").stdout.splitlines()[1].split()[:4] == ["org", "6", "of", "100"]
    assert cli("budgets", "reset", "team").stdout == "reset team\n"
    printed = cli.json("budgets", "show", "team")
    assert (printed["used"], printed["granted"], printed["resets"]) == ({}, {}, 1)
    complaint = cli.complaint("budgets", "delete", "org", code=2)
    assert complaint == "budget 'org' has child budgets: delete them first"
    assert cli("budgets", "delete", "team", "org").stdout == "deleted team\ndeleted org\n"


def test_what_a_run_has_spent_is_taken_back(cli: Cli) -> None:
    """C-T89: exactly that, once."""
    cli("migrate")
    cli("budgets", "set", "team", "--hard", "tokens=10")

    async def run() -> str:
        async with Fabric(cli.url) as fabric:

            @fabric.task(budgets=["team"])
            async def ask(ctx: Context) -> None:
                await ctx.spend(tokens=3)

            run = await ask.submit()
            await (await fabric.worker()).run_until_idle()
            return str(run.id)

    id = asyncio.run(run())
    cli("budgets", "spend", "team", "tokens=2", "--run", id)
    cli("budgets", "spend", "team", "tokens=1")
    assert cli("budgets", "release", "team", id).stdout == "took back 5 tokens\n"
    assert cli("budgets", "release", "team", id).stdout == "nothing of team to take back\n"
    assert cli.json("budgets", "release", "team", NOBODY)["released"] == {}
    assert cli.json("budgets", "show", "team")["used"] == {"tokens": 1}


def test_a_budget_of_a_flow_or_run_is_found_however_its_id_is_written(cli: Cli) -> None:
    """Ids of scopes are checked, and stored as executions have them."""
    cli("migrate")
    flow = UUID("01a1e105-5216-7000-b234-22890e43ab8b")
    words = ["budgets", "set", "b", "--hard", "a=1", "--scope", "flow", "--scope-id"]
    assert cli.json(*words, flow.hex.upper())["scope_id"] == str(flow)
    complaint = cli.complaint(*words, "nightly", code=2)
    assert complaint == "a budget of a flow needs the id of the flow, not 'nightly'"
    words = ["budgets", "set", "b", "--scope", "run", "--scope-id"]
    assert "is not a run's id" in cli.complaint(*words, "x", code=2)
    words = ["budgets", "set", "b", "--scope", "namespace", "--scope-id", "acme"]
    assert cli(*words).stdout.startswith("changed b")
    assert "belongs to         namespace acme" in cli("budgets", "show", "b").stdout


@pytest.mark.parametrize(
    ("words", "complaint", "code"),
    [
        (["set", "x"], "a new budget needs a limit, as --hard tokens=1000", 2),
        (["set", "team"], "give something to change, such as --hard tokens=1000", 2),
        (["set", "team", "--hard", "5"], "--hard is a dimension and a number such as", 2),
        (["set", "team", "--hard", "a=x"], "--hard of a is a whole number, not 'x'", 2),
        (["set", "team", "--hard", "a=1", "--hard", "a=2"], "--hard names a twice", 2),
        (
            ["set", "team", "--more", "tokens=0", "--soft", "tokens=1"],
            "the more limit of tokens",
            2,
        ),
        (["set", "team", "--more", "tokens=1"], "--more of tokens needs a soft", 2),
        (["set", "team", "--parent", "org"], "budget 'team' cannot get another parent", 2),
        (["set", "x", "--hard", "a=1", "--parent", "org"], "no budget org", 3),
        (
            ["set", "team", "--every", "1d", "--cron", "* * * * *"],
            "a budget resets by --every or",
            2,
        ),
        (["set", "team", "--every", "soon"], "--every is not a duration", 2),
        (["set", "team", "--cron", "soon"], "", 2),
        (["set", "x", "--hard", "a=1", "--scope", "namespace"], "a budget of a namespace needs", 2),
        (["spend", "team", "tokens=-1"], "an amount of tokens is a whole number, not '-1'", 2),
        (["spend", "nope", "tokens=1"], "no budget nope", 3),
        (["spend", "team", "tokens=1", "--run", NOBODY], "no run", 3),
        (["grant", "team", "tokens=1"], "budget 'team' has no soft limit of tokens", 2),
        (["release", "team", "x"], "'x' is not a run's id", 2),
        (["show", "nope"], "no budget nope", 3),
        (["delete", "nope"], "no budget nope", 3),
    ],
)
def test_a_wrong_word_is_one_readable_line(
    cli: Cli, words: list[str], complaint: str, code: int
) -> None:
    cli("migrate")
    cli("budgets", "set", "team", "--hard", "tokens=10")
    assert cli.complaint("budgets", *words, code=code).startswith(complaint)
    assert cli.json("budgets", "show", "team")["used"] == {}

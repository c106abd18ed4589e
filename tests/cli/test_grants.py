"""`flowfabric grants …` and `flowfabric lease …`: reserved, taken and ended by hand."""

import asyncio

import pytest

from flowfabric import Fabric
from flowfabric.core.execution.grant_record import grant_id_from_key
from tests.cli.terminal import NOBODY, Cli, Work

LEASE, OTHER, ATTEMPT = (f"01a1e105-5216-7000-b234-22890e43ab8{digit}" for digit in "123")
ADA = ("--worker", "ada", "--instance", "ada-1")


@pytest.fixture
def run(cli: Cli) -> str:
    return cli.submit("greet", "--arg", "name=Bob")


def test_a_run_is_reserved_taken_and_completed_by_hand(cli: Cli, run: str, work: Work) -> None:
    """E-X04: issue, show, redeem, complete."""
    printed = cli("grants", "issue", run, *ADA, "--ttl", "1m", "--admission-summary", "2 of 5")
    key = printed.stdout.strip()
    assert f"{run} is reserved for ada until" in printed.stderr
    facts = cli.json("grants", "show", run)
    assert (facts["kind"], facts["worker"], facts["instance"]) == (
        "claim",
        "ada",
        "ada-1",
    )
    assert (facts["id"], facts["admission_summary"]) == (grant_id_from_key(key), "2 of 5")
    assert facts["expires_at"].endswith("Z")
    assert "2 of 5" in cli("grants", "show", run).stdout
    assert "for ada (ada-1) until" in cli("run", "show", run).stdout
    assert key not in cli("run", "show", run, "--json").stdout
    handle = cli("grants", "redeem", run, *ADA, "--key", key).stdout.strip()
    assert work() == 0
    assert cli("lease", "renew", "--handle", handle, "--ttl", "2m").stdout.startswith("renewed")
    done = cli("lease", "complete", "--handle", handle, "--result", '"hello"')
    assert done.stdout == "completed\n"
    assert cli.json("run", "result", run)["result"] == "hello"


def test_a_lease_is_found_again_by_its_id(cli: Cli, run: str) -> None:
    """The answer was lost: the same caller gets the same lease."""
    cli("grants", "issue", run, *ADA)
    words = ("grants", "redeem", run, *ADA, "--lease-id", LEASE)
    first = cli.json(*words, "--attempt-id", ATTEMPT, "--timeout", "5m", "--deadline", "1h")
    assert first == cli.json(*words)
    assert (first["attempt"], first["attempt_id"], first["kind"]) == (1, ATTEMPT, "fresh")
    assert first["lease"]["attempt"] == 1
    assert first["lease"]["times_out_at"] is not None
    assert cli.json("run", "show", run)["deadline_at"] is not None
    other = ("grants", "redeem", run, *ADA, "--lease-id", OTHER)
    assert "a worker holds the lease" in cli.complaint(*other, code=1)


def test_an_interrupted_run_goes_on_and_a_failed_one_is_retried(cli: Cli) -> None:
    id = cli.submit("divide", "--arg", "a=1", "--arg", "b=0")
    handle = cli("grants", "take", id).stdout.strip()
    assert cli("lease", "return", "--handle", handle).stdout == "handed back: waiting\n"
    cli("grants", "issue", id, *ADA)
    assert cli.json("grants", "show", id)["kind"] == "resume"
    again = cli.json("grants", "redeem", id, *ADA)
    assert (again["attempt"], again["kind"]) == (1, "resumed")
    words = ("lease", "fail", "--handle", again["handle"], "--message", "no")
    assert cli(*words).stdout == "failed, and is retried\n"
    handle = cli("grants", "take", id).stdout.strip()
    facts = cli.json("lease", "fail", "--handle", handle, "--message", "no")
    assert facts["retried"] is False


def test_a_lost_run_is_reserved_for_its_rescuer(cli: Cli, run: str) -> None:
    """E-T110, E-T114"""
    assert "not lost" in cli.complaint("grants", "issue", run, *ADA, "--reclaim", code=1)
    cli("grants", "take", run)

    async def revoke() -> None:
        async with Fabric(cli.url) as fabric:
            lost = await fabric.run(run)
            await (await fabric.engine()).claims.revoke(lost.id, reason="gone")

    asyncio.run(revoke())
    none = ("grants", "issue", run, *ADA, "--reclaim", "--max-reclaims", "0")
    assert "which is its cap" in cli.complaint(*none, code=1)
    cli("grants", "issue", run, *ADA, "--reclaim")
    assert cli.json("grants", "show", run)["kind"] == "reclaim"
    wrong = ("grants", "redeem", run, *ADA, "--key", "another")
    assert cli.complaint(*wrong, code=3) == f"{run} has no such grant"
    facts = cli.json("grants", "redeem", run, *ADA)
    assert (facts["attempt"], facts["kind"]) == (2, "reclaimed")


def test_the_best_run_of_a_lane_is_reserved(cli: Cli, run: str) -> None:
    """E-T069, E-T072"""
    better = cli.submit("greet", "--arg", "name=x", "--priority", "9")
    words = ("grants", "next", "--lane", "default", "--worker", "ada")
    assert cli.json(*words)["id"] == better
    assert cli.json(*words)["id"] == run
    assert cli.complaint(*words, code=1) == "no waiting run fits this worker"


def test_a_grant_that_cannot_be_given_says_why(cli: Cli, run: str) -> None:
    assert cli.complaint("grants", "show", run, code=3) == f"{run} is not reserved"
    assert cli.complaint("grants", "show", NOBODY, code=3).startswith("no run")
    wrong = ("grants", "issue", run, *ADA)
    assert "1 to 86400000" in cli.complaint(*wrong, "--ttl", "25h", code=2)
    assert "goes with --reclaim" in cli.complaint(*wrong, "--max-reclaims", "1", code=2)
    assert "no grant for this worker" in cli.complaint("grants", "redeem", run, *ADA, code=1)
    key = ("grants", "issue", run, "--worker", "ada", "--key", "k")
    assert cli(*key).stdout == cli(*key).stdout == "k\n"
    assert "granted until" in cli.complaint("grants", "issue", run, "--worker", "bob", code=1)
    assert "not_a_handle" in cli.complaint("lease", "complete", "--handle", "x", code=2)


def test_blocked_runs_are_not_claimed(cli: Cli, run: str, work: Work) -> None:
    """C-T98"""
    assert cli("run", "block", run, "--detail", "audit").stdout == f"blocked {run}\n"
    assert "audit" in cli("run", "show", run).stdout
    assert work() == 0
    wrong = ("run", "unblock", run, "--expected", "waiting_for_budget")
    assert cli(*wrong, code=1).stdout == ""
    assert cli.json("run", "unblock", run)["state"] == "waiting"
    wrong = ("run", "block", run, "--reason", "nonsense")
    assert "nonsense" in cli(*wrong, code=2).stderr
    assert work() == 1

"""`flowfabric run priority` and `flowfabric run revoke`."""

import pytest

from tests.cli.terminal import NOBODY, Cli


@pytest.fixture
def run(cli: Cli) -> str:
    return cli.submit("greet", "--arg", "name=Bob")


def test_a_priority_is_changed_and_clamped(cli: Cli, run: str) -> None:
    """server-sdk.md 1.7 and 10.1 (29): 0 to 9000, and the caller sees what a number became."""
    assert cli("run", "priority", run, "20").stdout == f"{run} has priority 20\n"
    assert cli.json("run", "show", run)["priority"] == 20
    assert cli.json("run", "priority", run, "9001") == {"id": run, "priority": 9000}
    assert cli.complaint("run", "priority", NOBODY, "1", code=3) == f"no run {NOBODY}"
    cli("run", "priority", run, "high", code=2)


def test_a_run_that_waits_for_more_than_a_worker_keeps_its_priority_unless_asked(
    cli: Cli, run: str
) -> None:
    cli("run", "hold", run)
    assert cli.complaint("run", "priority", run, "5", code=1)
    assert cli.json("run", "priority", run, "5", "--anywhere")["priority"] == 5


def test_a_lease_is_revoked_and_its_holder_changes_nothing(cli: Cli, run: str) -> None:
    """server-sdk.md 1.7: revoke-lease; without a lease there is nothing to revoke."""
    assert (
        cli.complaint("run", "revoke", run, code=1)
        == f"{run}: no worker has the run: it is runnable"
    )
    handle = cli("grants", "take", run).stdout.strip()
    words = ("run", "revoke", run, "--reason", "it hangs")
    assert cli(*words).stdout == f"revoked the lease of {run}\n"
    assert "the lease was revoked" in cli.complaint("lease", "complete", "--handle", handle, code=1)
    assert cli.complaint(*words, code=1) == f"{run}: no worker has it: already revoked"
    revoked = cli.lines("run", "events", run)[-1]
    assert (revoked["lease"], revoked["reason"]) == ("revoked", "it hangs")
    assert f"no run {NOBODY}" in cli.complaint("run", "revoke", NOBODY, code=3)

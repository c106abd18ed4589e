"""`flowfabric run priority` and `flowfabric run revoke`: what operators change about one run."""

from typing import Annotated

from typer import Argument, Option

from flowfabric.cli.bulk import for_each
from flowfabric.cli.command import RunId, RunIds
from flowfabric.cli.errors import CommandError, ExitCode
from flowfabric.cli.json import document
from flowfabric.cli.output import Screen
from flowfabric.core.execution.lease import AlreadySatisfied
from flowfabric.core.execution.status import PublicState
from flowfabric.engine.engine import Engine

REVOKED = "operator_revoke"
"""The reason that is recorded unless the operator gives one; the same as over HTTP."""


async def priority(
    engine: Engine,
    screen: Screen,
    id: RunId,
    new: Annotated[int, Argument(metavar="PRIORITY", help="0 to 9000, the highest first.")],
    anywhere: Annotated[
        bool, Option("--anywhere", help="Also if it waits for something else than a worker.")
    ] = False,
) -> None:
    """Change the priority of a run that waits for a worker.

    A number above 9000 counts as 9000.
    """
    changed = await engine.executions.change_priority(id, new, anywhere=anywhere)
    screen.answer(document(changed), f"{changed.id.uuid} has priority {changed.priority}")


async def revoke(
    engine: Engine,
    screen: Screen,
    ids: RunIds,
    reason: Annotated[str, Option(help="Why; kept in the events of the run.")] = REVOKED,
) -> ExitCode:
    """Take runs away from their workers, so that other workers continue them.

    The worker that had a run can change nothing of it any more. `workers dead --revoke` does this
    for all runs of one worker.
    """

    async def act(id: str) -> PublicState | None:
        answer = await engine.claims.revoke(id, reason=reason)
        if isinstance(answer, AlreadySatisfied):
            why = answer.reason.replace("_", " ")
            raise CommandError(f"no worker has it: {why}", word=answer.reason)
        return await engine.views.state(id)

    return await for_each(screen, ids, act, doing="revoking", done="revoked the lease of")

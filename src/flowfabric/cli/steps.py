"""`flowfabric run step …`"""

from typing import Annotated

from typer import Argument, Option, Typer

from flowfabric.cli.command import RunId, command
from flowfabric.cli.json import document
from flowfabric.cli.output import Screen
from flowfabric.cli.parse import read_json, user_name
from flowfabric.engine.engine import Engine

app = Typer(
    help="Change the recorded steps of a run that no worker executes.", no_args_is_help=True
)

StepName = Annotated[
    str, Argument(metavar="STEP", help="As `run show` names it: charge, or charge#2.")
]
By = Annotated[str | None, Option(help="Who does this; the name of your user by default.")]
Reason = Annotated[str, Option(help="Why; kept in the events of the run.")]


@command(app)
async def rename(
    engine: Engine,
    screen: Screen,
    id: RunId,
    step: StepName,
    name: Annotated[str, Argument(metavar="NAME", help="What the code calls it now.")],
    reason: Reason = "",
    by: By = None,
) -> None:
    """Give recorded steps another name, after the code has renamed them.

    All calls of the step are renamed, with charge#2 only the second one. A run that is blocked by
    code continues.
    """
    done = await engine.steps.rename(id, step, name, by=user_name(by), reason=reason)
    words = ", ".join(done.steps) or "nothing: that is its name already"
    screen.answer(document(done), f"renamed to {words}")


@command(app)
async def skip(
    engine: Engine,
    screen: Screen,
    id: RunId,
    step: StepName,
    result: Annotated[
        str | None,
        Option(metavar="JSON", help="What the step returns; by default what is recorded."),
    ] = None,
    reason: Reason = "",
    by: By = None,
) -> None:
    """Supply the result of a step, so that it is not run.

    For a step that cannot succeed, a new step that an old run shall not make up for, or a recorded
    one that the code no longer has. A run that is blocked by code continues; one that has failed
    needs a replay.
    """
    if result is not None:
        read_json(result, "--result")
    value = None if result is None else result.encode()
    done = await engine.steps.skip(id, step, value, by=user_name(by), reason=reason)
    later = "" if done.recorded else "; it is not recorded so far"
    screen.answer(document(done), f"{done.step} is skipped in run {done.id}{later}")

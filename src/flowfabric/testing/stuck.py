"""The errors of a test whose run does not end, with the reason."""

from collections.abc import Sequence

from flowfabric.core.execution.status import ENDED, Blocking, PublicState
from flowfabric.worker.api.described import RunDescription


class Stuck(AssertionError):
    """Nothing can run any more, and what the test waits for has not happened."""


class Hanging(Stuck):
    """A handler is busy in real time and does not end."""


def summary(
    run: RunDescription, tasks: frozenset[str], error: str | None, waits: Sequence[str] = ()
) -> str:
    """One run in one line: its task, its state, and why it does not continue."""
    said = [f"{run.kind} ({run.id}) is {run.state.value}"]
    if run.state not in ENDED:
        said += [f"it waits for {', '.join(waits)}"] if waits else _reasons(run, tasks)
    if error is not None and run.state is not PublicState.COMPLETED:
        said.append(f"last error: {error}")
    return "; ".join(said)


def _reasons(run: RunDescription, tasks: frozenset[str]) -> list[str]:
    if run.kind not in tasks:
        known = ", ".join(sorted(tasks)) or "none"
        return [f"no task of that name is registered (registered: {known})"]
    match run.blocking:
        case Blocking.NONE:
            return ["its handler runs and neither ends nor waits for another run"]
        case Blocking.WORKER if run.version is not None:
            return [f"no worker takes it: is version {run.version} of {run.kind} registered?"]
        case Blocking.WORKER:
            return ["no worker takes it: was it driven, and is its lane open?"]
        case _:
            detail = f" ({run.blocking_detail})" if run.blocking_detail else ""
            return [f"{run.blocking.value}{detail}"]

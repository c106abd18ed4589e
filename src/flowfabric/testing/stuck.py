"""What a test is told when the run it waits for does not end."""

from collections.abc import Sequence

from flowfabric.core.execution.status import Blocking, PublicState
from flowfabric.engine.execution.views import Description

ENDED = frozenset(
    {
        PublicState.COMPLETED,
        PublicState.FAILED,
        PublicState.CANCELLED,
        PublicState.EXPIRED,
        PublicState.SKIPPED,
    }
)


class Stuck(AssertionError):
    """Nothing moves any more and what was waited for has not happened."""


class Hanging(Stuck):
    """A handler does something that takes real time, and does not come to an end."""


def tell(
    run: Description, tasks: frozenset[str], error: str | None, waits: Sequence[str] = ()
) -> str:
    """One run in one line: what it is, where it stands, and why it does not go on."""
    said = [f"{run.kind} ({run.id}) is {run.state.value}"]
    if run.state not in ENDED:
        said += [f"nobody has sent {', '.join(waits)}"] if waits else _reasons(run, tasks)
    if error is not None and run.state is not PublicState.COMPLETED:
        said.append(f"last error: {error}")
    return "; ".join(said)


def _reasons(run: Description, tasks: frozenset[str]) -> list[str]:
    if run.kind not in tasks:
        known = ", ".join(sorted(tasks)) or "none"
        return [f"no task of that name is registered (registered: {known})"]
    match run.blocking:
        case Blocking.NONE:
            return ["its handler runs and neither ends nor waits for another run"]
        case Blocking.WORKER:
            return ["no worker takes it: is its lane paused, or does it demand a capability?"]
        case _:
            detail = f" ({run.blocking_detail})" if run.blocking_detail else ""
            return [f"{run.blocking.value}{detail}"]

"""Answering runs that wait: `flowfabric signal`, `approve`, `reject`."""

from typing import Annotated, Any

from typer import Argument, Option

from flowfabric.cli import waitpoints
from flowfabric.cli.errors import TOKEN_VARIABLE, CommandError, ExitCode, usage
from flowfabric.cli.json import document
from flowfabric.cli.output import Screen
from flowfabric.cli.parse import STDIN, read_json, read_source
from flowfabric.core.wait.model import Effect
from flowfabric.fabric import Fabric
from flowfabric.worker.api.signals import Sent

Target = Annotated[str, Argument(metavar="RUN", help="A run's id, or RUN/WAITPOINT of a callback.")]
Approval = Annotated[
    str | None, Argument(metavar="NAME", help="Which approval, if the run waits for several.")
]
Token = Annotated[
    str | None,
    Option(
        envvar=TOKEN_VARIABLE,
        help="The token that was issued. Prefer the variable: a process list shows options.",
    ),
]
Approver = Annotated[
    str, Option("--as", metavar="APPROVER", show_default=False, help="Who decides.")
]
Comment = Annotated[str, Option(show_default=False, help="Why; kept with the decision.")]
About = Annotated[
    str | None,
    Option(metavar="JSON", help="Decide only if exactly this is to be approved; - reads stdin."),
]

_EFFECTS: dict[str, str] = {
    Effect.SATISFIED: "the run continues",
    Effect.APPENDED: "counted, the run waits for more",
    Effect.BUFFERED: "kept until the run waits for it",
    Effect.REPEATED: "kept, but it does not count a second time",
}


async def signal(  # noqa: PLR0913 - the options are the interface
    fabric: Fabric,
    screen: Screen,
    run: Target,
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="NAME [JSON]",
            help="The signal's name and payload; - reads stdin. A callback needs no name.",
        ),
    ] = None,
    file: Annotated[str | None, Option(help="A JSON file with the payload.")] = None,
    key: Annotated[str | None, Option(help="A repeat with the same key changes nothing.")] = None,
    token: Token = None,
    source: Annotated[str, Option(show_default=False, help="Who sends it.")] = "",
    delay: Annotated[str | None, Option(help="Let the run continue only after 10s, 5m, …")] = None,
) -> None:
    """Send a signal to a run by name, or to a callback with a token."""
    name, text = _named(run, words or [])
    payload = _payload(text, file)
    sent = await fabric.signal(run, name, payload, token=token, key=key, source=source, delay=delay)
    _answer(screen, run, "signalled", sent)


async def approve(
    fabric: Fabric,
    screen: Screen,
    run: Target,
    name: Approval = None,
    approver: Approver = "",
    comment: Comment = "",
    about: About = None,
    token: Token = None,
) -> None:
    """Approve what a run asks approval for."""
    more = _decision(approver, comment, about, token)
    target = await _approval(fabric, run, name, token)
    _answer(screen, run, "approved", await fabric.approve(*target, **more))


async def reject(
    fabric: Fabric,
    screen: Screen,
    run: Target,
    name: Approval = None,
    approver: Approver = "",
    comment: Comment = "",
    about: About = None,
    token: Token = None,
) -> None:
    """Reject what a run asks approval for."""
    more = _decision(approver, comment, about, token)
    target = await _approval(fabric, run, name, token)
    _answer(screen, run, "rejected", await fabric.reject(*target, **more))


def _decision(approver: str, comment: str, about: str | None, token: str | None) -> dict[str, Any]:
    if not approver and token is None:
        raise usage("who decides? give --as, or a token")
    text = read_source(STDIN, "--about") if about == STDIN else about
    value = None if text is None else read_json(text, "--about")
    return {"approver": approver, "comment": comment, "about": value, "token": token}


async def _approval(
    fabric: Fabric, run: str, name: str | None, token: str | None
) -> tuple[str, str | None]:
    """What the words name. Someone who only has a token must name the waitpoint, and does not
    learn whether there is one. One that is not open may have been decided by this very command
    before, whose answer was lost: the engine knows."""
    if token is not None and "/" in run:
        return run, None
    try:
        item = await waitpoints.find(fabric, run, name, approval=True)
    except CommandError as error:
        if error.code is not ExitCode.NOT_FOUND or (name is None and "/" not in run):
            raise
        return run, name
    return waitpoints.address(item), None


def _answer(screen: Screen, run: str, word: str, sent: Sent) -> None:
    words = f"{run} was {word} before"
    if not sent.duplicate:
        words = f"{word} {run}: {_EFFECTS.get(sent.effect, 'nothing waits for this one')}"
    screen.answer({"id": run, **document(sent)}, words)


def _named(run: str, words: list[str]) -> tuple[str | None, str | None]:
    """Name and payload; one word for a callback is its payload."""
    if len(words) > 2:
        raise usage(f"a name and one JSON value, not {len(words)} words: quote the JSON")
    if "/" in run and len(words) < 2:
        return None, words[0] if words else None
    if not words:
        raise usage("a signal to a run needs a name")
    return words[0], words[1] if len(words) == 2 else None


def _payload(text: str | None, file: str | None) -> Any:
    if text is not None and file is not None:
        raise usage("the payload is given twice: as a word and with --file")
    if file is not None or text == STDIN:
        text = read_source(file or STDIN, "the payload")
    return None if text is None else read_json(text, "the payload")

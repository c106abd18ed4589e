"""Answering runs that wait: `flowfabric signal`, `approve`, `reject`, `resume`."""

import asyncio
from typing import Annotated, Any

import typer
from msgspec import Struct

from flowfabric.cli import run_bulk, waiting
from flowfabric.cli.connect import connect
from flowfabric.cli.errors import TOKEN_VARIABLE, Code, CommandError
from flowfabric.cli.json import document
from flowfabric.cli.options import AsJson, Debug, RunIds, Url
from flowfabric.cli.output import Screen
from flowfabric.cli.values import STDIN, read_json, read_source, usage
from flowfabric.core.wait.model import Effect
from flowfabric.fabric import Fabric
from flowfabric.worker.api.signals import Sent

Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN", show_default=False, help="A run's id, or RUN/WAITPOINT of a callback."
    ),
]
Approval = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", show_default=False, help="Which approval, if it waits for several."
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar=TOKEN_VARIABLE,
        show_default=False,
        help="What was handed out. Better set the variable: a process list shows options.",
    ),
]
Approver = Annotated[
    str, typer.Option("--as", metavar="APPROVER", show_default=False, help="Who decides.")
]
Comment = Annotated[str, typer.Option("--comment", show_default=False)]
About = Annotated[
    str | None,
    typer.Option(
        "--about",
        metavar="JSON",
        show_default=False,
        help="Only if exactly this is to be approved; - reads stdin.",
    ),
]

_EFFECTS = {
    Effect.SATISFIED: "the run goes on",
    Effect.APPENDED: "counted, the run waits for more",
    Effect.BUFFERED: "kept until the run waits for it",
    Effect.REPEATED: "kept, but it counts no second time",
}


class ApprovalAnswer(Struct, frozen=True, kw_only=True):
    """A decision as it was typed."""

    word: str
    approver: str
    comment: str
    about: str | None
    token: str | None


def signal(  # noqa: PLR0913 - the options are the interface
    run: Target,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME [JSON]",
            show_default=False,
            help="What it is called, and its payload; - reads stdin. A callback needs no name.",
        ),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", show_default=False, help="The payload, a JSON file.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", show_default=False, help="Makes a repeat harmless.")
    ] = None,
    token: Token = None,
    source: Annotated[str, typer.Option("--source", show_default=False, help="Who sends it.")] = "",
    delay: Annotated[
        str | None,
        typer.Option("--delay", show_default=False, help="The run goes on only after 10s, 5m, …"),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Send a signal to a run by name, or with a token to a callback."""
    name, text = _named(run, words or [])
    more = {"token": token, "key": key, "source": source, "delay": delay}
    payload = _payload(text, file)
    asyncio.run(_signal(url, run, name, payload, more, Screen(as_json)))


def approve(  # noqa: PLR0913 - the options are the interface
    run: Target,
    name: Approval = None,
    approver: Approver = "",
    comment: Comment = "",
    about: About = None,
    token: Token = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Approve what a run waits for."""
    decided = ApprovalAnswer(
        word="approved", approver=approver, comment=comment, about=about, token=token
    )
    asyncio.run(_decide(url, run, name, decided, Screen(as_json)))


def reject(  # noqa: PLR0913 - the options are the interface
    run: Target,
    name: Approval = None,
    approver: Approver = "",
    comment: Comment = "",
    about: About = None,
    token: Token = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Refuse what a run waits for an approval of."""
    decided = ApprovalAnswer(
        word="rejected", approver=approver, comment=comment, about=about, token=token
    )
    asyncio.run(_decide(url, run, name, decided, Screen(as_json)))


def resume(
    ids: RunIds,
    delay: Annotated[
        str | None,
        typer.Option("--delay", show_default=False, help="Go on only after 10s, 5m, …"),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Wake suspended runs without what they wait for. For operators: nothing was approved."""
    code = asyncio.run(run_bulk.resume(url, run_bulk.given(ids), delay, Screen(as_json)))
    raise typer.Exit(code)


async def _signal(
    url: str | None,
    run: str,
    name: str | None,
    payload: object,
    more: dict[str, Any],
    screen: Screen,
) -> None:
    async with connect(url) as fabric:
        sent = await fabric.signal(run, name, payload, **more)
    _tell(screen, run, "signalled", sent)


async def _decide(
    url: str | None, run: str, name: str | None, decided: ApprovalAnswer, screen: Screen
) -> None:
    if not decided.approver and decided.token is None:
        raise usage("who decides? give --as, or a token")
    about = None if decided.about is None else _about(decided.about)
    async with connect(url) as fabric:
        target = await _approval(fabric, run, name, decided.token)
        verb = fabric.approve if decided.word == "approved" else fabric.reject
        sent = await verb(
            *target,
            approver=decided.approver,
            about=about,
            comment=decided.comment,
            token=decided.token,
        )
    _tell(screen, run, decided.word, sent)


async def _approval(
    fabric: Fabric, run: str, name: str | None, token: str | None
) -> tuple[str, str | None]:
    """What the words name. Whoever has only a token must name the waitpoint, and is not told
    whether there is one. One that is not open may have been decided by this very command before,
    whose answer was lost: the engine knows."""
    if token is not None and "/" in run:
        return run, None
    try:
        item = await waiting.find_approval(fabric, run, name)
    except CommandError as error:
        if error.code is not Code.NOT_FOUND or (name is None and "/" not in run):
            raise
        return run, name
    return f"{item.execution}/{item.id}", None


def _tell(screen: Screen, run: str, word: str, sent: Sent) -> None:
    if screen.as_json:
        screen.document({"id": run, **document(sent)})
    elif sent.duplicate:
        screen.line(f"{run} was {word} before")
    else:
        effect = _EFFECTS.get(Effect(sent.effect), "nothing waits for this one")
        screen.line(f"{word} {run}: {effect}")


def _named(run: str, words: list[str]) -> tuple[str | None, str | None]:
    """Name and payload; one word for a callback is its payload."""
    if len(words) > 2:
        raise usage(f"a name and one JSON value, not {len(words)} words: quote the JSON")
    if "/" in run and len(words) < 2:
        return None, words[0] if words else None
    if not words:
        raise usage("a signal to a run has a name")
    return words[0], words[1] if len(words) == 2 else None


def _payload(text: str | None, file: str | None) -> Any:
    if text is not None and file is not None:
        raise usage("the payload is given twice: as a word and with --file")
    if file is not None:
        text = read_source(file, "the payload")
    elif text == STDIN:
        text = read_source(STDIN, "the payload")
    return None if text is None else read_json(text, "the payload")


def _about(text: str) -> Any:
    return read_json(read_source(STDIN, "--about") if text == STDIN else text, "--about")

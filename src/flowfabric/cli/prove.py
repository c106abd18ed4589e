"""`flowfabric prove`"""

from pathlib import Path
from typing import Annotated

from typer import Option

from flowfabric.cli.command import StoreUrl
from flowfabric.cli.errors import CommandError
from flowfabric.cli.json import Document
from flowfabric.cli.output import Cells, Screen, progress_bar
from flowfabric.prove.report import WORDS, CheckResult, ProofReport, markdown
from flowfabric.prove.run import prove, seconds_of


async def prove_store(
    url: StoreUrl,
    screen: Screen,
    minutes: Annotated[float, Option(help="How long it may take; the measurement fills it.")] = 5.0,
    report: Annotated[
        Path | None, Option("--report", metavar="FILE.md", help="Also write a report.")
    ] = None,
) -> int:
    """Try the promises on your own database: faults, fences, crashes, and how fast it is.

    Everything happens in a namespace of its own, which is deleted at the end. The exit code is 0
    if all held, 1 if something did not, 2 if something could not be checked.
    """
    seconds = seconds_of(minutes)
    if report is not None:
        _write(report, "")  # not only after five minutes
    with progress_bar(screen) as progress:
        proof = await prove(url, seconds, progress)
    if report is not None:
        _write(report, markdown(proof))
    if screen.as_json:
        screen.document(_document(proof))
    else:
        _show(screen, proof)
    return int(proof.outcome)


def _show(screen: Screen, proof: ProofReport) -> None:
    screen.table([_row(result) for result in proof.results], firm=("result", "counted"))
    for result in proof.results:
        for problem in result.problems:
            screen.line(f"{result.check}: {problem}", style="red")
        for name, value in result.figures.items():
            screen.line(f"{name}: {value:,.2f}")
    said = f"{proof.store}: {proof.verdict}, in {proof.seconds:.0f} s"
    screen.line(said, style="bold")
    if proof.left:
        screen.note(proof.remainder)


def _row(result: CheckResult) -> Cells:
    return [
        ("check", result.check),
        ("promise", result.promise),
        ("result", result.word),
        ("counted", result.counted),
        ("seconds", f"{result.seconds:.1f}"),
    ]


def _document(proof: ProofReport) -> Document:
    return {
        "store": proof.store,
        "outcome": WORDS[proof.outcome],
        "seconds": proof.seconds,
        "left": proof.left,
        "environment": proof.environment,
        "checks": [_check(result) for result in proof.results],
    }


def _check(result: CheckResult) -> Document:
    return {
        "check": result.check,
        "promise": result.promise,
        "outcome": result.word,
        "count": result.count,
        "unit": result.unit,
        "seconds": result.seconds,
        "problems": list(result.problems),
        "figures": result.figures,
        "note": result.note,
    }


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"the report cannot be written: {error}") from error

"""`flowfabric doctor`"""

from flowfabric.cli.command import StoreUrl
from flowfabric.cli.format import number_of
from flowfabric.cli.json import Document
from flowfabric.cli.output import Screen, printable
from flowfabric.core.base.redact import redact
from flowfabric.store.health import Examination, Finding, Severity, examine

_STYLES = {Severity.PROBLEM: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


async def doctor(url: StoreUrl, screen: Screen) -> int:
    """Look for what slows a store down or endangers it, and print the exact fix.

    Needs the database itself, not a server. Nothing is changed. The exit code is 0 if all is well,
    1 with warnings, 2 with problems.
    """
    found = await examine(url)
    if screen.as_json:
        screen.document(_document(found))
    else:
        _show(screen, found)
    return int(found.worst)


def _show(screen: Screen, found: Examination) -> None:
    screen.line(f"{found.store}: {_sum(found)} ({len(found.checks)} checks)")
    for finding in found.findings:
        word = finding.severity.name.lower()
        screen.out.print()
        screen.out.print(word, style=_STYLES[finding.severity], end="  ", soft_wrap=True)
        screen.line(finding.summary, style="bold")
        screen.text(finding.meaning)
        for line in finding.fix:  # exactly as it is typed
            screen.out.print(f"    {printable(redact(line))}", style="cyan", soft_wrap=True)


def _sum(found: Examination) -> str:
    counts = [
        (severity, sum(finding.severity is severity for finding in found.findings))
        for severity in sorted(Severity, reverse=True)
    ]
    said = [number_of(count, severity.name.lower()) for severity, count in counts if count]
    return ", ".join(said) or "nothing to complain about"


def _document(found: Examination) -> Document:
    return {
        "store": found.store,
        "dialect": found.dialect,
        "worst": _word(found.worst) if found.findings else "ok",
        "checks": list(found.checks),
        "findings": [_finding(finding) for finding in found.findings],
    }


def _finding(finding: Finding) -> Document:
    return {
        "check": finding.check,
        "severity": _word(finding.severity),
        "summary": finding.summary,
        "meaning": finding.meaning,
        "fix": list(finding.fix),
    }


def _word(severity: Severity) -> str:
    return severity.name.lower()

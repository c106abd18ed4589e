"""What the checks found, and the report that is kept of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from msgspec import Struct


class ProofOutcome(IntEnum):
    """What became of a check; also the exit code of the command."""

    HELD = 0
    BROKEN = 1
    UNCHECKED = 2


WORDS = {
    ProofOutcome.HELD: "held",
    ProofOutcome.BROKEN: "did not hold",
    ProofOutcome.UNCHECKED: "not checked",
}


class CannotCheck(Exception):
    """A check cannot be made here; the text says why."""


class ProofTally(Struct, frozen=True, kw_only=True):
    """What a check counted. `problems` is empty if the promise held; `figures` are measurements,
    `note` says what was done."""

    count: int
    unit: str
    problems: Sequence[str] = ()
    figures: Mapping[str, float] = {}
    note: str = ""


class CheckResult(Struct, frozen=True, kw_only=True):
    """One line of the report."""

    check: str
    promise: str
    outcome: ProofOutcome
    seconds: float
    count: int = 0
    unit: str = ""
    problems: tuple[str, ...] = ()
    figures: dict[str, float] = {}
    note: str = ""

    @property
    def word(self) -> str:
        """What became of it; a measurement promises nothing."""
        measured = self.outcome is ProofOutcome.HELD and self.figures
        return "measured" if measured else WORDS[self.outcome]

    @property
    def counted(self) -> str:
        """How much was tried."""
        parts = [f"{self.count} {self.unit}" if self.unit else "", self.note]
        return ", ".join(part for part in parts if part)


class ProofReport(Struct, frozen=True, kw_only=True):
    """All of it. `left` counts the runs that could not be deleted yet."""

    store: str
    environment: dict[str, str]
    results: tuple[CheckResult, ...]
    seconds: float
    left: int = 0

    @property
    def outcome(self) -> ProofOutcome:
        """A broken promise counts more than one that could not be tried."""
        found = {result.outcome for result in self.results}
        if ProofOutcome.BROKEN in found:
            return ProofOutcome.BROKEN
        return ProofOutcome.UNCHECKED if ProofOutcome.UNCHECKED in found else ProofOutcome.HELD

    @property
    def remainder(self) -> str:
        """What is said about runs that are left."""
        return f"{self.left} ended runs stay until a worker deletes them; flows for the retention."

    @property
    def verdict(self) -> str:
        """One sentence."""
        counts = Counter(result.word for result in self.results)
        return ", ".join(f"{count} {word}" for word, count in counts.items())


def markdown(report: ProofReport) -> str:
    """The report as a page to keep beside a deployment."""
    lines = [
        "# FlowFabric: proof on this database",
        "",
        f"{len(report.results)} checks: {report.verdict}, in {report.seconds:.0f} s.",
        "",
        *_table(("", ""), sorted(report.environment.items())),
        "",
        "## Checks",
        "",
        *_table(("check", "promise", "result", "counted", "seconds"), map(_row, report.results)),
    ]
    for result in report.results:
        if result.problems:
            lines += ["", f"### {result.check}: {WORDS[result.outcome]}", ""]
            lines += [f"- {_cell(problem)}" for problem in result.problems]
    figures = [pair for result in report.results for pair in result.figures.items()]
    if figures:
        lines += ["", "## Measurement", ""]
        lines += _table(("figure", "value"), [(name, f"{value:,.2f}") for name, value in figures])
    if report.left:
        lines += ["", report.remainder]
    return "\n".join(lines) + "\n"


def _row(result: CheckResult) -> tuple[str, ...]:
    return result.check, result.promise, result.word, result.counted, f"{result.seconds:.1f}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    marked = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    return marked + [f"| {' | '.join(map(_cell, row))} |" for row in rows]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")

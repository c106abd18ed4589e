"""What the demo shows: a live table on a terminal, lines of text or JSON elsewhere."""

import json
import sys
import time

from msgspec import Struct

from flowfabric.demo.proof import DemoVerdict


class Row(Struct):
    """One run and its state."""

    run: str
    task: str
    state: str = "waiting"
    attempt: int = 1
    worker: str = ""
    happened: str = "submitted"


class Board:
    """Prints one line per event; for logs and builds."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._began = time.monotonic()

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def add(self, run: str, task: str) -> None:
        self.rows[run] = Row(run, task)
        self.show(self.rows[run])

    def update(self, run: str, **members: object) -> None:
        for name, value in members.items():
            setattr(self.rows[run], name, value)
        self.show(self.rows[run])

    def show(self, row: Row) -> None:
        who = f"on {row.worker}" if row.worker else ""
        self._print(f"  {row.run:<10} {row.state:<10} {who:<7} {row.happened}")

    def say(self, text: str) -> None:
        """Prints a comment of the narrator."""
        self._print(f"# {text}")

    def conclude(self, verdict: DemoVerdict) -> None:
        """Prints the summary."""
        print()
        for text, came_true in verdict.expectations.items():
            print(f"  {'ok' if came_true else 'BROKEN':<7} {text}")
        counts = f"{verdict.runs} runs, {verdict.killed} worker killed"
        print(f"\n{counts}, {verdict.repeated} steps repeated ({self.seconds:.1f} s)")
        for text in verdict.broken:
            print(f"the demo failed, this did not come true: {text}", file=sys.stderr)

    def _print(self, text: str) -> None:
        print(f"{self.seconds:5.1f}s {text}".rstrip(), flush=True)


class JsonBoard(Board):
    """Prints one JSON document per event."""

    def show(self, row: Row) -> None:
        self._write(
            run=row.run,
            task=row.task,
            state=row.state,
            attempt=row.attempt,
            worker=row.worker or None,
            happened=row.happened,
        )

    def say(self, text: str) -> None:
        self._write(says=text)

    def conclude(self, verdict: DemoVerdict) -> None:
        self._write(
            runs=verdict.runs,
            workers_killed=verdict.killed,
            steps_repeated=verdict.repeated,
            expectations=verdict.expectations,
            ok=not verdict.broken,
        )

    def _write(self, **members: object) -> None:
        print(json.dumps({"seconds": round(self.seconds, 1), **members}), flush=True)


def choose(*, as_json: bool) -> Board:
    """A live table on a terminal (where Rich is installed), lines elsewhere."""
    if as_json:
        return JsonBoard()
    if not sys.stdout.isatty():
        return Board()
    try:
        from flowfabric.demo.live import LiveBoard
    except ModuleNotFoundError:
        return Board()
    return LiveBoard()

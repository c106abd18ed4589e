"""Runs one check after the other within the time limit, and leaves nothing behind."""

import asyncio
import platform
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct

from flowfabric.core.base.errors import FlowFabricError, Invalid
from flowfabric.core.base.redact import redact
from flowfabric.prove.crashes import crash, durability
from flowfabric.prove.fences import fence
from flowfabric.prove.ground import CLEAR_WITHIN, Ground, Place, clear, new_place
from flowfabric.prove.measure import measure
from flowfabric.prove.promises import events, flows, limits, once, waiting
from flowfabric.prove.report import CannotCheck, CheckResult, ProofOutcome, ProofReport, ProofTally
from flowfabric.remote.connection import is_server
from flowfabric.store.copy import refuse_memory
from flowfabric.store.health import examine
from flowfabric.store.open import dialect_of, sqlite_path
from flowfabric.worker.errors import FlowFailed, ResultTimeout, RunFailed

LONG = 120.0
"""Seconds from which on every check is made three times as large."""
LEAST_PATIENCE = 60.0
"""Seconds that a single wait may take at least: a busy machine is slow, not wrong."""

OnProgress = Callable[[str, int, int], None]


class Promise(Struct, frozen=True):
    """A check, and in words what it is about."""

    name: str
    words: str
    check: Callable[[Ground], Awaitable[ProofTally]]


PROMISES = (
    Promise("once", "a key submitted many times is one run, which ends once", once),
    Promise("fence", "a worker without its lease changes nothing", fence),
    Promise("crash", "a killed worker's runs go on, and no recorded step is repeated", crash),
    Promise("durability", "what was acknowledged is not lost", durability),
    Promise("waiting", "a wait ends by its own token or in time, and by nothing else", waiting),
    Promise("flows", "the nodes of a flow run once, after those before them", flows),
    Promise("limits", "a concurrency limit holds for all workers together", limits),
    Promise("events", "a subscription sees each event once and in order", events),
    Promise("measurement", "how fast it is", measure),
)


async def prove(
    url: str, seconds: float, progress: OnProgress, promises: Sequence[Promise] = PROMISES
) -> ProofReport:
    """Tries the promises on the store at `url`, for about as long as `seconds`."""
    if not is_server(url) and dialect_of(url) == "sqlite":
        refuse_memory(sqlite_path(url))
    began, place = time.monotonic(), new_place(url, seconds)
    results: list[CheckResult] = []
    with tempfile.TemporaryDirectory(prefix="flowfabric-prove-") as home:
        ground = Ground(
            place=place,
            home=Path(home),
            until=began + seconds - place.kept - CLEAR_WITHIN,
            patience=max(LEAST_PATIENCE, seconds / 5),
            rounds=3 if seconds >= LONG else 1,
        )
        environment = await _environment(place)
        try:
            for number, promise in enumerate(promises):
                progress(promise.name, number, len(promises))
                results.append(await tried(promise, ground))
        finally:
            progress("clearing", len(promises), len(promises))
            left = await clear(place, patient=len(results) == len(promises))
    return ProofReport(
        store=redact(url),
        environment=environment,
        results=tuple(results),
        seconds=time.monotonic() - began,
        left=left,
    )


async def tried(promise: Promise, ground: Ground) -> CheckResult:
    """What becomes of one promise. Only a cancellation gets out of here."""
    began, tally = time.monotonic(), ProofTally(count=0, unit="")
    outcome, problems = ProofOutcome.HELD, tuple[str, ...]()
    limit = max(4 * ground.patience, ground.until - began + ground.patience)
    try:
        async with asyncio.timeout(limit):
            tally = await promise.check(ground)
    except (ResultTimeout, RunFailed, FlowFailed) as error:
        outcome, problems = ProofOutcome.BROKEN, (str(error),)
    except TimeoutError as error:
        text = str(error) or f"not done within {limit:.0f} s"
        outcome, problems = ProofOutcome.UNCHECKED, (text,)
    except (CannotCheck, FlowFabricError) as error:
        outcome, problems = ProofOutcome.UNCHECKED, (str(error),)
    except Exception as error:
        outcome, problems = ProofOutcome.UNCHECKED, (f"{type(error).__name__}: {error}",)
    if tally.problems:
        outcome, problems = ProofOutcome.BROKEN, tuple(tally.problems)
    return CheckResult(
        check=promise.name,
        promise=promise.words,
        outcome=outcome,
        seconds=time.monotonic() - began,
        count=tally.count,
        unit=tally.unit,
        problems=tuple(redact(problem) for problem in problems),
        figures=dict(tally.figures),
        note=tally.note,
    )


async def _environment(place: Place) -> dict[str, str]:
    """Versions and the store, and that it can be reached at all."""
    async with place.fabric() as fabric:
        engine = await fabric.engine()
        schema = None if is_server(place.url) else engine.schema_version
    found = {
        "store": redact(place.url),
        "flowfabric": _version("flowfabric"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}",
        "namespace": place.name,
    }
    if schema is not None:
        found["schema"] = f"version {schema}"
    if is_server(place.url):
        return found
    found |= (await examine(place.url)).settings
    if dialect_of(place.url) == "sqlite":
        return {**found, "sqlite": sqlite3.sqlite_version}
    return {**found, "asyncpg": _version("asyncpg")}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def seconds_of(minutes: float) -> float:
    """Checks how long it may take."""
    if not 0 < minutes <= 24 * 60:
        raise Invalid("--minutes must be more than 0, and at most a day")
    return minutes * 60

"""One store under faults: workers, submitter and faults together, then a quiet time, then the
verdict."""

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from chaos.app import LEDGER_VARIABLE, URL_VARIABLE, make_app
from chaos.checks import changed_values, repeated_steps, wrong_endings, wrong_results
from chaos.ledger import Ledger
from chaos.stores import Fault, Target
from chaos.submitter import Submitter
from chaos.workers import Workers
from flowfabric import Fabric

PEACE_SECONDS = 90.0
"""Everything must end within this time after the faults have stopped."""


class Play(Struct, frozen=True):
    seconds: float
    rate: float
    workers: int
    dice: random.Random


async def torment(target: Target, folder: Path, play: Play) -> list[str]:
    """The broken promises; none if all held."""
    ledger = Ledger(folder / "ledger")
    environment = {URL_VARIABLE: target.url, LEDGER_VARIABLE: str(ledger.path)}
    async with make_app(target.direct) as direct:
        await (await direct.engine()).store.migrate()
        await direct.worker()  # declares the quotas of the tasks before anything is submitted
        workers = Workers(play.workers, folder, environment)
        try:
            faults = await _disturb(target, ledger, workers, play)
            print(f"{target.name}: {_listed(faults)}", flush=True)
            waited = await _settle(direct, ledger, workers)
            return workers.overdue + await _judge(direct, ledger, target.name, waited)
        finally:
            workers.close()


async def _disturb(target: Target, ledger: Ledger, workers: Workers, play: Play) -> Counter[str]:
    """Submits while one fault follows another."""
    async with make_app(target.url) as fabric:
        submitter = Submitter(fabric, ledger, play.dice, play.rate)
        submitting = asyncio.create_task(submitter.run())
        counted = await _faults(target, workers, play)
        submitter.stopped.set()
        await submitting
    return counted


async def _faults(target: Target, workers: Workers, play: Play) -> Counter[str]:
    dice = play.dice
    faults: dict[str, Fault] = {
        "a worker is killed": workers.kill,
        "a worker freezes": workers.freeze,
        "a worker is drained": workers.drain,
        **target.faults,
    }
    counted: Counter[str] = Counter()
    until = time.monotonic() + play.seconds
    while time.monotonic() < until:
        await asyncio.sleep(dice.uniform(0.3, 2.5))
        name = dice.choice(list(faults))
        counted[name] += 1
        await asyncio.to_thread(faults[name], dice)
        workers.tend()
    return counted


async def _settle(fabric: Fabric, ledger: Ledger, workers: Workers) -> float:
    """Waits until every acknowledged run has ended; the seconds it took."""
    engine = await fabric.engine()
    began = time.monotonic()
    for id in _acknowledged(ledger):
        left = began + PEACE_SECONDS - time.monotonic()
        while left > 0:
            workers.tend()  # a poisoned run still kills processes
            with suppress(TimeoutError):
                await engine.views.wait(id, min(left, 0.5))
                break
            left = began + PEACE_SECONDS - time.monotonic()
    return time.monotonic() - began


async def _judge(fabric: Fabric, ledger: Ledger, name: str, waited: float) -> list[str]:
    lines = list(ledger.read())
    runs = _acknowledged(ledger)
    problems, results = await wrong_endings(fabric, runs)
    problems += repeated_steps(lines)
    problems += changed_values(lines)
    problems += wrong_results(lines, results)
    done = Counter(line.what for line in lines)
    print(
        f"{name}: {len(runs)} runs acknowledged, {done['step']} steps run, {done['kept']} times "
        f"seen, {done['poison']} workers poisoned, all ended {waited:.1f} s after the last fault",
        flush=True,
    )
    return [f"{name}: {problem}" for problem in problems]


def _acknowledged(ledger: Ledger) -> dict[str, str]:
    """The acknowledged runs, and the task of each."""
    return {line.run: line.name for line in ledger.read() if line.what == "ack"}


def _listed(faults: Counter[str]) -> str:
    return ", ".join(f"{count} times {name}" for name, count in sorted(faults.items()))

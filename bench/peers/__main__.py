"""`python -m bench.peers`, or `make bench-peers`."""

import argparse
import sys
import time
from pathlib import Path

from bench.peers import catalog, install, runner, table
from bench.peers.catalog import System
from bench.peers.runner import PARTS, Asked, Figure, Plan
from bench.peers.servers import Servers, written
from bench.peers.session import Session, environment
from bench.record import Record, machine_facts, save

_HELP = """\
Measures FlowFabric and other Python systems with the same job, in turns, on the same servers: one
durable Postgres, one Redis (appendonly, fsync every second).

The job is a function that does nothing, given a number and a text of 450 characters. Parts:
  one     submit a backlog, one job per call; then one worker process runs it
  two     submit a backlog, a thousand per call; then two worker processes run it
  pickup  from a submit to the start of the job, on an idle queue
  steps   runs of three durable steps (systems that have them)
Time counts from the first job to the moment when the system itself sees no job left, so starting a
worker does not count and the last acknowledgement does. Slow systems are stopped after a few
seconds; their rate is that of the jobs they got through.
"""


def main() -> int:
    options = _options()
    plan = Plan(jobs=options.jobs, repeats=options.repeats)
    if options.quick:
        plan = plan.quick()
    began = time.monotonic()
    with Servers() as servers:
        pythons, left_out = _installed(catalog.chosen(options.only))
        systems = [system for system in catalog.chosen(options.only) if system.name in pythons]

        def perform(part: str, system: System, plan: Plan) -> list[Figure]:
            with servers.empty(system.store) as place:
                command = [str(pythons[system.name]), "-m", "bench.peers.adapter", system.adapter]
                with Session(command, environment(system, place)) as session:
                    session.ask("prepare", plan.timeout)
                    return list(PARTS[part](Asked(session, plan, lambda: written(place))))

        results = runner.run(systems, options.parts, plan, perform, _say)
    facts = {"jobs": f"{plan.jobs:,}", "repeats": str(plan.repeats), "redis": "AOF every second"}
    record = Record(machine_facts(**facts), results.rows())
    save(record, options.out)
    print(f"\n{table.markdown(record)}")
    for line in [*left_out, *results.failures]:
        print(f"left out: {line}")
    print(f"{time.monotonic() - began:,.0f} s; record in {options.out}")
    return 1 if left_out or results.failures else 0


def _installed(systems: list[System]) -> tuple[dict[str, Path], list[str]]:
    """The Python of each system, and a line for each one that cannot be run here."""
    found: dict[str, Path] = {}
    left_out = list[str]()
    for system in systems:
        try:
            if system.store == "redis":
                install.redis_server()
            found[system.name] = install.python_for(system.adapter)
        except install.InstallError as error:
            left_out.append(f"{system.name}: {error}")
            _say(left_out[-1])
    return found, left_out


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "bench.peers", description=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(system.name for system in catalog.SYSTEMS)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="SYSTEM", help=f"only these of: {names}"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="only these parts"
    )
    parser.add_argument("--jobs", type=int, default=20_000, help="the backlog (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds (%(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="one round of at most 2,000 jobs: does it all work?"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="where the record goes (bench/results/peers.json; build/peers.json if not all is run)",
    )
    options = parser.parse_args()
    whole = not (options.quick or options.only) and options.parts == list(PARTS)
    options.out = options.out or Path("bench/results/peers.json" if whole else "build/peers.json")
    try:
        catalog.chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    return options


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())

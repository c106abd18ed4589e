"""`python -m chaos --minutes 5`: half of the time on each store, then the verdict."""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from chaos.play import Play, torment
from chaos.stores import postgres_target, sqlite_target

SHOWN = 20
TARGETS = {"sqlite": sqlite_target, "postgres": postgres_target}


def main() -> int:
    options = _options()
    names = [options.store] if options.store else list(TARGETS)
    print(f"chaos: seed {options.seed}", flush=True)
    broken = []
    for name in names:
        dice = random.Random(f"{options.seed}-{name}")
        play = Play(options.minutes * 60 / len(names), options.rate, options.workers, dice)
        broken += _on_store(name, play, keep=options.keep)
    for problem in broken[:SHOWN]:
        print(f"BROKEN: {problem}")
    print(f"chaos: {len(broken)} promises broken" if broken else "chaos: every promise held")
    return 1 if broken else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="how long to inject faults, over both stores"
    )
    parser.add_argument("--store", choices=list(TARGETS), help="test only this store")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed for the order of the faults"
    )
    parser.add_argument(
        "--rate", type=float, default=25.0, help="how many runs to submit per second"
    )
    parser.add_argument("--workers", type=int, default=3, help="worker processes")
    parser.add_argument(
        "--keep", action="store_true", help="keep the ledger, the database and the logs"
    )
    return parser.parse_args()


def _on_store(name: str, play: Play, *, keep: bool) -> list[str]:
    folder = Path(tempfile.mkdtemp(prefix="flowfabric-chaos-"))
    try:
        with TARGETS[name](folder) as target:
            return asyncio.run(torment(target, folder, play))
    finally:
        if keep:
            print(f"{name}: ledger, database and logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

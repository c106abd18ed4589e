"""New identifiers."""

import subprocess
import sys

from flowfabric.core.base.time import Millis
from flowfabric.engine.commit.ids import Ids

NOW = Millis(1_700_000_000_000)

FORKED = """
import os
from flowfabric.engine.commit.ids import Ids
ids = Ids()
ids.fresh(1)
if child := os.fork():
    os.waitpid(child, 0)
print(ids.fresh(2))
"""


def test_ids_of_one_moment_are_ordered_and_differ_in_their_random_part() -> None:
    ids = Ids()
    made = [ids.fresh(NOW) for _ in range(5_000)]
    assert made == sorted(made)
    assert len({id.int & (1 << 62) - 1 for id in made}) == len(made)


def test_a_forked_process_makes_ids_of_its_own() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=True
    )
    of_the_fork, mine = answer.stdout.split()
    assert mine != of_the_fork

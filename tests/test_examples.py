"""The examples are programs that work: each is run as a reader would run it."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

SAID = {
    "external_callback": """
        a forged call gets 403
        the right one gets 200
        the same once more 200
        order-7: 1999 cents, pay-42
        another one later  410
    """,
    "deploy_approval": """
        ada says yes:          thank you
        ada says yes again:    your answer is already counted
        bob says no:           thank you
        eve with ada's token:  your answer is already counted
        eve with her own:      thank you, that decides it
        shop v7 is on web-1, web-2 (ada approved, bob rejected, eve approved)
    """,
    "flow_diamond": """
        released the hold on the hotel
        the flow failed: book_hotel did not succeed
          book_flight  completed
          book_hotel   failed
          itinerary    skipped
          release      completed
          reserve      completed
        seat 12A, then room 7
    """,
    "flow_first_of_three": """
        unpacked
        lima: cancelled, it lost the race
        oslo: the file from oslo
        pune: cancelled, it lost the race
        the flow has completed
    """,
    "flow_quorum": """
        all are up:     'one' is safe
        one is down:    'two' is safe
        two are down:   not safe: 2 replicas failed
    """,
    "media_pipeline": """
        A tram
          tram-1080p.mp4, 97,200 kB
          tram-720p.mp4, 64,800 kB
          captions: tram.en.vtt, tram.pt.vtt
    """,
    "token_budget": """
        five at once:
          answered for 2400 tokens
          answered for 2400 tokens
          answered for 2400 tokens
          refused, budget team: 9000 of 10000 tokens are taken, 3000 more do not fit
          refused, budget team: 9000 of 10000 tokens are taken, 3000 more do not fit
          7200 of 10000 tokens are used, 0 reserved
          the model has counted 7200
        two more, one after the other:
          answered for 2400 tokens
          refused, budget team: 9600 of 10000 tokens are taken, 1000 more do not fit
          9600 of 10000 tokens are used, 0 reserved
          the model has counted 9600
        the rest is spent elsewhere, and nothing starts any more:
          budget team: 10000 of 10000 tokens
          with a higher limit: answered for 2400 tokens
    """,
    "per_customer": """
        bolt and cora are done, acme still waits: True
        acme: 100 runs, 2 at once at most
        bolt: 4 runs, 2 at once at most
        cora: 4 runs, 2 at once at most
    """,
    "soft_limit": """
        6 of 5 calls: continue for 5 more?
          ada says yes
        11 of 10 calls: continue for 5 more?
          ada says no
        stopped after thought 10: budget agent: 11 of 10 calls are taken
    """,
    "rolling_deploy": """
        the old code: 4 orders wait for their payment
        the new code: 3 of them are shipped and wait for a review
        rolled back:  the last one is shipped
                      blocked by code, not asked for is step 3: 'thank' (call 1)
        both at once: order is shipped and reviewed
        both at once: order is shipped and reviewed
        both at once: order is shipped and reviewed
        every step was done once: True
    """,
    "nightly_etl": """
        2026-11-15: 200 shops, 900 orders, 19,900.00
        shops were listed 1 time, loaded 201 times
    """,
    "agent_tool_call": """
        Ada saw an old screen: what is to be approved is not what the sender approves
        refunded 2500 cents to c-17
        I did not do it: 'tool call' was approved for something else
        the ledger says: ['c-17 2500']
    """,
}


NEEDS_SERVER = {"http_worker"}
"""Run by tests/server/test_work_example.py."""


@pytest.mark.parametrize(
    "name", sorted({path.stem for path in EXAMPLES.glob("*.py")} - NEEDS_SERVER)
)
def test_the_example_works(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    wanted = dedent(SAID[name]).strip().splitlines()
    assert (done.stdout.splitlines(), done.returncode) == (wanted, 0), done.stderr

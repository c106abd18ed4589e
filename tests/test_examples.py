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
        ada says yes again:    that was counted before
        bob says no:           thank you
        eve with ada's token:  that was counted before
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


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_the_example_works(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    wanted = dedent(SAID[name]).strip().splitlines()
    assert (done.stdout.splitlines(), done.returncode) == (wanted, 0), done.stderr

"""`flowfabric demo --serve`: one command, something to look at, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flowfabric.demo import lively
from flowfabric.worker.errors import Fail
from tests.cli.terminal import Cli


def start(home: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "flowfabric.cli", "demo", "--serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(home)},
        # Tests that run in the background ignore SIGINT, and so would the demo.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own server
        content = answer.read()
    return json.loads(content) if "/v1/" in url else content.decode()


def _works(seen: Any) -> bool:
    """Whether both workers have said that they are there, and a run has ended."""
    return bool(seen["counts"]["completed"]) and len(seen["workers"]) == 2


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_a_lively_sample_until_a_signal(tmp_path: Path, number: int) -> None:
    process = start(tmp_path)
    assert process.stdout is not None
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert found is not None
        address = found[0]
        assert "FlowFabric" in get(address)
        while not _works(seen := get(f"{address}v1/overview")):
            time.sleep(0.1)  # it needs the processor more than we do
        assert {worker["worker"] for worker in seen["workers"]} == {"ada", "bob"}
        assert {lane["lane"] for lane in seen["lanes"]} & {"orders", "thumbnails", "nightly"}
        budgets = get(f"{address}v1/budgets")["budgets"]
        assert "model tokens" in {budget["name"] for budget in budgets}
        assert get(f"{address}v1/flows")["flows"][0]["kind"] == "nightly report"
    finally:
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "stopped; everything was cleaned up\n")
    assert list(tmp_path.iterdir()) == []


async def test_what_an_order_does_follows_from_its_number() -> None:
    with pytest.raises(Fail, match="order 9 was declined"):
        await lively.charge_card(9, 1)
    with pytest.raises(ConnectionError):
        await lively.charge_card(5, 1)
    assert await lively.charge_card(5, 2) == "receipt-00005"


def test_a_port_is_for_what_listens(cli: Cli) -> None:
    assert cli.complaint("demo", "--port", "9999", code=2) == "--port goes with --serve"

"""Metrics of `flowfabric worker` and `flowfabric server`, as processes of their own."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.terminal import APP, Cli, follow
from tests.kit.scrape import Scrape

ROOT = Path(__file__).parents[2]


@contextmanager
def started(*command: str) -> Iterator[str]:
    """A process that serves metrics; yields where. It ends with the block, and well."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flowfabric.cli", *command],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "src:."},
    )
    try:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "it has ended"
            found = re.search(r"metrics on (http\S+)", line)
        yield found[1]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port: int = found.getsockname()[1]
        return port


def look(url: str) -> Scrape:
    reply = httpx.get(url, timeout=60)
    assert reply.status_code == 200
    return Scrape(reply.text)


def test_a_worker_serves_its_metrics(cli: Cli) -> None:
    id = cli.submit("greet", "--arg", "name=ada")
    with started("worker", APP, "--url", cli.url, "--metrics-listen", "127.0.0.1:0") as url:
        follow(cli.url, id, "completed")
        while not (found := look(url)).value("ff_attempt_outcome_total", outcome="ok"):
            pass  # it is counted right after it is written
        assert found.value("ff_executions_claimed_total") == 1
        assert found.value("ff_batch_size_count", batch="claim") >= 1


def test_an_address_that_is_none_is_told(cli: Cli) -> None:
    said = cli.complaint("worker", APP, "--metrics-listen", "nowhere", code=2)
    assert "an address has a host and a port" in said


@pytest.mark.parametrize("processes", [1, 2])
def test_the_processes_of_a_server_answer_for_each_other(cli: Cli, processes: int) -> None:
    """Each process accepts some of the requests; every scrape counts all of them."""
    port, metrics_port = free_port(), free_port()
    command = ["server", "--store", cli.url, "--listen", f"127.0.0.1:{port}"]
    command += ["--processes", str(processes), "--metrics-listen", f"127.0.0.1:{metrics_port}"]
    with started(*command) as url:
        assert url == f"http://127.0.0.1:{metrics_port}/metrics"
        for _ in range(20):  # a connection each, so that both processes get some
            assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        assert httpx.get(f"http://127.0.0.1:{port}/metrics").status_code == 404
        for _ in range(5):
            found = look(url)
            counted = found.value("ff_http_requests_total", path="/healthz", status="200")
            assert counted == 20
            assert found.value("ff_http_request_duration_seconds_count", path="/healthz") == 20
            assert found.has("ff_queue_depth") or found.has("ff_workers")

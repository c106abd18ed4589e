"""The server as a process: start, stop, several on one port, kill -9, a worker beside it."""

import concurrent.futures
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from flowfabric.cli.app import app
from tests.kit.http import EXECUTION, NOBODY
from tests.kit.server_process import ServerProcess, server_process

APP = """
from flowfabric import Fabric

fabric = Fabric("sqlite:///never-used.db")


@fabric.task
async def double(number: int) -> int:
    return 2 * number
"""


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'work.db'}"


def test_a_server_serves_and_drains(store: str) -> None:
    with server_process("--store", store) as server:
        assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}
        assert httpx.get(f"{server.url}/readyz").json()["status"] == "ready"
        assert server.stop() == 0
        assert any("draining" in line for line in server.lines)


def test_a_request_under_way_ends_before_the_server_does(store: str) -> None:
    """Shutdown (server-sdk 2.3): stop accepting, then wait for requests in flight. The worker that
    delivers webhooks ends first, and its end must not cut the drain short."""
    with server_process("--store", store, "--drain-timeout", "30s") as server:
        with _half_sent(server.url) as (connection, rest):
            server.process.terminate()
            server.logged("signed off")
            server.logged("Waiting for connections to close")
            connection.sendall(rest)
            answer = connection.recv(64 * 1024)
        assert answer.startswith(b"HTTP/1.1 201 "), answer
        assert server.wait() == 0


def test_a_second_signal_stops_a_server_at_once(store: str) -> None:
    arguments = ("--store", store, "--drain-timeout", "1h")
    with server_process(*arguments) as server, _half_sent(server.url) as (connection, _):
        server.process.terminate()
        server.logged("Waiting for connections to close")
        server.process.terminate()
        assert server.wait() == 0
        assert b" 201 " not in connection.recv(64 * 1024)


@contextmanager
def _half_sent(url: str) -> Iterator[tuple[socket.socket, bytes]]:
    """A connection on which half of a request that creates an execution was sent, and the rest."""
    body = json.dumps(EXECUTION).encode()
    head = f"POST /v1/executions HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    head += "Expect: 100-continue\r\n\r\n"
    address = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(head.encode() + body[:10])
        assert b"100 Continue" in connection.recv(1024)  # a handler waits for the body
        yield connection, body[10:]


def test_a_server_has_a_key_for_waitpoints_from_its_start(store: str) -> None:
    """FLAW-30 of the server: a token is judged although nothing has waited for a signal yet."""
    with server_process("--store", store) as server, httpx.Client(base_url=server.url) as http:
        made = http.post("/v1/executions", json=EXECUTION).json()["Created"]["execution_id"]
        words = ("signal_name", "signal_category", "source_type", "source_identity", "target_scope")
        body = dict.fromkeys(words, "x") | {
            "waitpoint_id": NOBODY,
            "waitpoint_token": "k:" + "0" * 64,
        }
        reply = http.post(f"/v1/executions/{made}/signal", json=body)
        assert (reply.status_code, reply.json()["code"]) == (400, "invalid_token")


def test_the_token_of_the_environment_is_wanted(store: str) -> None:
    environ = {"FLOWFABRIC_TOKEN": "correct-horse-battery"}
    with server_process("--store", store, environ=environ) as server:
        url = f"{server.url}/v1/counts"
        assert httpx.get(url).status_code == 401
        wrong = {"Authorization": "Bearer correct-horse-batterx"}
        assert httpx.get(url, headers=wrong).status_code == 401
        right = {"Authorization": "Bearer correct-horse-battery"}
        assert httpx.get(url, headers=right).status_code == 200
        assert not any("correct-horse" in line for line in server.lines)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--request-timeout", "soon"), "invalid value for --request-timeout"),
        (("--rate-limit", "many"), "invalid value for --rate-limit"),
        (("--cors-origins", "nonsense"), "invalid value for --cors-origins"),
        (("--tls-cert", "/nowhere"), "invalid value for --tls-cert"),
    ],
)
def test_a_server_does_not_guess(store: str, arguments: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(app, ["server", "--store", store, *arguments])
    assert (result.exit_code, text in result.stderr) == (2, True), result.stderr


def test_a_certificate_that_cannot_be_read_is_no_reason_for_a_traceback(
    store: str, tmp_path: Path
) -> None:
    """server-sdk.md 2.1: a wrong value is named and ends the start with 1, or 2 if it is a flag."""
    file = tmp_path / "nonsense.pem"
    file.write_text("nonsense")
    by_flag = ServerProcess("--store", store, "--tls-cert", str(file), "--tls-key", str(file))
    variables = {f"FLOWFABRIC_TLS_{name}": str(file) for name in ("CERT", "KEY")}
    by_variable = ServerProcess("--store", store, environ=variables)
    key = {"FLOWFABRIC_TLS_KEY": str(file)}
    by_both = ServerProcess("--store", store, "--tls-cert", str(file), environ=key)
    assert (by_flag.wait(), by_variable.wait(), by_both.wait()) == (2, 1, 2)
    named = (by_flag, "--tls-cert"), (by_variable, "FLOWFABRIC_TLS_CERT"), (by_both, "--tls-cert")
    for server, name in named:
        (line,) = server.lines
        assert f"invalid value for {name}: not a certificate with its key" in line


@pytest.mark.parametrize("secret", ["", "abc", "zz" * 32])
def test_a_server_does_not_start_with_a_secret_it_cannot_use(store: str, secret: str) -> None:
    """An empty one is not taken for none: a secret of its own would sign what others cannot."""
    environ = {"FLOWFABRIC_WAITPOINT_SECRET": secret}
    server = ServerProcess("--store", store, environ=environ)
    assert server.wait() == 1
    assert any("FLOWFABRIC_WAITPOINT_SECRET" in line for line in server.lines), server.lines


def test_an_address_that_is_taken_is_a_failure_and_no_wrong_usage(store: str) -> None:
    with server_process("--store", store) as first:
        server = ServerProcess("--store", store, listen=first.url.removeprefix("http://"))
        assert server.wait() == 1
        assert any("cannot listen on" in line for line in server.lines), server.lines


def test_a_server_is_not_open_to_others_by_mistake(store: str) -> None:
    server = ServerProcess("--store", store, listen="0.0.0.0:0")
    assert server.wait() == 1
    assert any("refusing to listen" in line for line in server.lines), server.lines


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("MAX_STREAM_READERS", "0"),
        ("CORS_ORIGINS", "nonsense"),
        ("WAITPOINT_SECRET", "abc"),
    ],
)
def test_a_variable_that_is_not_understood_is_a_failure(variable: str, text: str) -> None:
    """server-sdk.md 2.1: the server does not start, names the variable, and exits with 1."""
    name = f"FLOWFABRIC_{variable}"
    server = ServerProcess("--store", "sqlite://", environ={name: text})
    assert server.wait() == 1
    assert any(f"invalid value for {name}: " in line for line in server.lines), server.lines


@pytest.mark.parametrize("text", ["*", "https://app.example.com,nonsense"])
def test_a_server_allows_the_pages_that_it_is_given(text: str) -> None:
    """server-sdk.md 1.6: `*` is every page; what is no origin is dropped with a warning."""
    page = {"Origin": "https://app.example.com"}
    asked = {**page, "Access-Control-Request-Method": "PUT"}
    environ = {"FLOWFABRIC_CORS_ORIGINS": text}
    with server_process("--store", "sqlite://", environ=environ) as server:
        reply = httpx.options(f"{server.url}/v1/executions", headers=asked)
        allowed = reply.headers["access-control-allow-origin"]
        assert allowed == ("*" if text == "*" else page["Origin"])
        assert "PUT" in reply.headers["access-control-allow-methods"]
        made = httpx.post(f"{server.url}/v1/executions", json=EXECUTION, headers=page)
        assert (made.status_code, made.headers["access-control-allow-origin"]) == (201, allowed)
        words = "CORS is open" if text == "*" else "'nonsense' is not an origin"
        assert any(words in line and "WARNING" in line for line in server.lines), server.lines


def test_processes_drain_when_their_parent_is_killed(store: str) -> None:
    with server_process("--store", store, "--processes", "2") as server:
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        server.process.kill()
        server.wait()  # until nobody writes to its log any more
        assert sum(line.endswith("stopped") for line in server.lines) == 2


def test_two_processes_share_a_port(store: str) -> None:
    with server_process("--store", store, "--processes", "2") as server:
        url = server.url
        pids = {line.split("[")[1] for line in server.lines if "Started server process" in line}
        with httpx.Client() as http:
            for _ in range(20):
                assert http.post(f"{url}/v1/executions", json=EXECUTION).status_code == 201
            counts = http.get(f"{url}/v1/counts").json()["by_state"]
        assert counts["waiting"] == 20
        assert len(pids) <= 2
        assert server.stop() == 0


def _create(http: httpx.Client, url: str, key: str) -> str | None:
    """The id of an acknowledged create, None if the server was gone."""
    try:
        reply = http.post(f"{url}/v1/executions", json={**EXECUTION, "idempotency_key": key})
    except httpx.HTTPError:
        return None
    found: str = next(iter(reply.json().values()))["execution_id"]
    return found


@pytest.mark.long
def test_a_killed_server_loses_nothing_acknowledged(store: str) -> None:
    pool = concurrent.futures.ThreadPoolExecutor(8)
    with httpx.Client() as http, server_process("--store", store) as server, pool:
        url = server.url
        sent = [pool.submit(_create, http, url, f"k{n}") for n in range(400)]
        done, _ = concurrent.futures.wait(sent, return_when=concurrent.futures.FIRST_COMPLETED)
        next(iter(done)).result()
        server.kill()
        acknowledged = [id for each in sent if (id := each.result()) is not None]
    assert acknowledged
    with httpx.Client() as http, server_process("--store", store) as server:
        for id in acknowledged:
            assert http.get(f"{server.url}/v1/executions/{id}/state").json() == "waiting"


def test_one_command_is_a_whole_system(store: str, tmp_path: Path) -> None:
    (tmp_path / "sample_app.py").write_text(APP)
    environ = {"PYTHONPATH": f"{tmp_path}:src:."}
    with server_process("--store", store, "--app", "sample_app:fabric", environ=environ) as server:
        body = {
            **EXECUTION,
            "execution_kind": "double",
            "input_payload": list(b'{"number":21}'),
        }
        made = httpx.post(f"{server.url}/v1/executions", json=body).json()
        id = made["Created"]["execution_id"]
        reply = httpx.get(f"{server.url}/v1/executions/{id}/wait?wait=30s", timeout=40)
        assert (reply.status_code, reply.json()["result"]) == (200, 42), reply.text
        assert server.stop() == 0

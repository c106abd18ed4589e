"""How answers reach the socket: few writes, in order, and none after the end."""

import asyncio
from typing import cast

import httpx

from flowfabric.server.http.protocol import AT_ONCE, GatheredWrites
from tests.kit.server_process import server_process


class Recorded:
    """A transport that keeps what was written, each write on its own."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"


def gathered() -> tuple[Recorded, GatheredWrites]:
    under = Recorded()
    return under, GatheredWrites(cast("asyncio.Transport", under), asyncio.get_running_loop())


async def test_head_and_body_are_one_write() -> None:
    under, transport = gathered()
    transport.write(b"head ")
    transport.write(b"body")
    assert under.writes == []
    await asyncio.sleep(0)
    assert under.writes == [b"head body"]
    transport.write(b"next")
    await asyncio.sleep(0)
    assert under.writes == [b"head body", b"next"]


async def test_much_is_written_at_once_so_that_a_slow_client_holds_it_back() -> None:
    under, transport = gathered()
    transport.write(b"head ")
    transport.write(b"x" * AT_ONCE)
    assert under.writes == [b"head " + b"x" * AT_ONCE]
    transport.write(b"tail")
    await asyncio.sleep(0)
    assert under.writes[1:] == [b"tail"]


async def test_what_was_written_before_the_end_is_sent() -> None:
    under, transport = gathered()
    transport.write(b"last")
    transport.close()
    assert (under.writes, under.closed) == ([b"last"], True)
    await asyncio.sleep(0)
    assert under.writes == [b"last"]


async def test_nothing_is_written_to_a_connection_that_is_gone() -> None:
    under, transport = gathered()
    transport.write(b"never")
    under.close()
    await asyncio.sleep(0)
    assert under.writes == []


async def test_the_rest_is_left_to_the_transport() -> None:
    _, transport = gathered()
    assert transport.get_extra_info("peername") == "the peername"


def test_a_server_answers_many_requests_on_one_connection() -> None:
    with server_process("--store", "sqlite://") as server, httpx.Client() as http:
        for _ in range(3):
            assert http.get(f"{server.url}/healthz").json() == {"status": "ok"}
            large = http.get(f"{server.url}/v1/openapi.json")
            assert len(large.content) == int(large.headers["content-length"]) > AT_ONCE
            refused = http.post(f"{server.url}/v1/executions", content=b"x" * (2 << 20))
            assert refused.status_code == 413

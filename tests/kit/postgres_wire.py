"""The messages of Postgres, as far as a pooler and a proxy before it must understand them."""

import asyncio
from urllib.parse import parse_qs, urlsplit

SSL_REQUEST = b"\x04\xd2\x16\x2f"
READY, ERROR, IDLE = b"Z", b"E", b"I"


async def dial(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the server at `url`, before its first message."""
    parts = urlsplit(url)
    folder = parse_qs(parts.query).get("host", [""])[0]
    port = parts.port or 5432
    if folder.startswith("/"):
        return await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{port}")
    return await asyncio.open_connection(parts.hostname or folder, port)


async def read_message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


async def read_body(reader: asyncio.StreamReader) -> bytes:
    """The first message of a client, which has no type, without its size."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size - 4)


def with_size(body: bytes) -> bytes:
    return (len(body) + 4).to_bytes(4, "big") + body

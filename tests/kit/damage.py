"""Rows that somebody has damaged behind the engine's back."""

import sqlite3
from contextlib import closing
from typing import Any
from uuid import UUID

import asyncpg

from flowfabric.core.base.ids import ExecutionId


async def run_sql(url: str, query: str, *values: Any) -> None:
    """Runs one statement; `?` stands for a value."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10)) as file, file:
            plain = [value.bytes if isinstance(value, UUID) else value for value in values]
            file.execute(query, plain)
        return
    for number in range(len(values)):
        query = query.replace("?", f"${number + 1}", 1)
    connection = await asyncpg.connect(url, server_settings={"search_path": "flowfabric"})
    await connection.execute(query, *values)
    await connection.close()


async def spoil(url: str, table: str, column: str, id: str | UUID, key: str = "id") -> None:
    """Writes nonsense where a document was."""
    at = ExecutionId(str(id)).uuid if str(id).startswith("{") else id
    await run_sql(url, f"update {table} set {column} = ? where {key} = ?", b"\xff{", at)


async def repair(url: str, table: str, column: str, id: str) -> None:
    """Takes the nonsense away."""
    await run_sql(url, f"update {table} set {column} = null where id = ?", ExecutionId(id).uuid)

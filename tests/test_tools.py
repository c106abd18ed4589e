from collections.abc import Collection
from pathlib import Path

import pytest

from tools import check_house, check_size, check_sql

NOTHING: dict[str, set[str]] = {"postgres": set(), "sqlite": set()}


@pytest.fixture
def write(tmp_path: Path) -> "Writer":
    return Writer(tmp_path)


class Writer:
    """Writes files below a temporary root and checks them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def sql(self, folder: str, text: str) -> None:
        self(f"src/flowfabric/store/{folder}/notes.sql", text)

    def use(self, *names: str) -> None:
        self("src/flowfabric/store/notes.py", f"USED = {list(names)!r}\n")

    def check_size(self, exceptions: dict[str, int] | None = None) -> list[str]:
        return check_size.check(self.root, exceptions or {})

    def check_sql(self, only: dict[str, set[str]] = NOTHING) -> list[str]:
        return check_sql.check(self.root, only)

    def check_house(self, uncalled: Collection[str] = ()) -> list[str]:
        return check_house.check(self.root, uncalled)


def function(lines: int) -> str:
    return "def f() -> None:\n" + '    """Docstrings\n    are free."""\n' + "    print()\n" * lines


def test_an_empty_tree_is_in_order(write: Writer) -> None:
    assert write.check_size() == []
    assert write.check_sql() == []
    assert write.check_house() == []


def test_a_folder_of_a_layer_is_one_of_the_five_words(write: Writer) -> None:
    write("src/flowfabric/core/execution/lease.py", "")
    write("src/flowfabric/engine/commit/batch.py", "")
    assert write.check_house() == []
    write("src/flowfabric/engine/things/thing.py", "")
    (complaint,) = write.check_house()
    assert complaint.startswith("src/flowfabric/engine/things: a folder is one of access, commit")


def test_both_dialects_have_the_same_files(write: Writer) -> None:
    write("src/flowfabric/store/sqlite/claim.sql", "")
    assert write.check_house() == ["store/sqlite/claim.sql: there is no store/postgres/claim.sql"]
    write("src/flowfabric/store/postgres/claim.sql", "")
    assert write.check_house() == []


def test_the_contract_of_a_store_has_few_methods(write: Writer) -> None:
    methods = "".join(f"    async def m{n}(self): ...\n" for n in range(check_house.MOST_METHODS))
    fact = "    @property\n    def name(self): ...\n"
    write(
        "src/flowfabric/store/contract.py",
        f"class RecordStore:\n    def get(self): ...\nclass Store:\n{methods}{fact}",
    )
    assert write.check_house() == []
    write("src/flowfabric/store/contract.py", f"class Store:\n{methods}    def one(self): ...\n")
    most = check_house.MOST_METHODS
    expected = f"store/contract.py asks {most + 1} methods of a store, not {most}"
    assert write.check_house() == [expected]


def test_a_class_name_has_one_meaning(write: Writer) -> None:
    write("src/flowfabric/a.py", "class Thing: ...\nclass _Own: ...")
    write("src/flowfabric/b.py", "class _Own: ...")
    assert write.check_house() == []
    write("src/flowfabric/b.py", "class Thing: ...")
    assert write.check_house() == [
        "class Thing has several meanings: src/flowfabric/a.py, src/flowfabric/b.py"
    ]


def test_only_the_retry_loop_gives_up(write: Writer) -> None:
    write("src/flowfabric/engine/commit/retry.py", "raise RetryExhausted('ten times')")
    write("src/flowfabric/worker/loop.py", "try: pass\nexcept RetryExhausted: pass")
    assert write.check_house() == []
    write("src/flowfabric/engine/flow/flows.py", "x = 1\nerror = RetryExhausted('often')")
    assert write.check_house() == [
        "src/flowfabric/engine/flow/flows.py:2: use the retry loop of engine/commit/retry.py"
    ]


def test_no_call_loses_a_cancel(write: Writer) -> None:
    write("src/flowfabric/a.py", "x = 1\nasyncio.wait_for(x, 1)\nground.wait_for(x)")
    assert write.check_house() == [
        "src/flowfabric/a.py:2: wait_for may lose a cancel: use asyncio.timeout"
    ]


SERVICES = """
class Lanes(Service):
    async def pause(self): ...
    async def _row(self): ...
    def drop(self): ...
class Engine:
    def __init__(self, context):
        self.lanes, self.context = None, context
        self.lanes = Lanes(context)
        self._hidden = Lanes(context)
"""


@pytest.mark.parametrize(
    ("caller", "text"),
    [
        ("cli/lanes.py", "engine.lanes.pause()"),
        ("fabric.py", "lanes = self.engine.lanes\nlanes.pause()"),
        ("engine/sweep.py", "self._lanes.pause()"),
    ],
)
def test_an_operation_of_the_engine_has_a_caller(write: Writer, caller: str, text: str) -> None:
    write("src/flowfabric/engine/engine.py", SERVICES)
    (complaint,) = write.check_house()
    assert complaint.startswith("engine.lanes.pause has no caller in worker, cli")
    assert write.check_house(uncalled={"lanes.pause"}) == []
    write("src/flowfabric/core/lane.py", "engine.lanes.pause()")
    assert len(write.check_house()) == 1, "not every part of the product is a reason"
    write(f"src/flowfabric/{caller}", text)
    assert write.check_house() == []
    assert write.check_house(uncalled={"lanes.pause", "lanes.gone"}) == [
        "engine.lanes.pause has a caller: take it off UNCALLED",
        "engine.lanes.gone is no operation: take it off UNCALLED",
    ]


def test_what_is_within_the_limits_is_in_order(write: Writer) -> None:
    write("src/a.py", function(40))
    write("tests/b.py", "x = 1\n" * 700)
    assert write.check_size() == []


@pytest.mark.parametrize("name", ["src/a.py", "src/a.sql", "tests/a.py", "bench/a.py"])
def test_a_file_of_701_lines_is_too_long(write: Writer, name: str) -> None:
    write(name, "\n" * 701)
    assert write.check_size() == [f"{name}: 701 lines, at most 700"]


def test_a_function_of_41_lines_is_too_long_in_src_only(write: Writer) -> None:
    write("tests/a.py", function(41))
    assert write.check_size() == []
    write("src/a.py", function(41))
    assert write.check_size() == ["src/a.py::f: 41 lines, at most 40"]


def test_a_class_of_26_methods_is_too_wide(write: Writer) -> None:
    methods = "".join(f"    async def m{n}(self) -> None: ...\n" for n in range(26))
    write("src/a.py", f"class Wide:\n{methods}")
    assert write.check_size() == ["src/a.py::Wide: 26 methods, at most 25"]


def test_an_exception_is_a_limit_of_its_own_and_has_to_be_needed(write: Writer) -> None:
    write("src/a.py", function(41))
    assert write.check_size({"src/a.py::f": 41}) == []
    write("src/a.py", function(40))
    assert write.check_size({"src/a.py::f": 41}) == ["src/a.py::f: exception no longer needed"]


def test_a_query_that_is_used_is_in_order(write: Writer) -> None:
    write.sql("common", "-- name: all_notes\n-- Every note; oldest first.\nselect * from note;\n")
    write.sql("sqlite/migrations", "create table a (b); create table c (d);")
    write.use("all_notes")
    assert write.check_sql() == []


def test_an_unused_query_is_refused(write: Writer) -> None:
    write.sql("common", "-- name: all_notes\nselect * from note")
    assert write.check_sql() == ["common/notes.sql: all_notes is never used"]


def test_a_docstring_is_no_use_of_a_query(write: Writer) -> None:
    write.sql("common", "-- name: all_notes\nselect * from note")
    write("src/flowfabric/store/notes.py", '"""all_notes"""\n')
    assert write.check_sql() == ["common/notes.sql: all_notes is never used"]


@pytest.mark.parametrize("body", ["select 1; select 2", "-- only prose;", ""])
def test_a_block_is_exactly_one_statement(write: Writer, body: str) -> None:
    write.sql("common", f"-- name: all_notes\n{body}\n")
    write.use("all_notes")
    assert "statements, not one" in write.check_sql()[0]


def test_rows_to_delete_are_locked_once(write: Writer) -> None:
    """`in (select … skip locked)` may run again for each row, and deletes beyond its limit then."""
    locked = "select id from note order by max(at, 0) limit $1 for update skip locked"
    write.sql("common", f"-- name: old_notes\ndelete from note where id in (\n    {locked}\n)\n")
    write.use("old_notes")
    assert "old_notes locks in" in write.check_sql()[0]
    write.sql("common", f"-- name: old_notes\ndelete from note where id = any(array({locked}))\n")
    assert write.check_sql() == []


def test_a_semicolon_in_a_text_ends_no_statement(write: Writer) -> None:
    write.sql("common", "-- name: all_notes\nselect 'it''s; fine';\n")
    write.use("all_notes")
    assert write.check_sql() == []


def test_what_is_included_is_a_part_and_every_part_is_included(write: Writer) -> None:
    write.use("all_notes")
    write.sql("sqlite", "-- name: all_notes\nselect 1\n-- include: tail\n")
    only = {**NOTHING, "sqlite": {"all_notes"}}
    assert "sqlite/notes.sql: all_notes includes tail, which is no part" in write.check_sql(only)
    write.sql("common", "-- part: tail\nfrom note\n")
    assert write.check_sql(only) == []
    write.sql("sqlite", "-- name: all_notes\nselect 1\n")
    assert "common/notes.sql: tail is never included" in write.check_sql(only)


def test_a_name_stands_once_in_a_dialect(write: Writer) -> None:
    write.sql("common", "-- name: all_notes\nselect 1;\n-- name: all_notes\nselect 2;\n")
    write.use("all_notes")
    assert write.check_sql() == ["common/notes.sql: all_notes is already in common/notes.sql"]


def test_a_dialect_that_replaces_a_common_query_says_why(write: Writer) -> None:
    write.sql("common", "-- name: all_notes\nselect 1;\n")
    write.use("all_notes")
    write.sql("sqlite", "-- name: all_notes\n-- Differs: no arrays.\nselect 2;\n")
    assert write.check_sql() == []
    write.sql("sqlite", "-- name: all_notes\nselect 2;\n")
    assert "must begin with '-- Differs: '" in write.check_sql()[0]


def test_a_query_of_one_dialect_is_listed(write: Writer) -> None:
    write.sql("postgres", "-- name: all_notes\nselect 1;\n")
    write.sql("sqlite", "")
    write.use("all_notes")
    assert "exists in this dialect only" in write.check_sql()[0]
    assert write.check_sql({"postgres": {"all_notes"}, "sqlite": set()}) == []
    assert "without need" in write.check_sql({"postgres": {"all_notes"}, "sqlite": {"gone"}})[0]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT id FROM note",
        "select 1",
        "select pg_notify(:channel, '')",
        "\n  insert into note values (1)",
        "update note set body = 1",
        "delete from note",
        "with x as (select 1) select 2",
        "create unique index i on note (id)",
    ],
)
def test_sql_in_a_python_string_is_refused(write: Writer, text: str) -> None:
    write("src/flowfabric/engine/a.py", f"QUERY = {text!r}\n")
    write("src/flowfabric/engine/b.py", f"QUERY = f{text + ' {x}'!r}\n")
    assert len(write.check_sql()) == 2


@pytest.mark.parametrize(
    "text", ["begin immediate", "commit", "pragma wal", "select a lane", "update the lease", "with"]
)
def test_words_of_the_session_and_prose_are_no_sql(write: Writer, text: str) -> None:
    write("src/flowfabric/engine/a.py", f"def f():\n    'Delete from here.'\n    return {text!r}\n")
    assert write.check_sql() == []

"""Fails when the SQL files and the Python code disagree, or when SQL hides in a Python string.

A query is a block: `-- name: some_name`, comment lines, one statement. Blocks live in
`store/common`, `store/sqlite` and `store/postgres`; a dialect's block replaces the common one of
the same name and says why in its first line (`-- Differs: …`). What several statements share is a
block `-- part: some_name`, which a line `-- include: some_name` puts in. Files in `migrations/` are
free.
Words of the session (begin, commit, rollback, pragma, set, listen, notify) may stand in Python.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

DIALECTS = ("postgres", "sqlite")

ONLY: dict[str, set[str]] = {
    "postgres": {
        "admitted_executions",
        "analyzed",
        "ledger",
        "candidates",
        "changed_lease",
        "committed",
        "this_transaction",
        "counted_flows",
        "done_rows",
        "ended_and_claimed",
        "ended_directly",
        "ended_in_chains",
        "ended_leases",
        "ended_plainly",
        "ended_sessions",
        "ended_with_downstreams",
        "event_writers",
        "flow_stamp",
        "has_schema",
        "has_version",
        "hint",
        "newest_hint",
        "news",
        "idle_sessions",
        "invalid_indexes",
        "lock_waits",
        "locked_promotion",
        "mend_autovacuum",
        "mend_dead_rows",
        "mend_invalid_index",
        "mend_key",
        "mend_options",
        "mend_prepared",
        "mend_reload",
        "mend_session",
        "mend_setting",
        "mend_slot",
        "mend_unlogged",
        "mend_wraparound",
        "quiet_tables",
        "server_clients",
        "server_settings",
        "server_state",
        "served_lines",
        "snapshot_holders",
        "table_health",
        "laid_flows",
        "lease_rows",
        "locked_quotas",
        "newest_route",
        "moment",
        "names_lock",
        "new_schema",
        "progress_writes",
        "open_writers",
        "owing_flows",
        "parked_rows",
        "posted",
        "held_directly",
        "readied_directly",
        "resumed_directly",
        "suspended_directly",
        "ready_executions",
        "ready_rows",
        "released_before",
        "returned_leases",
        "schema_lines",
        "schema_lock",
        "served_by",
        "session",
        "set_aside",
        "shrunk_tables",
        "quota_view",
        "state_versions",
        "stray_ready",
        "submitted_executions",
        "tagged_execution",
        "taken_back_starts",
        "taken_leases_by_lane",
        "trimmed_done",
        "unbounded",
        "unsettled_edges",
        "walked_ready",
        "written_frames",
    },
    "sqlite": {
        "own_tables",
        "counted_idle_queue",
        "any_suspect",
        "outbox",
        "expired_stream",
        "grown_stream",
        "new_frames",
        "new_gaps",
        "new_stream",
        "stream_gaps",
        "stream_header",
        "stream_versions",
        "suspect_executions",
        "admission_quotas",
        "admissions",
        "arrived_holder",
        "arrived_key",
        "begun_candidates_of_route",
        "begun_executions",
        "budget_versions",
        "budgets",
        "candidates_of_route",
        "charges",
        "claimable_executions",
        "completed_outbox",
        "completed_awaited",
        "completed_deadline",
        "completed_event",
        "completed_lease",
        "counted_quotas",
        "duty_holder",
        "fewer_admissions",
        "forgotten",
        "forgotten_admissions",
        "full_windows",
        "gone_admission",
        "gone_budget_charges",
        "gone_budget_ledgers",
        "gone_budgets",
        "gone_ledgers",
        "gone_reservations",
        "held_keys",
        "held_queues",
        "known_inbox",
        "last_event",
        "newly_forgotten",
        "old_registry_events",
        "last_window_event",
        "last_window_event_of",
        "later_leases",
        "latest_turns",
        "leases_by_route",
        "ledgers",
        "limited_lanes",
        "line_candidates",
        "line_continuing",
        "lines",
        "lines_among",
        "first_of_lines",
        "held_by_line",
        "live_key",
        "missing_outbox",
        "missing_queues",
        "moved_done",
        "moved_lease",
        "moved_parked",
        "moved_ready",
        "new_admissions",
        "new_charges",
        "new_executions",
        "new_keys",
        "new_ledgers",
        "new_number",
        "new_rows",
        "occupied_queues",
        "schema_objects",
        "new_progress",
        "new_reservations",
        "new_tags",
        "quota_versions",
        "refused_fences",
        "released_of_lines",
        "reservation_ids",
        "reservations",
        "reservations_of",
        "served_queues",
        "set_aside_deadlines",
        "set_aside_leases",
        "set_aside_parked",
        "set_aside_ready",
        "shared_leases",
        "held_by_key",
        "taken_events",
    },
}
"""Queries that only one dialect has, because the other does not need them."""

SQL = re.compile(
    r"""\s* ( select \s .* \b from \b | select \s+ ( [\d:$*?] | \w+ \( )
    | (insert|merge|replace) \s+ into \b | update \s+ \S+ \s+ set \b | delete \s+ from \b
    | with \s+ (recursive \s+)? \w+ (\s* \( [^)]* \))? \s+ as \b
    | (create|alter|drop) \s+ (or \s+ replace \s+)? ((unique|temp|temporary|virtual) \s+)?
      (table|index|view|schema|database|function|trigger|sequence|type|role|extension) \b
    | truncate \s+ table \b | lock \s+ table \b | explain \s+ (analyze|query|select|\() )""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
HEAD = re.compile(r"^-- (name|part):(.*)$", re.MULTILINE)
INCLUDE = re.compile(r"^ *-- include: (\w+)\s*$", re.MULTILINE)
COMMENT = re.compile(r"--[^\n]*")
REPEATED = re.compile(r"\bin \((?:[^()]|\([^()]*\))*\bskip locked\b")
TEXT = re.compile(r"'(?:[^']|'')*'")


class Query(NamedTuple):
    kind: str
    name: str
    place: str
    body: str


def check(root: Path, only: Mapping[str, set[str]]) -> list[str]:
    """The complaints about the tree under `root`, none if it is in order."""
    store = root / "src" / "flowfabric" / "store"
    blocks = {name: read_folder(store / name) for name in ("common", *DIALECTS)}
    folders = {
        name: [block for block in found if block.kind == "name"] for name, found in blocks.items()
    }
    queries = [query for folder in folders.values() for query in folder]
    literals = {text for _, text in python_strings(store)}
    complaints = [complaint for query in queries for complaint in check_query(query)]
    complaints += check_parts(blocks)
    complaints += [f"{q.place}: {q.name} is never used" for q in queries if q.name not in literals]
    complaints += [c for folder in folders.values() for c in check_repeated(folder)]
    complaints += check_overrides(folders)
    if all((store / dialect).is_dir() for dialect in DIALECTS):
        complaints += check_parity(folders, only)
    return complaints + [
        f"{place}: SQL in a Python string, move it to a .sql file"
        for place, text in python_strings(root / "src")
        if SQL.match(text)
    ]


def read_folder(folder: Path) -> list[Query]:
    return [query for path in sorted(folder.glob("*.sql")) for query in read_queries(path)]


def read_queries(path: Path) -> Iterator[Query]:
    _, *found = HEAD.split(path.read_text(encoding="utf-8"))
    for kind, name, body in zip(found[::3], found[1::3], found[2::3], strict=True):
        yield Query(kind, name.strip(), f"{path.parent.name}/{path.name}", body.strip())


def check_query(query: Query) -> Iterator[str]:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", query.name):
        yield f"{query.place}: '{query.name}' is not a name"
    code = TEXT.sub("''", COMMENT.sub("", query.body))
    statements = [part for part in code.split(";") if part.strip()]
    if len(statements) != 1:
        yield f"{query.place}: {query.name} has {len(statements)} statements, not one"
    if REPEATED.search(code):
        # the planner may run the query again for each row, each time past the rows it has locked
        yield f"{query.place}: {query.name} locks in `in (select …)`; use `= any(array(select …))`"


def check_parts(blocks: Mapping[str, list[Query]]) -> Iterator[str]:
    """What is included is a part of the dialect or a common one; every part is included."""
    for dialect, found in blocks.items():
        near = found if dialect == "common" else [*blocks["common"], *found]
        known = {block.name for block in near if block.kind == "part"}
        for block in found:
            for name in INCLUDE.findall(block.body):
                if name not in known:
                    yield f"{block.place}: {block.name} includes {name}, which is no part"
    included = {
        name for found in blocks.values() for each in found for name in INCLUDE.findall(each.body)
    }
    for block in (block for found in blocks.values() for block in found):
        if block.kind == "part" and block.name not in included:
            yield f"{block.place}: {block.name} is never included"


def check_repeated(folder: list[Query]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for query in folder:
        if query.name in seen:
            yield f"{query.place}: {query.name} is already in {seen[query.name]}"
        seen[query.name] = query.place


def check_overrides(folders: Mapping[str, list[Query]]) -> Iterator[str]:
    common = {query.name for query in folders["common"]}
    for query in (query for dialect in DIALECTS for query in folders[dialect]):
        if query.name in common and not query.body.startswith("-- Differs"):
            yield f"{query.place}: {query.name} must begin with '-- Differs: ' and the reason"


def check_parity(folders: Mapping[str, list[Query]], only: Mapping[str, set[str]]) -> Iterator[str]:
    common = {query.name for query in folders["common"]}
    names = {dialect: {query.name for query in folders[dialect]} for dialect in DIALECTS}
    for mine, theirs in (DIALECTS, DIALECTS[::-1]):
        alone = names[mine] - names[theirs] - common
        for name in sorted(alone - only[mine]):
            yield f"{mine}: {name} exists in this dialect only; write the other or list it in ONLY"
        for name in sorted(only[mine] - alone):
            yield f"{mine}: {name} is listed in ONLY without need"


def python_strings(folder: Path) -> Iterator[tuple[str, str]]:
    """Every string literal that is not a docstring, with its place."""
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(text), lineno=line) if node not in prose:
                    yield f"{path.relative_to(folder)}:{line}", text


def main() -> int:
    complaints = check(Path(__file__).parent.parent, ONLY)
    print("\n".join(complaints) or "SQL: in order")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

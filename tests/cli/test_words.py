"""How values are written for people and for programs."""

import pytest

from flowfabric.cli.format import readable, shortened, span
from flowfabric.cli.json import body, document, plain
from flowfabric.cli.output import printable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.redact import redact
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, StoredEvent
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.store.queries import Progress
from flowfabric.worker.api.history import run_event
from tests.cli.terminal import NOBODY


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (None, ""),
        (-5, "0ms"),
        (999, "999ms"),
        (2_540, "2.5s"),
        (59_999, "60.0s"),
        (192_000, "3m12s"),
        (14_700_000, "4h5m"),
        (198_000_000, "2d7h"),
    ],
)
def test_a_span_has_at_most_two_units(millis: int | None, text: str) -> None:
    assert span(millis) == text


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"Traceback: \xc3\xa4", "Traceback: ä"),
        (b"\xff\xfe", {"base64": "//4="}),
    ],
)
def test_bytes_are_json_or_text_or_base64(data: bytes, value: object) -> None:
    assert body(data) == value


def test_an_event_keeps_its_names_and_moments_are_iso_and_attempts_count_from_one() -> None:
    event = StoredEvent(
        seq=7,
        id=ExecutionId(f"{{fp:86}}:{NOBODY}"),
        namespace="default",
        lane="default",
        at=Millis(0),
        kind=EventKind.RETRY_SCHEDULED,
        epoch=1,
        attempt=0,
        worker=WorkerIdentity("ada", "ada-1"),
        detail={"until": 1000, "message": "no"},
    )
    assert document(run_event(event)) == {
        "seq": 7,
        "id": NOBODY,
        "namespace": "default",
        "lane": "default",
        "at": "1970-01-01T00:00:00.000Z",
        "kind": "retry_scheduled",
        "epoch": 1,
        "attempt": 1,
        "worker": {"id": "ada", "instance": "ada-1"},
        "lease": "released",
        "completion": None,
        "operator": None,
        "reason": "failed_retry_scheduled",
        "detail": {"until": "1970-01-01T00:00:01.000Z", "message": "no"},
    }


def test_collections_become_lists_and_flags_stay_flags() -> None:
    assert plain("at", True) is True
    assert plain("x", (Progress(5), frozenset({"a"}))) == [
        {"percent": 5, "message": None},
        ["a"],
    ]


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("postgresql://me:p@ss/w:rd@host/db is down", "postgresql://me:***@host/db is down"),
        (
            "postgresql://host/db?user=me&password=x&a=b",
            "postgresql://host/db?user=me&password=***&a=b",
        ),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("sqlite:///work.db", "sqlite:///work.db"),
    ],
)
def test_a_password_is_never_shown(text: str, safe: str) -> None:
    assert redact(text) == safe


def test_text_of_strangers_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2Jb\nc") == "a [2Jb c"
    assert printable("a\nb", keep_lines=True) == "a\nb"


def test_moments_in_a_detail_are_written_for_people() -> None:
    assert readable("delayed until 1700000000000").startswith("delayed until 2023-11-1")
    assert readable(None) == ""


def test_a_long_value_is_shortened() -> None:
    assert shortened("x" * 5) == '"xxxxx"'
    assert shortened("x" * 1000).endswith("x… (1002 characters)")

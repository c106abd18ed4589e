"""Webhooks: what may be one, how a delivery is signed and checked."""

import hmac
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotFound, Unauthorized
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import webhook as rules
from flowfabric.core.execution.event import EventKind, StoredEvent
from flowfabric.core.execution.policy import parse_policy
from flowfabric.core.execution.webhook import Webhook

NOW = Millis(1_700_000_000_000)
SECRET = "0123456789abcdef"
KEY = b"the key of the store"
BODY = b'{"kind":"test"}'
HOOK = Webhook(
    name="h", url="https://example.org/x", secret=SECRET, created_at=Millis(4), cursor=10
)


def event(lane: str = "default") -> StoredEvent:
    return StoredEvent(
        seq=7,
        id=ExecutionId.solo(lane, UUID(int=1)),
        namespace="n",
        lane=lane,
        at=NOW,
        kind=EventKind.COMPLETED,
        epoch=1,
    )


# -- what may be one


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8080/hook",
        "https://example.org",
        "https://example.org/a?b=c%20d",
        "http://[::1]:9000/",
        "HTTPS://EXAMPLE.ORG/",
    ],
)
def test_a_url_of_http_is_one(url: str) -> None:
    assert rules.check_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org",
        "/path",
        "ftp://example.org",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "http://",
        "http:///path",
        "https://user:pass@example.org",
        "https://user@example.org",
        "https://example.org/#fragment",
        "https://exa mple.org",
        "https://example.org/\n",
        "https://example.org/\x7f",
        "https://example.org:99999/",
        "https://example.org:port/",
        "http://[::1",
        "https://example.org/" + "x" * 2048,
        "https://example.org/\0",
        7,
        None,
    ],
)
def test_what_is_no_url_is_refused(url: Any) -> None:
    with pytest.raises(Invalid):
        rules.check_url(url)


@pytest.mark.parametrize("secret", ["", "short", "x" * 257, "0123456789abcde\n", 7])
def test_a_weak_secret_is_refused(secret: Any) -> None:
    with pytest.raises(Invalid):
        rules.check_secret(secret)


def test_no_text_shows_the_secret() -> None:
    assert SECRET not in repr(HOOK)


# -- the rules


def test_changing_a_webhook_keeps_its_place() -> None:
    new = Webhook(name="h", url="https://other.org", secret="x" * 16, namespace="n", cursor=99)
    changed = rules.begin(HOOK, NOW, new)
    assert (changed.url, changed.secret, changed.namespace) == (new.url, new.secret, "n")
    assert (changed.cursor, changed.created_at) == (10, 4)


def test_the_cursor_moves_forward_only_and_for_the_same_webhook_only() -> None:
    moved = rules.advance(HOOK, NOW, HOOK, 12)
    assert moved is not None
    assert (moved.cursor, moved.saved_at) == (12, NOW)
    assert rules.advance(moved, NOW, HOOK, 11) == moved
    assert rules.advance(None, NOW, HOOK, 12) is None
    another = Webhook(name="h", url=HOOK.url, secret=SECRET, created_at=Millis(5), cursor=1)
    assert rules.advance(another, NOW, HOOK, 12) == another


def test_a_pause_keeps_its_first_reason() -> None:
    paused = rules.pause(HOOK, "h", "gone")
    assert (paused.paused, paused.reason) == (True, "gone")
    assert rules.pause(paused, "h", "again") == paused
    assert rules.resume(paused, "h") == HOOK
    with pytest.raises(NotFound):
        rules.pause(None, "h", "")
    with pytest.raises(NotFound):
        rules.resume(None, "h")


def test_the_same_event_has_the_same_key() -> None:
    """So that a crash between submitting and moving on delivers nothing twice"""
    assert rules.delivery_of(HOOK, event(), KEY).key == rules.delivery_of(HOOK, event(), KEY).key
    later = Webhook(name="h", url=HOOK.url, secret=SECRET, created_at=Millis(5))
    assert rules.delivery_of(later, event(), KEY).key != rules.delivery_of(HOOK, event(), KEY).key


def test_a_delivery_carries_the_event_and_no_secret() -> None:
    made = rules.delivery_of(HOOK, event(), KEY)
    assert (made.kind, made.lane, made.namespace) == (rules.KIND, rules.LANE, rules.NAMESPACE)
    assert rules.delivery_of(replace(HOOK, namespace="n"), event(), KEY).namespace == "n"
    call = msgspec.json.decode(made.payload, type=rules.DeliveryCall)
    assert (call.webhook, call.made_at) == ("h", 4)
    assert msgspec.json.decode(call.body)["completion"] == {
        "outcome": "success",
        "state": "success",
    }
    assert SECRET.encode() not in made.payload


@pytest.mark.parametrize("member", ["webhook", "made_at", "event_id", "body", "seal"])
def test_only_the_engine_makes_deliveries(member: str) -> None:
    payload = rules.delivery_of(HOOK, event(), KEY).payload
    call = msgspec.json.decode(payload, type=rules.DeliveryCall)
    assert rules.is_sealed(call, KEY)
    assert not rules.is_sealed(call, b"another key")
    other: Any = 5 if member == "made_at" else "other ä"
    assert not rules.is_sealed(replace(call, **{member: other}), KEY)


def test_events_of_deliveries_are_not_delivered() -> None:
    assert rules.is_delivered(event())
    assert not rules.is_delivered(event(rules.LANE))


def test_the_policy_of_deliveries_is_one() -> None:
    policy = parse_policy(rules.POLICY)
    assert policy.retry_policy is not None
    assert policy.retry_policy.max_retries == 15


# -- signatures


def check(
    headers: dict[str, str], body: bytes = BODY, now: float = NOW / 1000, *secrets: str
) -> None:
    rules.check_delivery(secrets or (SECRET,), headers, body, now, 300)


def signed(**changes: str) -> dict[str, str]:
    made = rules.headers_of(SECRET, "e1", NOW // 1000, BODY)
    return {**made, **{name.replace("_", "-"): value for name, value in changes.items()}}


def test_the_signature_is_the_documented_one() -> None:
    """Anyone can check it without this library"""
    headers = signed()
    text = headers["FlowFabric-Timestamp"].encode() + b"." + BODY
    expected = hmac.new(SECRET.encode(), text, sha256).hexdigest()
    assert headers["FlowFabric-Signature"] == f"v1={expected}"
    assert headers["FlowFabric-Event-Id"] == "e1"
    check(headers)


def test_names_of_headers_are_in_any_spelling() -> None:
    check({name.lower(): value for name, value in signed().items()})
    check({name.upper(): value for name, value in signed().items()})


def test_one_of_several_secrets_or_signatures_is_enough() -> None:
    """While a secret is replaced"""
    check(signed(), BODY, NOW / 1000, "another secret!!", SECRET)
    both = f"v1={'0' * 64}, {signed()['FlowFabric-Signature']}"
    check(signed(FlowFabric_Signature=both))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        signed(FlowFabric_Signature=""),
        signed(FlowFabric_Timestamp=""),
        signed(FlowFabric_Signature="v1="),
        signed(FlowFabric_Signature="v1=" + "0" * 64),
        signed(FlowFabric_Signature=signed()["FlowFabric-Signature"][3:]),
        signed(FlowFabric_Signature="v2" + signed()["FlowFabric-Signature"][2:]),
        signed(FlowFabric_Signature="v1=ä"),
        signed(FlowFabric_Timestamp=str(NOW // 1000 + 1)),
        signed(FlowFabric_Timestamp="-1"),
        signed(FlowFabric_Timestamp="٣"),
        signed(FlowFabric_Timestamp="9" * 40),
        signed(FlowFabric_Timestamp="nan"),
    ],
)
def test_a_delivery_that_is_not_signed_so_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthorized):
        check(headers)


def test_another_body_or_secret_is_refused() -> None:
    with pytest.raises(Unauthorized):
        check(signed(), BODY + b" ")
    with pytest.raises(Unauthorized):
        check(signed(), BODY, NOW / 1000, "another secret!!")


@pytest.mark.parametrize("seconds", [-301, 301])
def test_an_old_delivery_is_refused(seconds: int) -> None:
    """A recorded one cannot be sent again later"""
    with pytest.raises(Unauthorized, match="long ago"):
        check(signed(), BODY, NOW / 1000 + seconds)
    check(signed(), BODY, NOW / 1000 + seconds - seconds // abs(seconds))

"""Webhooks: events posted to a URL, signed, at least once.

Every delivery is a run of the built-in task `flowfabric.webhook`, so that it is retried, listed
and cancelled as any other run is. Events of those runs are never delivered themselves: a webhook
would feed itself for ever.
"""

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import Invalid, NotFound, Unauthorized
from flowfabric.core.base.text import check_text
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Family, StoredEvent
from flowfabric.core.execution.event_filter import EventFilter, EventGap, encode_cursor
from flowfabric.core.execution.event_views import gap_view, view
from flowfabric.core.execution.policy import Policy
from flowfabric.core.execution.retry import ExponentialBackoff, RetryPolicy
from flowfabric.core.execution.submission import Submission

KIND = "flowfabric.webhook"
LANE = "flowfabric-webhooks"
NAMESPACE = "flowfabric"
"""Where the deliveries of webhooks for all namespaces are: no tenant sees or cancels them."""

EVENT_ID = "FlowFabric-Event-Id"
TIMESTAMP = "FlowFabric-Timestamp"
SIGNATURE = "FlowFabric-Signature"

MAX_URL = 2048
MIN_SECRET = 16
MAX_SECRET = 256
MAX_PAUSE_REASON = 1024

POLICY = Policy(
    retry_policy=RetryPolicy(
        max_retries=15,
        backoff=ExponentialBackoff(initial="5s", maximum="1h", multiplier=3.0, jitter=True),
    ),
)
"""The retries of a delivery span about ten hours."""


class Webhook(Document, frozen=True, kw_only=True, omit_defaults=True):
    """`cursor` is how far events were turned into deliveries. `secret` signs them; no `repr` shows
    it. `reason` says why it is paused."""

    name: str
    url: str
    secret: str
    namespace: str | None = None
    families: tuple[Family, ...] = ()
    tag: tuple[str, str] | None = None
    paused: bool = False
    reason: str = ""
    created_at: Millis = Millis(0)
    cursor: int = 0
    saved_at: Millis = Millis(0)
    version: int = 0

    @property
    def filter(self) -> EventFilter:
        return EventFilter(namespace=self.namespace, families=self.families, tag=self.tag)

    def __repr__(self) -> str:
        return f"Webhook({self.name!r}, {self.url!r}, paused={self.paused})"


class DeliveryCall(Struct, frozen=True):
    """The arguments of a delivery. `made_at` tells a webhook from an earlier one of its name;
    `seal` proves that the engine made it."""

    webhook: str
    made_at: int
    event_id: str
    body: str
    seal: str = ""


def known(found: Webhook | None, name: str) -> Webhook:
    if found is None:
        raise NotFound("webhook", name)
    return found


def check_url(value: object) -> str:
    """An absolute http or https URL without credentials or fragment."""
    text = check_text(value, "the URL of a webhook", limit=MAX_URL)
    if not text.isprintable() or any(each.isspace() for each in text):
        raise Invalid("the URL of a webhook contains white space or control characters")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise Invalid(f"the URL of a webhook cannot be read: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise Invalid("the URL of a webhook must begin with http:// or https://")
    if not host:
        raise Invalid("the URL of a webhook must name a host")
    if "@" in parts.netloc or parts.fragment:
        raise Invalid("the URL of a webhook must have neither credentials nor a fragment")
    return text


def check_secret(value: object) -> str:
    text = check_text(value, "the secret of a webhook", limit=MAX_SECRET)
    if len(text) < MIN_SECRET or not text.isprintable():
        raise Invalid(f"the secret of a webhook needs at least {MIN_SECRET} printable characters")
    return text


def begin(old: Webhook | None, now: Millis, new: Webhook) -> Webhook:
    """A new webhook, or the one of that name with another URL, secret or filter. It continues
    where it was: from now on with the new filter."""
    if old is None:
        return replace(new, created_at=now, saved_at=now)
    return replace(
        old,
        url=new.url,
        secret=new.secret,
        namespace=new.namespace,
        families=new.families,
        tag=new.tag,
    )


def pause(old: Webhook | None, name: str, reason: str) -> Webhook:
    """Events are kept for it; what is being delivered waits."""
    held = known(old, name)
    why = check_text(reason, "the reason", limit=MAX_PAUSE_REASON)
    return held if held.paused else replace(held, paused=True, reason=why)


def resume(old: Webhook | None, name: str) -> Webhook:
    return replace(known(old, name), paused=False, reason="")


def advance(old: Webhook | None, now: Millis, made: Webhook, cursor: int) -> Webhook | None:
    """The cursor after deliveries were submitted. Another webhook that has the name by now is left
    alone."""
    if old is None or old.created_at != made.created_at or cursor <= old.cursor:
        return old
    return replace(old, cursor=cursor, saved_at=now)


def is_delivered(event: StoredEvent) -> bool:
    """Events of deliveries are not."""
    return event.lane != LANE


def delivery_of(webhook: Webhook, event: StoredEvent, key: bytes) -> Submission:
    """The run that delivers an event; `key` seals it. Submitting it again is harmless."""
    body = msgspec.json.encode(view(event, webhook.families))
    return _delivery(webhook, encode_cursor(event.seq), body, key)


def gap_delivery(webhook: Webhook, gap: EventGap, key: bytes) -> Submission:
    """The run that says that events are missing."""
    shown = gap_view(gap)
    event_id = f"gap-{shown.after}-{shown.cursor}"
    return _delivery(webhook, event_id, msgspec.json.encode(shown), key)


def trial_delivery(webhook: Webhook, now: Millis, unique: str, key: bytes) -> Submission:
    """The run that delivers an event that never happened, to try the receiver."""
    body = msgspec.json.encode({"kind": "test", "at": now, "webhook": webhook.name})
    return _delivery(webhook, f"test-{unique}", body, key)


def _delivery(webhook: Webhook, event_id: str, body: bytes, key: bytes) -> Submission:
    call = DeliveryCall(webhook.name, webhook.created_at, event_id, body.decode())
    return Submission(
        kind=KIND,
        lane=LANE,
        namespace=webhook.namespace or NAMESPACE,
        payload=msgspec.json.encode(replace(call, seal=_seal(call, key))),
        key=f"webhook:{webhook.name}:{webhook.created_at}:{event_id}",
        policy=POLICY,
        creator=f"webhook {webhook.name}"[:64],
        encoding="json",
    )


def is_sealed(call: DeliveryCall, key: bytes) -> bool:
    """Whether the engine has made this delivery. A caller who may submit runs could otherwise have
    anything signed and sent in the name of a webhook."""
    return hmac.compare_digest(call.seal.encode(), _seal(call, key).encode())


def _seal(call: DeliveryCall, key: bytes) -> str:
    text = msgspec.json.encode([KIND, call.webhook, call.made_at, call.event_id, call.body])
    return hmac.new(key, text, sha256).hexdigest()


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """The value of the signature header."""
    return f"v1={_digest(secret, timestamp, body)}"


def headers_of(secret: str, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """What a delivery is sent with; the time is that of the attempt, in seconds."""
    return {
        "Content-Type": "application/json",
        "User-Agent": "FlowFabric-Webhook/1",
        EVENT_ID: event_id,
        TIMESTAMP: str(timestamp),
        SIGNATURE: sign(secret, str(timestamp), body),
    }


def check_delivery(
    secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float, tolerance: float
) -> None:
    """Raises Unauthorized unless one of the secrets has signed this body less than `tolerance`
    seconds ago."""
    given = {name.lower(): value for name, value in headers.items()}
    timestamp = given.get(TIMESTAMP.lower(), "")
    signatures = given.get(SIGNATURE.lower(), "")
    if not timestamp or not signatures:
        raise Unauthorized("the delivery is not signed")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 16):
        raise Unauthorized("the time of the delivery cannot be read")
    expected = [sign(secret, timestamp, body).encode() for secret in secrets]
    found = [each.strip().encode() for each in signatures.split(",")]
    # Every pair is compared, so that the time this takes says nothing about the secret.
    matches = [hmac.compare_digest(one, each) for one in expected for each in found]
    if not any(matches):
        raise Unauthorized("the signature of the delivery does not match")
    if abs(now - int(timestamp)) > tolerance:
        raise Unauthorized("the delivery was signed too long ago, or by a clock that is wrong")


def _digest(secret: str, timestamp: str, body: bytes) -> str:
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, sha256).hexdigest()

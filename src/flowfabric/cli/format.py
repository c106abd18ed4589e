"""Values of the engine as words for people: fields and rows of tables."""

import re

import msgspec

from flowfabric.core.base.time import Millis, to_datetime
from flowfabric.core.execution.event import StoredEvent
from flowfabric.core.execution.granted import Grant
from flowfabric.core.execution.model import Attempt
from flowfabric.engine.execution.views import Description, Info
from flowfabric.store.queries import Progress

SHORT = 300
RUN_COLUMNS = ("id", "kind", "lane", "state", "tries", "age", "took", "because")
ATTEMPT_COLUMNS = ("attempt", "begun as", "outcome", "worker", "took", "failure")
EVENT_COLUMNS = ("number", "at", "event", "attempt", "worker", "detail")

_MILLIS = re.compile(r"\b1[0-9]{12}\b")
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


def local(moment: Millis | None) -> str:
    """A moment as the clock on this machine's wall shows it."""
    if moment is None:
        return ""
    return to_datetime(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def span(millis: int | None) -> str:
    """A length of time in at most two units: 340ms, 2.5s, 3m12s, 4h5m, 2d7h."""
    if millis is None:
        return ""
    if millis < 1000:
        return f"{max(0, millis)}ms"
    if millis < 60_000:
        return f"{millis / 1000:.1f}s"
    index = next(n for n, (_, size) in enumerate(_UNITS) if millis >= size)
    (unit, size), (below, smaller) = _UNITS[index], _UNITS[index + 1]
    return f"{millis // size}{unit}{millis % size // smaller}{below}"


def readable(detail: str | None) -> str:
    """A detail whose moments are written for people."""
    return _MILLIS.sub(lambda match: local(Millis(int(match[0]))), detail or "")


def shortened(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHORT else f"{text[:SHORT]}… ({len(text)} characters)"


def progress_text(progress: Progress | None) -> str:
    if progress is None:
        return ""
    percent = "" if progress.percent is None else f"{progress.percent} %"
    return " ".join(part for part in (percent, progress.message) if part)


def run_row(info: Info, now: Millis) -> list[str]:
    took = None if info.started_at is None else (info.ended_at or now) - info.started_at
    return [
        info.id,
        info.kind,
        info.lane,
        info.state,
        str(info.attempts_made),
        span(now - info.created_at),
        span(took),
        readable(info.blocking_detail),
    ]


def run_fields(facts: Description, now: Millis) -> list[tuple[str, str]]:
    """Names and values of what is worth a line; the rest is left out."""
    lease, grant, failure = facts.lease, facts.grant, facts.failure
    found = [
        ("id", facts.id),
        ("kind", facts.kind),
        ("state", facts.state),
        ("because", readable(facts.blocking_detail)),
        ("progress", progress_text(facts.progress)),
        ("worker", "" if lease is None else f"{lease.worker} ({lease.instance})"),
        ("lease", "" if lease is None else f"{span(lease.expires_at - now)} left"),
        ("reserved", "" if grant is None else _reserved(grant)),
        ("lane", facts.lane),
        ("namespace", facts.namespace),
        ("priority", str(facts.priority)),
        ("key", facts.key or ""),
        ("tags", ", ".join(f"{key}={value}" for key, value in facts.tags.items())),
        ("needs", ", ".join(facts.capabilities)),
        ("created", local(facts.created_at)),
        ("started", local(facts.started_at)),
        ("ended", local(facts.ended_at)),
        ("deadline", local(facts.deadline_at)),
        ("failure", "" if failure is None else f"{failure.message} ({failure.category})"),
        ("cancelled", facts.cancel_reason or ""),
    ]
    return [(name, value) for name, value in found if value]


def _reserved(grant: Grant) -> str:
    instance = f" ({grant.instance})" if grant.instance else ""
    return f"for {grant.worker}{instance} until {local(grant.expires_at)}"


def attempt_row(attempt: Attempt) -> list[str]:
    took = None
    if attempt.started_at is not None and attempt.ended_at is not None:
        took = attempt.ended_at - attempt.started_at
    return [
        str(attempt.index + 1),
        attempt.type.name.lower(),
        attempt.outcome.removeprefix("ended_").replace("_", " "),
        "" if attempt.worker is None else attempt.worker.id,
        span(took),
        "" if attempt.failure is None else attempt.failure.message,
    ]


def event_row(event: StoredEvent) -> list[str]:
    return [
        str(event.seq),
        local(event.at),
        event.kind.name.lower().replace("_", " "),
        "" if event.attempt is None else str(event.attempt + 1),
        "" if event.worker is None else event.worker.id,
        _event_detail(event),
    ]


def _event_detail(event: StoredEvent) -> str:
    parts = (f"{name}: {value}" for name, value in (event.detail or {}).items())
    return readable(", ".join(parts))

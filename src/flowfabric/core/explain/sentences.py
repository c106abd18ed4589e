"""The English of explanations: the one place where a reason becomes a sentence.

`ONE` says why one run does not run, `MANY` what the runs of a lane wait for. Each entry is a
template, some templates by a fact, or a function of the facts of a reason. Sentences contain no
moments: a reason has those beside its text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any, Union

from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Probation
from flowfabric.core.explain.reasons import FEW, Reason, ReasonCode
from flowfabric.core.flow.join import AllOf, AnyOf, Join, JoinState
from flowfabric.core.limit.quota import Rate
from flowfabric.core.wait.condition.model import OperatorOnly, TimeoutOnly, Unknown, needs_all
from flowfabric.core.wait.model import Behaviour

Facts = Mapping[str, Any]
Sentence = Union[str, "By", Callable[[Facts], str]]


def because(
    code: ReasonCode,
    /,
    *,
    since: Millis | None = None,
    until: Millis | None = None,
    children: Iterable[Reason] = (),
    also: Facts | None = None,
    **detail: Any,
) -> Reason:
    """A reason of one run: "lane default is paused". `detail` is for programs, and
    the sentence may use `also` besides."""
    return Reason(
        code=code,
        text=_said(ONE[code], {**detail, **(also or {})}),
        since=since,
        until=until,
        detail=detail,
        children=tuple(children),
    )


def shared(code: ReasonCode, /, **detail: Any) -> Reason:
    """A reason of many runs, to follow their share: "41 % blocked by quota openai"."""
    return Reason(code=code, text=_said(MANY[code], detail), detail=detail)


class By(Struct, frozen=True):
    """Sentences by the value of a fact."""

    fact: str
    texts: Mapping[Any, str]
    otherwise: str = ""


class _English(Formatter):
    """Templates with `{names:list}`, `{count:# slot}` (one slot, two slots), `{reason:+: }` (the
    prefix and the value, if there is one) and `{over:?, at last}` (the text, if the fact is
    true)."""

    def format_field(self, value: Any, spec: str) -> str:
        match spec[:1], spec[1:]:
            case "+", prefix:
                return f"{prefix}{value}" if value else ""
            case "?", text:
                return text if value else ""
            case "#", word:
                return number(value, word.strip())
            case _:
                return listed(value) if spec == "list" else format(value, spec)


_ENGLISH = _English()


def _said(sentence: Sentence, facts: Facts) -> str:
    if isinstance(sentence, By):
        sentence = sentence.texts.get(facts[sentence.fact], sentence.otherwise)
    return _ENGLISH.vformat(sentence, (), facts) if isinstance(sentence, str) else sentence(facts)


# -- words


def listed(names: Sequence[str], most: int = FEW, last: str = "and") -> str:
    """A few names as people say them: a, b and 3 more."""
    shown = list(names[:most])
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} {last} {shown[-1]}"


def number(count: int, one: str) -> str:
    """A count with its word."""
    return f"{count:,} {one if count == 1 else one + 's'}"


def rate_words(rate: Rate) -> str:
    """A rate as people say it: 100 starts in a minute, 5 starts in 30 seconds."""
    size, unit = next(
        ((size, unit) for size, unit in _UNITS if rate.window % size == 0), (1, "millisecond")
    )
    count = rate.window // size
    article = "an" if unit == "hour" else "a"
    span = f"{article} {unit}" if count == 1 else number(count, unit)
    evenly = ", spread evenly" if rate.smooth else ""
    return f"{number(rate.count, 'start')} in {span}{evenly}"


_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))


def _ahead(facts: Facts, whose: str = "") -> str:
    """How many are before it: "3 of its kind are", "500 or more of its kind are"."""
    count, exact = facts["ahead"], facts["exact"]
    many = f"{count:,}" if exact else f"{count:,} or more"
    verb = "is" if count == 1 and exact else "are"
    return " ".join(word for word in (many, whose, verb) if word)


def _worker(facts: Facts) -> str:
    return f"{facts['worker']} ({facts['instance']})" if facts["worker"] else "its worker"


def _use(facts: Facts) -> str:
    """A quota as people call it, with the key if it is the key's limit."""
    quota, key = facts["quota"], facts["key"]
    if not facts["per_key"]:
        return f"quota {quota}"
    return f"quota {quota} for key {key}" if key else f"quota {quota} without a key"


def _quotas(names: Sequence[str], most: int = 8) -> str:
    return f"quota{'s' if len(names) > 1 else ''} {listed(names, most)}"


# -- where it is


def _lost(facts: Facts) -> str:
    if "revoked" not in facts:
        return f"the lease of {_worker(facts)} has run out; it is taken from it in a moment"
    if not facts["revoked"]:
        return f"the lease of {_worker(facts)} ran out: another worker takes it over"
    return (
        f"it was taken from {_worker(facts)}{_because(facts['why'])}; another worker takes it over"
    )


def _waits(facts: Facts) -> str:
    """Names waitpoints, never their tokens."""
    condition = facts.get("condition")
    last = "and" if condition is None or needs_all(condition) else "or"
    match condition:
        case OperatorOnly():
            text = "only an operator resumes it"
        case TimeoutOnly():
            return "it sleeps"
        case Unknown():
            text = "it waits for something a newer release wrote"
        case _ if facts.get("flows"):
            text = f"it waits for flow {listed(facts['flows'], last=last)} to end"
        case _ if facts.get("approval"):
            text = f"it waits for approval: {listed(facts['waitpoints'])}"
        case _ if signals := facts.get("signals"):
            named = [_signal(*each) for each in signals.items()]
            text = f"it waits for {listed(named, last=last)}"
        case _:
            text = f"it is suspended: {facts['reason'].replace('_', ' ')}"
    then = facts.get("then")
    return text if then is None else f"{text}; if that does not happen in time, {_THEN[then]}"


def _signal(key: str, names: Sequence[str]) -> str:
    if not names or list(names) == [key]:
        return f"a signal at {key}"
    return f"signal {listed(names, last='or')} at {key}"


_THEN = {
    Behaviour.FAIL: "it fails",
    Behaviour.CANCEL: "it is cancelled",
    Behaviour.EXPIRE: "it expires",
    Behaviour.AUTO_RESUME: "it goes on",
    Behaviour.ESCALATE: "an operator has to decide",
}
"""What happens when the time of a wait is over."""


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _upstreams(facts: Facts) -> str:
    join: Join | None = facts["join"]
    if join is None:
        return "it waits for others to end"
    if join.state is JoinState.IMPOSSIBLE:
        return "its upstreams did not end as it needs: it is skipped in a moment"
    if join.n < join.needed:
        return f"it waits for {join.needed} upstreams, and only {join.n} were added so far"
    left, of = join.needed - join.succeeded, f"of its {number(join.n, 'upstream')}"
    named = _because(listed(facts["names"]))
    match join.policy:
        case AllOf():
            return f"it waits for {left} {of}{named}"
        case AnyOf():
            return f"it waits for the first {of}{named}"
        case _:
            return f"it waits for {left} more {of}{named}"


def _blocked_by_code(facts: Facts) -> str:
    found = f"blocked by code: {facts['message']}, in the code of worker {facts['worker']}"
    instance = f" ({facts['instance']})" if facts["instance"] else ""
    if facts["fitting"]:
        return f"{found}{instance}; it is released in a moment to {listed(facts['fitting'])}"
    return f"{found}{instance}; it waits for a worker with other code of {facts['kind']}"


# -- limits


def _exhausted(facts: Facts) -> str:
    reserved = facts["reserved"]
    aside = f" ({reserved:,} of them set aside by runs that go on)" if reserved else ""
    part = "" if facts["own"] else "; a budget of this run is part of it"
    never = "; it is never reset by itself" if facts["never_reset"] else ""
    taken = f"{facts['taken']:,} of {facts['hard']:,} {facts['dimension']}"
    return f"budget {facts['budget']} is exhausted: {taken}{aside}{part}{never}"


def _full(facts: Facts) -> str:
    return f"{facts['taken']:,} of {number(facts['cap'], 'slot')} of {_use(facts)} are taken"


def _used_up(facts: Facts) -> str:
    return f"{_use(facts)} allows {rate_words(facts['rate'])}, and those are used up"


def _holders(facts: Facts) -> str:
    shown = list(facts["executions"][:FEW])
    if facts["taken"] > len(shown):
        shown.append(f"{facts['taken'] - len(shown):,} more")
    return f"held by {listed(shown, most=len(shown))}"


def _in_line(facts: Facts) -> str:
    if facts["line"] == "lane":
        if not facts["ahead"]:
            return "it is the next of its kind to be taken"
        return f"{_ahead(facts, 'of its kind')} to be taken before it"
    names = list(facts["quotas"])
    what = _quotas(names, most=len(names))
    if facts["untaken"] is not None:
        return (
            f"it takes no slot of {what} from others while {facts['untaken']}, and keeps its place"
        )
    if facts["ahead"]:
        return f"{_ahead(facts)} before it in the line for {what}"
    if facts["open"]:
        return f"{what} {'has' if len(names) == 1 else 'have'} room: it is let through in a moment"
    return f"it is the next of its line to be let through {what}"


# -- the claim


def _incapable(facts: Facts) -> str:
    nowhere = facts["offered_by_none"]
    if nowhere:
        return f"no live worker offers {listed(nowhere)}"
    return f"no live worker offers {listed(facts['required'], most=8)} together"


def _no_version(facts: Facts) -> str:
    missing = f"no live worker offers version {facts['version']} of {facts['kind']}"
    offered = facts["offered"]
    if not offered:
        return f"{missing}, to which it is pinned"
    word = "version" if len(offered) == 1 else "versions"
    return f"{missing}, to which it is pinned; those there are offer {word} {listed(offered)}"


def _to_be_taken(facts: Facts) -> str:
    count = facts["capable"]
    who = listed(facts["workers"]) if count <= FEW else number(count, "live worker")
    return f"it waits to be taken; {who} can run it"


_OVER = "{over:?; that time has come, and it goes on in a moment}"
_UPSTREAM = "{called} is {state}{ended:?, which is counted in a moment}"

ONE: dict[ReasonCode, Sentence] = {
    ReasonCode.ENDED: By(
        "outcome",
        {
            "success": "it has completed",
            "failed": "it has failed{failure:+: }",
            "cancelled": "it was cancelled{cancelled_by:+ by }{cancel_reason:+: }",
            "expired": "it has expired{failure:+: }",
            "skipped": "it was skipped: its upstreams did not end as it needs{failure:+: }",
        },
    ),
    ReasonCode.LEASED: "it runs: {worker} ({instance}) has a lease for attempt {number}",
    ReasonCode.ATTEMPT_TIMEOUT: "the attempt times out unless it ends before",
    ReasonCode.DEADLINE: "it expires unless it ends before its deadline",
    ReasonCode.CLEANING_UP: By(
        "outcome",
        {
            "cancelled": "it is being cancelled{cancelled_by:+ by }{cancel_reason:+: }; its "
            "handler cleans up, and it ends as cancelled then at the latest",
            "failed": "it has failed{failure:+: }; what it did is being undone, and it ends as "
            "failed then at the latest",
            "expired": "it has expired{failure:+: }; what it did is being undone, and it ends as "
            "expired then at the latest",
        },
    ),
    ReasonCode.LOST: _lost,
    ReasonCode.SUSPECT: By(
        "probation",
        {
            None: "it may have ended its last worker: a worker runs it alone, one such run at a "
            "time",
            Probation.ALONE: "it may have ended its last worker and is on probation: it runs alone "
            "in its process",
        },
        "it may have ended its last worker and is on probation: it runs with nothing new",
    ),
    ReasonCode.SPENT: "it was lost {losses:# time}: the next claim gives it up",
    ReasonCode.RECLAIM_GRACE: (
        "no worker may take it over yet: the one that lost it may still be finishing"
    ),
    ReasonCode.HELD_FOR_GRANT: "it is kept for worker {worker}, which was granted it",
    ReasonCode.WAITING_FOR_SIGNAL: _waits,
    ReasonCode.WAITING_FOR_APPROVAL: _waits,
    ReasonCode.WAITING_FOR_FLOW: _waits,
    ReasonCode.WAITING_FOR_TIME: _waits,
    ReasonCode.WAITING_FOR_OPERATOR: _waits,
    ReasonCode.INBOX: "it was submitted and is let in in a moment",
    ReasonCode.HELD_UNSEALED: (
        "its flow is still being declared: nothing of it starts before it is complete"
    ),
    ReasonCode.BLOCKED_BY_OPERATOR: By(
        "reason",
        {
            "paused_by_policy": "a policy holds it back{detail:+: }",
            "waiting_for_budget": "it was held back for its budget{detail:+: }",
            "waiting_for_quota": "it was held back for its quota{detail:+: }",
            "waiting_for_capable_worker": "it was held back until there is a worker that can run it"
            "{detail:+: }",
        },
        "an operator holds it back{detail:+: }",
    ),
    ReasonCode.BLOCKED_BY_CODE: _blocked_by_code,
    ReasonCode.WAITS_FOR_UPSTREAMS: _upstreams,
    ReasonCode.UPSTREAM: _UPSTREAM,
    ReasonCode.MEMBER: _UPSTREAM,
    ReasonCode.MORE: "and {more:# more upstream}",
    ReasonCode.DELAYED: By(
        "gate",
        {
            "delay": f"it is not to start before its time{_OVER}",
            "resume_delay": f"it was resumed and goes on later{_OVER}",
            "worker_delay": f"it sleeps: its handler asked to, or tries a step again{_OVER}",
        },
    ),
    ReasonCode.RETRY_BACKOFF: (
        f"attempt {{attempt}} failed and is tried again{{failure:+; it failed with: }}{_OVER}"
    ),
    ReasonCode.BUDGET_EXHAUSTED: _exhausted,
    ReasonCode.BUDGET_OPEN: "budget {budget} has room again: it is let in in a moment",
    ReasonCode.QUOTA_FULL: _full,
    ReasonCode.RATE_USED_UP: _used_up,
    ReasonCode.SLOT_HOLDERS: _holders,
    ReasonCode.LANE_PAUSED: By(
        "by",
        {"": "lane {lane} is paused{reason:+: }"},
        "lane {lane} was paused by {by}{reason:+: }",
    ),
    ReasonCode.LANE_DRAINING: By(
        "by",
        {"": "lane {lane} drains and begins nothing new{reason:+: }"},
        "lane {lane} drains and begins nothing new, as decided by {by}{reason:+: }",
    ),
    ReasonCode.LANE_FULL: "lane {lane} is full: {running:,} of {concurrency:,} run",
    ReasonCode.NO_WORKER: "no live worker takes work of namespace {namespace}",
    ReasonCode.NO_WORKER_FOR_LANE: (
        "no live worker takes lane {lane}; those there are take {all_lanes:list}"
    ),
    ReasonCode.NO_WORKER_FOR_KIND: "no live worker of lane {lane} runs {kind}",
    ReasonCode.NO_WORKER_FOR_VERSION: _no_version,
    ReasonCode.NO_CAPABLE_WORKER: _incapable,
    ReasonCode.CLOSEST_WORKER: "{worker} comes closest, it lacks {lacks:list}",
    ReasonCode.WORKER_BUSY: By(
        "capable",
        {1: "the only worker that can run it is busy ({running:,} of {slots:,} at once)"},
        "all {capable} workers that can run it are busy ({running:,} of {slots:,} at once)",
    ),
    ReasonCode.WAITING_FOR_WORKER: _to_be_taken,
    ReasonCode.IN_LINE: _in_line,
}
"""What keeps one run."""


def _by_quotas(facts: Facts) -> str:
    return f"blocked by {_quotas(facts['quotas']) if facts.get('quotas') else 'a quota'}"


MANY: dict[ReasonCode, Sentence] = {
    ReasonCode.INBOX: "let in in a moment",
    ReasonCode.HELD_UNSEALED: "held until their flow is declared",
    ReasonCode.BLOCKED_BY_OPERATOR: "held back by an operator",
    ReasonCode.BLOCKED_BY_CODE: "blocked by code: no worker has code that fits their steps",
    ReasonCode.WAITS_FOR_UPSTREAMS: "wait for upstreams",
    ReasonCode.DELAYED: "delayed",
    ReasonCode.RETRY_BACKOFF: "failed and tried again later",
    ReasonCode.BUDGET_EXHAUSTED: By(
        "budget", {None: "blocked by a budget"}, "blocked by budget {budget}"
    ),
    ReasonCode.QUOTA_FULL: _by_quotas,
    ReasonCode.RATE_USED_UP: _by_quotas,
    ReasonCode.IN_LINE: lambda facts: f"let through {_quotas(facts['quotas'])} in a moment",
    ReasonCode.WAITING_FOR_SIGNAL: "suspended, waiting for a signal, an approval or a time",
    ReasonCode.WORKER_BUSY: "ready, every worker that can run them is busy",
    ReasonCode.WAITING_FOR_WORKER: "ready, waiting to be taken",
}
"""What keeps runs of a lane. Runs that are ready and lack a worker say which, as one run does."""

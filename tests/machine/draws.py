"""What the machine draws: wishes, deeds, acts, demands, troubles."""

from typing import Any

from hypothesis import strategies as st

from tests.machine.checks import LANES, WORKERS
from tests.machine.deeds import (
    Act,
    Block,
    Cancel,
    CancelOwn,
    ChangePriority,
    ClaimGranted,
    ClaimResumed,
    Complete,
    Deed,
    Delay,
    Expire,
    Fail,
    Grant,
    GrantReclaim,
    HandBack,
    MarkExpired,
    OperatorTakes,
    Reclaim,
    Record,
    Renew,
    Replay,
    Report,
    Revoke,
    Unblock,
)
from tests.machine.play import Demand
from tests.machine.wait_deeds import (
    SHAPES,
    Approve,
    CloseDoor,
    CreateDoor,
    Deliver,
    ExpireSuspension,
    Resume,
    Send,
    Sleep,
)
from tests.machine.words import BLOCK_REASONS, Retries, Wish

HOUR = 3_600_000

KINDS = ("job", "job", "mail")
NAMESPACES = ("default", "other")
TOKENS = ("gpu", "eu")
ALL = frozenset(TOKENS)

picks = st.integers(0, 15)
workers = st.sampled_from(WORKERS[:3])
needs = st.sampled_from([frozenset[str](), frozenset[str](), frozenset({"gpu"}), ALL])
offers = st.sampled_from([frozenset[str](), frozenset({"gpu"}), ALL, ALL])
ttls = st.sampled_from([1000, 5000, 30_000])
priorities = st.sampled_from([0, 0, 1, 5, 9000, 12_000, -3])
spans = st.sampled_from([0, 1, 500, 1000, 10_000])
categories = st.sampled_from(
    ["transient", "transient", "permanent", "infra_crash", "timeout", "cancelled"]
)
results = st.sampled_from([None, b"", b"one", b"two"])
reasons = st.sampled_from(BLOCK_REASONS)
retry_policies = st.sampled_from(
    [
        None,
        Retries(most=2),
        Retries(most=3, first=500, factor=2.0, longest=1500),
        Retries(most=1, first=0),
        Retries(most=2, only=frozenset({"timeout", "infra_crash"})),
    ]
)


@st.composite
def wishes(draw: st.DrawFn, now: int) -> Wish:
    """Each special wish is there now and then; one in four wishes asks for nothing special."""

    def sometimes(strategy: st.SearchStrategy[Any], otherwise: Any = None) -> Any:
        return draw(strategy) if draw(st.integers(0, 4)) == 0 else otherwise

    if draw(st.integers(0, 3)) == 0:
        return Wish(lane=draw(st.sampled_from(LANES)), priority=draw(priorities))
    return Wish(
        lane=draw(st.sampled_from(LANES)),
        namespace=sometimes(st.sampled_from(NAMESPACES), "default"),
        needs=draw(needs),
        priority=draw(priorities),
        key=sometimes(st.sampled_from(["k1", "k2"])),
        kind=draw(st.sampled_from(KINDS)),
        window=sometimes(st.sampled_from([0, 5000, HOUR]), 86_400_000),
        delay_until=sometimes(spans.map(lambda span: now + span)),
        deadline_at=sometimes(st.sampled_from([now + 2000, now + HOUR])),
        deadline_in=sometimes(st.sampled_from([3000, HOUR])),
        timeout=sometimes(st.sampled_from([500, 2000, 40_000])),
        retries=draw(retry_policies),
        reclaims=sometimes(st.sampled_from([0, 1, 2]), 100),
        replays=sometimes(st.sampled_from([0, 1]), 10),
        keep=sometimes(st.sampled_from([0, 60_000, HOUR])),
    )


sleeps = st.builds(
    Sleep,
    shape=st.sampled_from([*SHAPES, "single", "all", "all"]),
    use=st.sampled_from(["fresh", "fresh", "fresh", "pending", "pending", "channel"]),
    timeout=st.sampled_from([None, None, None, -1000, 1000, 5000, 30_000]),
    behaviour=st.sampled_from(
        ["fail", "cancel", "expire", "auto_resume_with_timeout_signal", "escalate"]
    ),
    key=st.sampled_from([None, None, None, "s1"]),
    step=st.sampled_from([None, "wait"]),
    delay=st.sampled_from([0, 0, 700]),
)
doors = st.builds(CreateDoor, st.sampled_from(["a", "b"]), st.sampled_from([None, 1000, 5000]))
fails = st.builds(Fail, categories, st.sampled_from([None, None, 0, 700]))
renewals = st.builds(Renew, ttls)
deeds: st.SearchStrategy[Deed] = st.one_of(
    st.builds(Complete, results),
    fails,
    fails,
    renewals,
    renewals,
    st.builds(Delay, spans, st.sampled_from([None, "nap"])),
    st.just(HandBack()),
    st.just(CancelOwn()),
    st.builds(Report, st.sampled_from([0, 50, 100])),
    sleeps,
    doors,
    st.builds(Record, st.sampled_from(["one", "two"]), st.sampled_from([b"x", b"y"])),
)
steering: st.SearchStrategy[Act] = st.one_of(
    st.just(Cancel()),
    st.just(Revoke()),
    st.builds(ChangePriority, priorities, st.booleans()),
    st.just(Replay()),
    st.just(Replay()),
    st.builds(Block, reasons),
    st.builds(Unblock, st.none() | reasons),
    st.just(Expire()),
    st.just(MarkExpired()),
)
names = st.sampled_from(["yes", "yes", "no"])
repeats = st.sampled_from([None, None, "i1"])
sources = st.sampled_from(["", "ann", "bob"])
deliveries = st.builds(
    Deliver,
    pick=picks,
    token=st.sampled_from([*["own"] * 7, "tampered", "other", "none"]),
    name=names,
    source=sources,
    repeat=repeats,
    ttl=st.sampled_from([86_400_000, 86_400_000, 5000, 0]),
    delay=st.sampled_from([None, None, 0, 700]),
    again=st.sampled_from([False, False, False, True]),
)
sends = st.builds(Send, st.sampled_from(["a", "b"]), names, sources, repeats)
signals: st.SearchStrategy[Act] = st.one_of(
    deliveries,
    deliveries,
    deliveries,
    sends,
    st.builds(
        Approve, picks, names, st.sampled_from(["x", "y"]), st.sampled_from([True, True, False])
    ),
    st.builds(Resume, st.sampled_from([0, 0, 700])),
    st.builds(CloseDoor, picks),
    st.just(ExpireSuspension()),
)
granting: st.SearchStrategy[Act] = st.one_of(
    st.builds(Grant, workers, offers, ttls),
    st.builds(GrantReclaim, workers, offers, ttls),
    st.builds(ClaimGranted, workers, ttls),
    st.builds(ClaimResumed, workers, ttls),
    st.builds(Reclaim, workers, ttls, st.sampled_from([None, None, 0, 1])),
    st.builds(OperatorTakes, ttls),
)
acts = steering | granting | signals
demands = st.builds(
    Demand,
    worker=workers,
    offers=offers,
    lanes=st.sampled_from([(), (), ("a",), ("b",), ("a", "b")]),
    namespace=st.sampled_from([None, None, "default", "other"]),
    kinds=st.sampled_from([None, None, None, frozenset({"mail"}), frozenset({"job", "mail"})]),
    limit=st.sampled_from([1, 1, 2, 5]),
    ttl=ttls,
)
LOST = "the reply is lost, and the call repeated"
DEATH = "the process dies before it hears the reply"
grant_waits = st.sampled_from([0, 0, 0, 1000, 1001])
maybe_lost = st.sampled_from([None, None, LOST])
rivals = st.one_of(steering, granting, deeds, demands, signals, signals)
troubles = st.sampled_from([None, None, LOST, DEATH, rivals, rivals, rivals]).flatmap(
    lambda trouble: trouble if isinstance(trouble, st.SearchStrategy) else st.just(trouble)
)
conversations = st.lists(st.tuples(deliveries | signals, troubles), min_size=3, max_size=4)
forms = st.sampled_from(["claim", "claim", "handle", "fence"])
waits = st.sampled_from(
    [0, 0, 0, -1, 1, 500, 1000, 1000, 5000, 30_000, 61_000, 600_000, HOUR, 90_000_000]
)

"""What a scenario is: a name, what it measures, the goals, and a function that measures once."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from bench import raw
from bench.cost import Cost, counted

STORES = ("postgres", "sqlite")
PAYLOAD = b'{"article":"' + b"x" * 436 + b'"}'
RESULT = b'{"ok":true,"rows":"' + b"y" * 70 + b'"}'
RAW_LIMIT = "raw limit"
RAW_CALLS = "raw limit of 100 callers"
RAW_PICKUP = "raw pickup p50"
RAW = "raw-"
"""How the names of systems begin that run none of our code."""


class Size(Struct, frozen=True, kw_only=True):
    """How much is measured. The defaults are those of `make bench`."""

    seconds: float = 1.2
    """Of a closed loop."""
    loads: tuple[tuple[int, int], ...] = ((1, 1), (1, 16), (1, 100), (2, 1), (2, 16), (2, 100))
    """Processes, and callers in each."""
    runs: int = 8_000
    """Executions that are worked off."""
    samples: int = 80
    """Of a latency."""
    members: tuple[tuple[int, int], ...] = ((100, 20), (1_000, 6))
    """Members of the flows that are cancelled, and how many flows."""
    signals: int = 1_000
    keys: int = 1_000
    held: float = 20.0
    """Seconds that a transaction stays open."""
    rows: int = 60_000
    """Waiting, and as many finished executions, in big tables."""
    held_keys: int = 5_000
    idle: float = 5.0
    workers: int = 200
    coroutines: int = 10_000
    many: int = 50_000
    tails: int = 1_000
    """Connections that follow a stream in which nothing happens."""


QUICK = Size(
    seconds=0.7,
    loads=((1, 100), (2, 100)),
    runs=3_000,
    samples=40,
    members=((100, 10), (1_000, 2)),
    held=6.0,
    rows=20_000,
)
FULL = Size(
    seconds=5.0, runs=40_000, samples=300, members=((100, 100), (1_000, 33)),
    held=600.0, rows=1_000_000, idle=20.0,
)  # fmt: skip
TINY = Size(
    seconds=0.1, loads=((1, 100), (2, 16)), runs=50, samples=3, members=((5, 2), (10, 2)),
    signals=5, keys=5, held=0.4, rows=50, held_keys=5, idle=0.2, workers=3, coroutines=20, many=50,
    tails=10,
)  # fmt: skip
"""For tests: every line runs, no figure means anything."""


class Goal(Struct, frozen=True):
    """At least (or, where smaller is better, at most) this value, and this share of the
    reference."""

    value: float | None = None
    ratio: float | None = None


class Metric(Struct, frozen=True):
    """One figure of a scenario. Goals by store."""

    name: str
    what: str
    unit: str = "/s"
    ratio_of: str | None = None
    smaller_is_better: bool = False
    goals: Mapping[str, Goal] = {}

    def goal(self, store: str) -> str:
        """`≥ 10,000/s, ≥ 60 % of the raw limit`"""
        found, sign = self.goals.get(store, Goal()), "≤" if self.smaller_is_better else "≥"
        parts = []
        if found.value is not None:
            parts.append(f"{sign} {with_unit(found.value, self.unit)}")
        if found.ratio is not None:
            parts.append(f"{sign} {share(found.ratio)} of the {self.ratio_of}")
        return ", ".join(parts)

    def met(self, store: str, value: float, ratio: float | None) -> bool | None:
        goal = self.goals.get(store, Goal())
        pairs = [(value, goal.value), (ratio, goal.ratio)]
        judged = [
            found <= wanted if self.smaller_is_better else found >= wanted
            for found, wanted in pairs
            if wanted is not None and found is not None
        ]
        return all(judged) if judged else None


class Figure(Struct):
    """What was found for one metric, in one repeat."""

    value: float
    reference: float | None = None
    cpu_us: float | None = None
    wal_bytes: float | None = None
    cpu_parts: dict[str, float] | None = None
    """Microseconds by who has used them, where that was counted."""

    @property
    def ratio(self) -> float | None:
        return self.value / self.reference if self.reference else None

    def costing(self, cost: Cost, count: int) -> Self:
        self.cpu_us = cost.cpu_us(count)
        self.wal_bytes = cost.wal / max(1, count) if cost.wal else None
        return self


Figures = dict[str, Figure]


class Load:
    """What a scenario is given: an empty store, and how much to measure."""

    def __init__(self, store: str, size: Size, fresh: Callable[[], str]) -> None:
        self.store = store
        self.size = size
        self.fresh = fresh
        self.url = fresh()
        self.limit: Figure | None = None

    async def raw_limit(self) -> float:
        """Executions per second of the raw limit loop, measured once per scenario and repeat."""
        if self.limit is None:
            url = self.fresh()
            async with counted(url) as cost:
                done, seconds = await raw.limit(url, self.size.seconds, PAYLOAD, RESULT)
            self.limit = Figure(done / seconds).costing(cost, done)
        return self.limit.value


Run = Callable[[Load], Awaitable[Figures]]


class Scenario(Struct, frozen=True):
    name: str
    what: str
    metrics: tuple[Metric, ...]
    run: Run
    stores: tuple[str, ...] = STORES
    once: bool = False
    """Too long for repeats."""

    @property
    def is_guarded(self) -> bool:
        """Its ratios are compared with recorded ones; what runs once is too noisy for that."""
        return not self.once and any(metric.ratio_of for metric in self.metrics)


def scenario(
    name: str, metrics: Sequence[Metric], *, stores: tuple[str, ...] = STORES, once: bool = False
) -> Callable[[Run], Scenario]:
    def made(run: Run) -> Scenario:
        what = " ".join((run.__doc__ or "").split())
        return Scenario(name, what, tuple(metrics), run, stores, once)

    return made


def least(
    name: str, what: str, unit: str = "/s", of: str | None = None,
    *, ratio: float | None = None, postgres: float | Goal | None = None,
    sqlite: float | None = None,
) -> Metric:  # fmt: skip
    """A metric where more is better, with its goals: a share of `of` for both stores, and a value
    for each; a Goal for Postgres has both."""
    own = postgres if isinstance(postgres, Goal) else Goal(postgres, ratio)
    return Metric(name, what, unit, of, goals={"postgres": own, "sqlite": Goal(sqlite, ratio)})


def most(
    name: str, what: str, unit: str = "ms", of: str | None = None,
    *, ratio: float | None = None, postgres: float | None = None, sqlite: float | None = None,
) -> Metric:  # fmt: skip
    """The same where less is better."""
    found = least(name, what, unit, of, ratio=ratio, postgres=postgres, sqlite=sqlite)
    return replace(found, smaller_is_better=True)


def percentile(values: Sequence[float], part: float) -> float:
    """Of values in seconds, in milliseconds."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1000


def with_unit(value: float, unit: str) -> str:
    """`10,000/s`, `3 ms`, `0.35 ms`, `1.1 times`"""
    digits = 0 if value >= 100 or value == round(value) else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}{'' if unit.startswith('/') else ' '}{unit}"


def share(ratio: float) -> str:
    return f"{ratio * 100:.0f} %"

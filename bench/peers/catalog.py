"""The systems that are compared: where each keeps its jobs, how it is set up, what it keeps."""

from msgspec import Struct, field

FLOWFABRIC = "flowfabric-postgres"
"""What the other systems are compared with."""


class System(Struct):
    name: str
    adapter: str
    """The module in `bench.peers.systems`, and the section of requirements.txt."""
    store: str
    """`postgres`, `sqlite` or `redis`."""
    durability: str
    """What survives a power cut, and what is kept of a job that has ended."""
    setup: str
    steps: bool = False
    """Whether it has durable steps."""
    settings: dict[str, str] = field(default_factory=dict)
    """Of a variant: the same system, set up for larger batches."""

    def does(self, part: str) -> bool:
        """Larger batches matter for a backlog only."""
        if part == "steps":
            return self.steps
        return part != "pickup" or not self.settings


_AOF = "Redis AOF every second"
_OURS = "commit before submit returns and per ending; result, attempts, events kept"
_PGQUEUER = "commit per batch; log of statuses kept, no result"

SYSTEMS = [
    System(
        FLOWFABRIC,
        "flowfabric",
        "postgres",
        _OURS,
        "100 at once, uvloop",
        steps=True,
    ),
    System(
        f"{FLOWFABRIC}-500",
        "flowfabric",
        "postgres",
        _OURS,
        "500 at once, uvloop",
        settings={"CONCURRENCY": "500"},
    ),
    System(
        "flowfabric-sqlite",
        "flowfabric",
        "sqlite",
        f"{_OURS} (synchronous=FULL)",
        "100 at once, uvloop",
        steps=True,
    ),
    System(
        "pgqueuer",
        "pgqueuer",
        "postgres",
        _PGQUEUER,
        "asyncpg, uvloop, batches of 100",
    ),
    System(
        "pgqueuer-500",
        "pgqueuer",
        "postgres",
        _PGQUEUER,
        "asyncpg, uvloop, batches of 500",
        settings={"BATCH": "500"},
    ),
    System(
        "procrastinate",
        "procrastinate",
        "postgres",
        "commit per job; job and events kept, no result",
        "100 at once, pool of 20",
    ),
    System(
        "absurd",
        "absurd",
        "postgres",
        "commit per job and step; result and checkpoints kept",
        "100 at once, poll 0.25 s (default)",
        steps=True,
    ),
    System(
        "dbos",
        "dbos",
        "postgres",
        "commit per workflow and step; input, result, steps kept",
        "100 at once, poll 0.1 s, pool of 20",
        steps=True,
    ),
    System(
        "saq-postgres",
        "saq",
        "postgres",
        "commit per job; result kept 10 minutes",
        "100 at once, pool of 20",
    ),
    System("saq-redis", "saq", "redis", f"{_AOF}; result kept 10 minutes", "100 at once"),
    System(
        "dramatiq",
        "dramatiq",
        "redis",
        f"{_AOF}; acknowledged after the job, no result",
        "8 threads (default)",
    ),
    System(
        "taskiq",
        "taskiq",
        "redis",
        f"{_AOF}; acknowledged after the job, no result",
        "stream broker, 100 at once (default)",
    ),
    System("huey", "huey", "redis", f"{_AOF}; a job in work is lost, no result", "processes"),
    System(
        "arq",
        "arq",
        "redis",
        f"{_AOF}; result kept 1 hour",
        "100 at once, poll 0.5 s (default)",
    ),
    System(
        "celery",
        "celery",
        "redis",
        f"{_AOF}; acknowledged before the job, no result",
        "prefork, prefetch 64",
    ),
    System("rq", "rq", "redis", f"{_AOF}; no result", "SimpleWorker, which does not fork"),
]


def chosen(names: list[str]) -> list[System]:
    """The named ones, in the order of the catalog; all of them if no name is given. A name may be
    that of an adapter: `saq` is both variants."""
    known = {name for system in SYSTEMS for name in (system.name, system.adapter)}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no system {unknown[0]}; there are {', '.join(sorted(known))}")
    return [
        system for system in SYSTEMS if not names or system.name in names or system.adapter in names
    ]

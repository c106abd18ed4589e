"""How an application configures its engine and its workers."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec.structs import force_setattr

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import check_kind_of
from flowfabric.core.base.time import optional_timedelta, parse_span, to_timedelta
from flowfabric.core.execution.frame import MAX_FRAME
from flowfabric.core.execution.lease import DEFAULT_TTL, MAX_TTL
from flowfabric.engine.context import EngineOptions
from flowfabric.worker.api.span import Span
from flowfabric.worker.run.options import WorkerSettings


class Options(EngineOptions, frozen=True, kw_only=True):
    """How an engine behaves. Every process of a deployment should use the same, apart from
    `sweep_namespace` and `sweep_tag`. Spans are "7d", seconds or timedeltas, and are read as
    timedeltas.

    `retention` is how long an ended run is kept; `reclaim_grace` how long a lost one waits before
    another worker may take it. `waitpoint_secret` (64 hex digits) becomes the first key that signs
    waitpoint tokens; without one the engine makes its own when it first needs one, unless
    `make_keys` is False. With `aging` a run that waits that long is worth one more point of
    priority, so that urgent work cannot keep other work waiting for ever; without it priority
    always comes first. `max_frame` is how many bytes a frame of the output of a run may have,
    `stream_readers` how many readers of output one process serves at the same time. With
    `sweep_namespace` and `sweep_tag` (key and value) the sweep of this process looks after the runs
    of one tenant and leaves all others to the processes that serve them.
    """

    retention: timedelta = timedelta(days=7)
    aging: timedelta | None = None
    reclaim_grace: timedelta = timedelta(0)

    if TYPE_CHECKING:

        def __init__(  # noqa: PLR0913 - the options are the interface
            self,
            *,
            retention: Span = ...,
            aging: Span | None = None,
            reclaim_grace: Span = 0,
            waitpoint_secret: str | None = None,
            make_keys: bool = True,
            max_frame: int = MAX_FRAME,
            stream_readers: int = 10_000,
            sweep_namespace: str | None = None,
            sweep_tag: tuple[str, str] | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        retention = parse_span(self.retention, "retention")
        grace = parse_span(self.reclaim_grace, "reclaim_grace")
        aging = None if self.aging is None else parse_span(self.aging, "aging")
        if aging == 0:
            raise Invalid("aging must be longer than zero")
        force_setattr(self, "retention", to_timedelta(retention))
        force_setattr(self, "reclaim_grace", to_timedelta(grace))
        force_setattr(self, "aging", optional_timedelta(aging))
        self._check()


class WorkerOptions(WorkerSettings, frozen=True, kw_only=True):
    """How a worker behaves.

    `concurrency` is how many runs it executes at the same time. `lanes` are those it serves, all
    without any; they may have weights: `{"fast": 3, "slow": 1}`. `ttl` is the length of a lease: a
    worker that died is noticed after that time. `drain` is how long a stopping worker waits for its
    runs before it hands them back; a process that a signal has asked to stop ends at most eight
    seconds later. With `webhooks` it delivers the webhooks as well, also if it serves certain lanes
    only. With `record_renewals` every renewal of a lease is an event: one for each running run
    every third of `ttl`. Spans are "30s", seconds or timedeltas, and are read as timedeltas.
    """

    ttl: timedelta = to_timedelta(DEFAULT_TTL)
    drain: timedelta = timedelta(seconds=20)

    if TYPE_CHECKING:

        def __init__(  # noqa: PLR0913 - the options are the interface
            self,
            *,
            name: str = "worker",
            instance: str | None = None,
            concurrency: int = 100,
            lanes: Sequence[str] | Mapping[str, int] = (),
            capabilities: Sequence[str] = (),
            namespace: str | None = None,
            processes: int | None = None,
            ttl: Span = ...,
            drain: Span = 20,
            heartbeat: bool = True,
            webhooks: bool = False,
            record_renewals: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        ttl = parse_span(self.ttl, "ttl")
        if not 0 < ttl <= MAX_TTL:
            raise Invalid("ttl must be longer than zero, and at most a day")
        force_setattr(self, "ttl", to_timedelta(ttl))
        force_setattr(self, "drain", to_timedelta(parse_span(self.drain, "drain")))
        self._check()


def check_options(given: object) -> EngineOptions:
    """The options of a fabric, also in the engine's own form; Invalid for anything else."""
    if isinstance(given, EngineOptions):
        return given
    return check_kind_of(given, Options, "options of a fabric")


def check_worker_options(given: object) -> WorkerSettings:
    """The options of a worker, also in its own form; Invalid for anything else."""
    if isinstance(given, WorkerSettings):
        return given
    return check_kind_of(given, WorkerOptions, "options of a worker")

"""FlowFabric: durable execution for Python. Ordinary functions become runs that survive crashes,
and whose end is recorded exactly once."""

from flowfabric.core.base.errors import (
    AlreadyEnded,
    ApprovalOutdated,
    BudgetExceeded,
    Contention,
    FlowFabricError,
    Forbidden,
    Invalid,
    InvalidGraph,
    LeaseLost,
    NotFound,
    NotSignalable,
    Overloaded,
    Unauthorized,
    Unavailable,
)
from flowfabric.core.base.ids import ExecutionId, RunId
from flowfabric.core.execution.schedule import CatchUp, Schedule
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.join import AllOf, AnyOf, Quorum, Rest
from flowfabric.core.flow.model import CancelPolicy, FlowState
from flowfabric.core.limit.budget import Budget
from flowfabric.core.limit.quota import Quota
from flowfabric.core.limit.spend import Overrun, SoftBreach, Spent
from flowfabric.core.wait.token import Token
from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric
from flowfabric.store.open import open_store
from flowfabric.worker.api.approval import Verdict
from flowfabric.worker.api.backoff import Exponential, Fixed
from flowfabric.worker.api.context import Context
from flowfabric.worker.api.deployment import Options, WorkerOptions
from flowfabric.worker.api.described import RunDescription
from flowfabric.worker.api.history import RunAttempt, RunEvent
from flowfabric.worker.api.hooks import AttemptEnd, Invocation, NextCall, SyncNextCall
from flowfabric.worker.api.listing import RunSummary
from flowfabric.worker.api.output import RunFrame
from flowfabric.worker.api.race import Winner
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.sync import SyncContext
from flowfabric.worker.api.task import Task
from flowfabric.worker.api.waits import Approval, Callback, Received
from flowfabric.worker.api.webhooks import verify_webhook
from flowfabric.worker.errors import (
    Cancelled,
    Fail,
    FlowFailed,
    ResultTimeout,
    Retry,
    RunCancelled,
    RunError,
    RunExpired,
    RunFailed,
    RunSkipped,
    StartupFailed,
    StepsChanged,
    WaitClosed,
    WaitTimeout,
)
from flowfabric.worker.run.loop import Worker

__all__ = [
    "AllOf",
    "AlreadyEnded",
    "AnyOf",
    "Approval",
    "ApprovalOutdated",
    "AttemptEnd",
    "Budget",
    "BudgetExceeded",
    "Callback",
    "CancelPolicy",
    "Cancelled",
    "CatchUp",
    "Contention",
    "Context",
    "Engine",
    "ExecutionId",
    "Exponential",
    "Fabric",
    "Fail",
    "Fixed",
    "FlowFabricError",
    "FlowFailed",
    "FlowState",
    "Forbidden",
    "Invalid",
    "InvalidGraph",
    "Invocation",
    "LeaseLost",
    "NextCall",
    "NotFound",
    "NotSignalable",
    "Options",
    "Overloaded",
    "Overrun",
    "PublicState",
    "Quorum",
    "Quota",
    "Received",
    "Rest",
    "ResultTimeout",
    "Retry",
    "Run",
    "RunAttempt",
    "RunCancelled",
    "RunDescription",
    "RunError",
    "RunEvent",
    "RunExpired",
    "RunFailed",
    "RunFrame",
    "RunId",
    "RunSkipped",
    "RunSummary",
    "Schedule",
    "SoftBreach",
    "Spent",
    "StartupFailed",
    "StepsChanged",
    "Submission",
    "SyncContext",
    "SyncNextCall",
    "Task",
    "Token",
    "Unauthorized",
    "Unavailable",
    "Verdict",
    "WaitClosed",
    "WaitTimeout",
    "Winner",
    "Worker",
    "WorkerOptions",
    "open_store",
    "verify_webhook",
]

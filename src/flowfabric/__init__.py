"""FlowFabric: durable execution for Python. Ordinary functions that run to an end which is
recorded exactly once."""

from flowfabric.core.budget import Budget
from flowfabric.core.errors import (
    ApprovalOutdated,
    BudgetExceeded,
    Contention,
    FlowFabricError,
    Invalid,
    InvalidGraph,
    LeaseLost,
    NotFound,
    NotSignalable,
    Overloaded,
    Unauthorized,
    Unavailable,
)
from flowfabric.core.flow import CancelPolicy, FlowState
from flowfabric.core.ids import ExecutionId
from flowfabric.core.join import AllOf, AnyOf, Quorum, Rest
from flowfabric.core.quota import Quota
from flowfabric.core.retry import Exponential, Fixed
from flowfabric.core.schedule import CatchUp, Schedule
from flowfabric.core.spending import Overrun, SoftBreach, Spent
from flowfabric.core.submission import Submission
from flowfabric.core.token import Token
from flowfabric.core.vector import PublicState
from flowfabric.engine.base import Options
from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric
from flowfabric.store.open import open_store
from flowfabric.worker.context import Context, SyncContext
from flowfabric.worker.control import (
    Fail,
    FlowFailed,
    Retry,
    RunCancelled,
    RunError,
    RunExpired,
    RunFailed,
    RunSkipped,
    StepsChanged,
    WaitClosed,
    WaitTimeout,
)
from flowfabric.worker.loop import Worker, WorkerOptions
from flowfabric.worker.run import Run
from flowfabric.worker.task import Task
from flowfabric.worker.verdict import Verdict
from flowfabric.worker.waits import Approval, Callback, Received

__all__ = [
    "AllOf",
    "AnyOf",
    "Approval",
    "ApprovalOutdated",
    "Budget",
    "BudgetExceeded",
    "Callback",
    "CancelPolicy",
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
    "Invalid",
    "InvalidGraph",
    "LeaseLost",
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
    "Retry",
    "Run",
    "RunCancelled",
    "RunError",
    "RunExpired",
    "RunFailed",
    "RunSkipped",
    "Schedule",
    "SoftBreach",
    "Spent",
    "StepsChanged",
    "Submission",
    "SyncContext",
    "Task",
    "Token",
    "Unauthorized",
    "Unavailable",
    "Verdict",
    "WaitClosed",
    "WaitTimeout",
    "Worker",
    "WorkerOptions",
    "open_store",
]

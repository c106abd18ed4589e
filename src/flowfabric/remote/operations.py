"""The operations of the engine that may be called through a server.

One line each: who may call it, which namespaces it touches, and what happens when its answer is
lost. Server and client read this table and the signatures of the engine itself; nothing else says
what travels.
"""

import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, get_type_hints

from msgspec import Struct

from flowfabric.engine.access.audit import Audit
from flowfabric.engine.access.tokens import Tokens
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.attempts import Attempts
from flowfabric.engine.execution.claims import Claims
from flowfabric.engine.execution.code_gate import CodeGate
from flowfabric.engine.execution.events import Events
from flowfabric.engine.execution.executions import Executions
from flowfabric.engine.execution.grants import Grants
from flowfabric.engine.execution.recorded import RecordedSteps
from flowfabric.engine.execution.schedules import Schedules
from flowfabric.engine.execution.streams import Streams
from flowfabric.engine.execution.subscriptions import Subscriptions
from flowfabric.engine.execution.views import Views
from flowfabric.engine.execution.webhooks import Webhooks
from flowfabric.engine.explain import Explain
from flowfabric.engine.flow.flows import Flows
from flowfabric.engine.flow.views import FlowViews
from flowfabric.engine.limit.budgets import Budgets
from flowfabric.engine.limit.lanes import Lanes
from flowfabric.engine.limit.quotas import Quotas
from flowfabric.engine.wait.keys import Keys
from flowfabric.engine.wait.signals import Signals
from flowfabric.engine.wait.suspensions import Suspensions
from flowfabric.engine.workers import Workers

SERVICES: Mapping[str, type] = {
    "attempts": Attempts,
    "audit": Audit,
    "budgets": Budgets,
    "claims": Claims,
    "code_gate": CodeGate,
    "engine": Engine,
    "events": Events,
    "executions": Executions,
    "explain": Explain,
    "flow_views": FlowViews,
    "flows": Flows,
    "grants": Grants,
    "keys": Keys,
    "lanes": Lanes,
    "quotas": Quotas,
    "schedules": Schedules,
    "signals": Signals,
    "steps": RecordedSteps,
    "streams": Streams,
    "subscriptions": Subscriptions,
    "suspensions": Suspensions,
    "tokens": Tokens,
    "views": Views,
    "webhooks": Webhooks,
    "workers": Workers,
}


class Touches(StrEnum):
    """How the server finds the namespaces that an argument touches."""

    RUN = "run"
    """The id or uuid of a run, or several of them."""
    OWNED = "owned"
    """What a worker holds: a claim, a handle, or an id with a fence."""
    FLOW = "flow"
    """The id of a flow."""
    NAMESPACE = "namespace"
    """A namespace; none means all of them."""
    VALUE = "value"
    """A value, or several, that say in which namespaces they are (`server/remote/tenants.py`)."""
    SUBSCRIPTION = "subscription"
    """The name of a subscription, which is of the namespace that it reads."""
    WEBHOOK = "webhook"
    """The name of a webhook, which is of the namespace that it reads."""
    NEW_WEBHOOK = "new_webhook"
    """The same, and nothing if there is none: it must not be that of another namespace."""
    BUDGETS = "budgets"
    """Names of budgets: they must be attached to the run of `owned`."""
    DEAD_WORKER = "dead_worker"
    """A worker in `namespace`. To revoke its leases concerns all namespaces if it claims in all."""
    ANSWER = "answer"
    """None: what the caller does not see is left out of the answer."""


class Again(StrEnum):
    """What a second call does whose first answer was lost."""

    SAME = "same"
    """Nothing more: it is a read, or its fence, its id or its state says that it was done."""
    KEYED = "keyed"
    """Nothing more if it has a `key`; otherwise as ONCE."""
    ONCE = "once"
    """Something more. A server that remembers the first call answers for it; any other refuses."""


class Operation(NamedTuple):
    service: str
    method: str
    scopes: tuple[str, ...]
    """Any of these is enough."""
    touches: tuple[tuple[str, Touches], ...]
    """Parameters and how they name namespaces. None: it touches all of them, so a caller that is
    limited to some may not call it, unless it is `neutral`."""
    again: Again
    folds: bool
    """Calls of many callers at the same moment share a request."""
    waits: bool
    """It is answered when something happens, perhaps much later."""
    mints: str
    """The parameter for an id, or a number, that the caller makes before its first try."""
    neutral: bool
    """It touches no namespace, so every caller with a scope may call it."""

    @property
    def name(self) -> str:
        return f"{self.service}.{self.method}"

    def is_once(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a second call whose first answer was lost would do something more."""
        match self.again:
            case Again.SAME:
                return False
            case Again.KEYED:
                return arguments.get("key") is None
            case Again.ONCE:
                return True


class Parameters(Struct, frozen=True):
    """The parameters of an operation, and the types in which they and its answer travel."""

    signature: inspect.Signature
    types: Mapping[str, Any]
    answer: Any


def parameters_of(operation: Operation) -> Parameters:
    function = function_of(operation)
    hints = get_type_hints(function)
    answer = hints.pop("return", None)
    for name in _NOT_SENT:
        hints.pop(name, None)
    return Parameters(_unbound(function), hints, answer)


def function_of(operation: Operation) -> Callable[..., Any]:
    """The method of the engine that answers."""
    found: Callable[..., Any] = getattr(SERVICES[operation.service], operation.method)
    return found


def _unbound(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    given = [each for name, each in signature.parameters.items() if name != "self"]
    return signature.replace(parameters=given)


def _operations(
    service: str,
    scopes: str,
    names: str,
    *,
    again: Again = Again.SAME,
    folds: bool = False,
    waits: bool = False,
    mints: str = "",
    neutral: bool = False,
    **touches: Touches,
) -> list[Operation]:
    return [
        Operation(
            service,
            name,
            tuple(scopes.split()),
            tuple(touches.items()),
            again,
            folds=folds,
            waits=waits,
            mints=mints,
            neutral=neutral,
        )
        for name in names.split()
    ]


_NOT_SENT = ("made",)
"""Parameters with rows that only the engine itself may supply."""

_RUN, _OWNED, _FLOW = Touches.RUN, Touches.OWNED, Touches.FLOW
_PLACE, _VALUE = Touches.NAMESPACE, Touches.VALUE
_READ = "read work"  # a worker reads what it works on
_SUBMIT = "submit work"  # a handler submits
_DECLARE = "submit work operate"  # the limits and schedules an application declares for itself
_STEER = "operate work"  # a handler ends what lost a race, and goes on with what it began

_TABLE: list[list[Operation]] = [
    # executions
    _operations("executions", _SUBMIT, "submit", folds=True, mints="fresh", submission=_VALUE),
    _operations("executions", _SUBMIT, "submit_many", mints="fresh", submissions=_VALUE),
    _operations("executions", _STEER, "cancel", id=_RUN),
    _operations("executions", "work", "await_end", id=_RUN, run=_RUN),
    _operations("executions", "operate", "fork", mints="fresh", id=_RUN),
    _operations("executions", "operate", "expire change_priority set_tags set_tag", id=_RUN),
    _operations(
        "executions",
        "operate",
        "replay block unblock hold unhold resume",
        again=Again.ONCE,
        id=_RUN,
    ),
    _operations("executions", _READ, "get_tag", id=_RUN),
    _operations("steps", "operate", "rename skip", again=Again.ONCE, id=_RUN),
    # leases
    _operations("claims", "work", "claim", folds=True, mints="id", namespace=_PLACE),
    _operations("claims", "work", "taken", id=Touches.ANSWER),
    _operations("claims", "work", "recover"),
    _operations("claims", "work", "renew watch clear", folds=True, owned=_OWNED),
    _operations("claims", "work", "extend", renewals=_VALUE),
    _operations("claims", "work", "renew_as", folds=True, id=_RUN),
    _operations("claims", "operate", "revoke mark_expired", id=_RUN),
    _operations("claims", "read", "expired", namespace=_PLACE),
    _operations("claims", "read", "held_by"),
    _operations("code_gate", "work", "release_to", worker=_VALUE),
    _operations("engine", "work", "settle"),
    _operations("engine", _READ, "ping capabilities", neutral=True),
    _operations("engine", "admin", "prepare"),
    _operations(
        "attempts",
        "work",
        "complete fail time_out delay wait_children hand_back block_by_code return_untried cancel"
        " compensate finish_cleanup renew progress set_state record_step",
        folds=True,
        owned=_OWNED,
    ),
    _operations("attempts", _READ, "steps", folds=True, uuid=_RUN),
    _operations("grants", "operate", "issue issue_reclaim", again=Again.KEYED, id=_RUN),
    _operations("grants", "operate", "find_and_issue", again=Again.ONCE, namespace=_PLACE),
    _operations(
        "grants",
        "work",
        "claim claim_resumed try_resume take reclaim",
        mints="lease_id",
        again=Again.ONCE,
        id=_RUN,
    ),
    _operations("grants", "work", "handle_of", owned=_OWNED),
    _operations("grants", "read", "identity", id=_RUN),
    _operations("grants", "read", "eligible", namespace=_PLACE),
    # waits
    _operations("suspensions", "work", "suspend", folds=True, owned=_OWNED),
    _operations("suspensions", "work", "go_on signals_so_far", folds=True, claim=_OWNED),
    _operations("suspensions", "work", "create_waitpoint make_waitpoint", mints="id", owned=_OWNED),
    _operations("suspensions", "work", "observe", owned=_OWNED),
    _operations("suspensions", "work", "token_again terms signals_of", uuid=_RUN),
    _operations("suspensions", _STEER, "close_waitpoint", id=_RUN),
    _operations("suspensions", "operate", "expire", id=_RUN),
    _operations("suspensions", "signal", "token issue_token", id=_RUN),  # who has one decides
    _operations("suspensions", "read", "waitpoints", id=_RUN),
    _operations("suspensions", "read", "suspended", namespace=_PLACE),
    _operations("signals", "signal work", "deliver send decide decide_at", folds=True, id=_RUN),
    _operations("signals", "signal", "approve", id=_RUN),
    _operations("signals", "operate", "revoke", id=_RUN),
    _operations("signals", "read", "of", id=_RUN),
    _operations("keys", "admin", "seed rotate kids"),
    # flows
    _operations("flows", _SUBMIT, "create", mints="id", namespace=_PLACE),
    _operations(
        "flows", _SUBMIT, "declare", mints="id", namespace=_PLACE, graph=_VALUE, parent=_VALUE
    ),
    _operations("flows", _SUBMIT, "add", flow=_FLOW, submission=_VALUE),
    _operations("flows", _SUBMIT, "join", flow=_FLOW, id=_RUN),
    _operations("flows", _SUBMIT, "stage", edge=_VALUE),
    _operations("flows", _SUBMIT, "apply seal", flow=_FLOW),
    _operations("flows", _SUBMIT, "set_join", flow=_FLOW, downstream=_RUN),
    _operations("flows", _STEER, "cancel", waits=True, flow=_FLOW),
    _operations("flows", _STEER, "cancel_header", flow=_FLOW),
    _operations("flows", _STEER, "acknowledge", flow=_FLOW, id=_RUN),
    _operations("flows", _STEER, "replay", again=Again.ONCE, flow=_FLOW),  # by a retry of its run
    _operations("flows", "operate", "set_tags", flow=_FLOW),
    _operations("flow_views", _READ, "get describe members groups edges graph", id=_FLOW),
    _operations("flow_views", _READ, "wait", waits=True, id=_FLOW),
    _operations("flow_views", _READ, "is_orphan edge", flow=_FLOW),
    _operations("flow_views", _READ, "page", namespace=_PLACE),
    _operations("flow_views", _READ, "flow_of eligibility", id=_RUN),
    _operations("flow_views", _READ, "inputs", snapshot=_RUN),
    _operations("flow_views", _READ, "results skipped", uuids=_RUN),
    # reading
    _operations(
        "views",
        _READ,
        "describe info state vector result state_value context attempts steps current_attempt"
        " attempts_made namespace",
        folds=True,
        id=_RUN,
    ),
    _operations("views", _READ, "wait", waits=True, id=_RUN),
    _operations("views", _READ, "load locate", uuids=_RUN),
    _operations("views", "read", "list", query=_VALUE),
    _operations("views", "read", "failures counts", namespace=_PLACE),
    _operations("events", "read", "read", execution=_RUN, namespace=_PLACE),
    _operations("events", "read", "tail"),
    _operations("events", "read", "position", cursor=Touches.ANSWER),
    _operations("events", "read", "batch", wanted=_VALUE),
    _operations("streams", "work", "append", folds=True, mints="write", owned=_OWNED),
    _operations("streams", _READ, "read summary", id=_RUN),
    _operations("streams", _READ, "tail", waits=True, id=_RUN),
    _operations("subscriptions", "operate", "create", wanted=_VALUE),
    _operations("subscriptions", "read", "list", namespace=_PLACE),
    _operations("subscriptions", "read", "get read ack release", name=Touches.SUBSCRIPTION),
    _operations("subscriptions", "operate", "delete", name=Touches.SUBSCRIPTION),
    _operations("webhooks", "operate", "put", wanted=_VALUE, name=Touches.NEW_WEBHOOK),
    _operations("webhooks", "operate", "get pause resume delete", name=Touches.WEBHOOK),
    _operations("webhooks", "operate", "test", again=Again.ONCE, name=Touches.WEBHOOK),
    _operations("webhooks", "operate", "list", namespace=_PLACE),
    # access
    _operations("tokens", "admin", "create rotate", again=Again.ONCE),
    _operations("tokens", "admin", "list get revoke"),
    _operations("audit", "admin", "list"),
    _operations("explain", _READ, "__call__", id=_RUN),
    _operations("explain", "read", "lane", namespace=_PLACE),
    # limits, lanes, schedules: shared by all namespaces
    _operations("quotas", _DECLARE, "define"),
    _operations("quotas", "operate", "create delete"),
    _operations("quotas", _READ, "get list status"),
    _operations("quotas", "operate", "check_admission", again=Again.ONCE, id=_RUN),
    _operations("quotas", "operate", "release_admission", id=_RUN),
    _operations("budgets", _DECLARE, "define"),
    _operations("budgets", "operate", "create delete"),
    _operations("budgets", "operate", "reset", again=Again.ONCE),
    _operations("budgets", _STEER, "grant", again=Again.KEYED),  # what a person has approved
    _operations("budgets", "operate", "release", execution=_RUN),
    _operations("budgets", "submit work operate", "spend", folds=True, again=Again.KEYED),
    _operations("budgets", "work", "settle", folds=True, again=Again.KEYED, owned=_OWNED),
    _operations(
        "budgets",
        "work",
        "report",
        folds=True,
        again=Again.KEYED,
        owned=_OWNED,
        budgets=Touches.BUDGETS,
    ),
    _operations(
        "budgets",
        "work",
        "reserve",
        folds=True,
        mints="id",
        owned=_OWNED,
        budgets=Touches.BUDGETS,
    ),
    _operations("budgets", "work", "cancel_reservation", folds=True, owned=_OWNED),
    _operations("budgets", _READ, "get list"),
    _operations("budgets", _READ, "attached_to", id=_RUN),
    _operations("lanes", "operate", "pause drain resume set"),
    _operations("lanes", _READ, "list get settings weights"),
    _operations("schedules", _DECLARE, "put"),
    _operations("schedules", "operate", "pause resume remove"),
    _operations("schedules", "submit operate", "trigger", mints="fresh"),
    _operations("schedules", "read", "get list next_at"),
    # workers
    _operations("workers", "work", "register", presence=_VALUE),
    _operations("workers", "work", "heartbeat deregister", namespace=_PLACE),
    _operations("workers", "operate", "mark_dead", instance=Touches.DEAD_WORKER, namespace=_PLACE),
    _operations("workers", "read", "get leases list", namespace=_PLACE),
    _operations("workers", "read", "held", entries=_VALUE),
]

OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation for group in _TABLE for operation in group
}

NEW_WORK = frozenset(
    {
        *(f"executions.{name}" for name in ("submit", "submit_many", "fork")),
        *(f"flows.{name}" for name in ("create", "declare", "add")),
        *(f"grants.{name}" for name in ("issue", "issue_reclaim", "find_and_issue")),
        *(f"grants.{name}" for name in ("claim", "claim_resumed", "try_resume", "take", "reclaim")),
        "schedules.trigger",
        "webhooks.test",
    }
)
"""What an engine that will stop refuses, besides claims, which look again and again."""

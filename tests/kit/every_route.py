"""Every route of the server: the scope it needs, and how it keeps tenants apart.

A new route fails `tests/server/test_every_route.py` until it stands here. Paths and bodies are
templates: `{run}`, `{flow}`, `{name}`, `{place}` and so on are replaced by what a `World` has.
"""

from enum import StrEnum
from typing import Any, NamedTuple

from flowfabric.server.app import HANDLERS
from flowfabric.server.caller.access import SCOPE
from tests.kit.http import BUDGET, EXECUTION

WORKER = {"worker_id": "w", "worker_instance_id": "w-1"}
CREATE = {**EXECUTION, "namespace": "{place}"}
EDGE = {"upstream_execution_id": "{run}", "downstream_execution_id": "{waiting}"}
LINK = {"execution_id": "{run}", "waitpoint_id": "{waitpoint}", "token": "k1:" + "0" * 64}
QUOTA = {"window_seconds": 60, "max_requests_per_window": 5, "max_concurrent": 1}
FENCE = {"lease_id": "{lease}", "lease_epoch": 1, "attempt_id": "{attempt}"}
SIGNAL = {
    "waitpoint_id": "{waitpoint}",
    "signal_name": "go",
    "signal_category": "c",
    "source_type": "s",
    "source_identity": "i",
    "target_scope": "waitpoint",
    "waitpoint_token": LINK["token"],
}


class Apart(StrEnum):
    """How a route keeps tenants apart."""

    HIDES = "hides"
    """What another tenant has answers as what does not exist."""
    LISTS = "lists"
    """It shows what the caller sees, and no more."""
    REFUSES = "refuses"
    """Another namespace is refused, whether there is anything in it or not."""
    SHARED = "shared"
    """It concerns all namespaces: a caller that is limited to some is refused."""
    SAME = "same"
    """It says nothing that belongs to a tenant; the names of lanes are shared."""
    CALLS = "calls"
    """The calls in it have a table of their own (`remote/operations.py`)."""


class Route(NamedTuple):
    method: str
    path: str
    scope: str | None
    apart: Apart
    target: str = ""
    body: Any = None

    @property
    def key(self) -> tuple[str, str]:
        return self.method, self.path

    @property
    def url(self) -> str:
        return self.target or self.path


def known_routes() -> dict[tuple[str, str], str | None]:
    """The routes of the application, with the scope of each."""
    return {
        (method, path.replace(":str", "")): handler.opt.get(SCOPE)
        for handler in HANDLERS
        for method in handler.http_methods
        for path in handler.paths
    }


def _run(method: str, end: str, scope: str, body: Any = None, target: str = "") -> Route:
    path = f"/v1/executions/{{id}}{end}"
    url = f"/v1/executions/{{run}}{target or end}"
    return Route(method, path, scope, Apart.HIDES, url, body)


def _flow(method: str, end: str, scope: str, body: Any = None, target: str = "") -> Route:
    url = f"/v1/flows/{{flow}}{target or end}"
    return Route(method, f"/v1/flows/{{id}}{end}", scope, Apart.HIDES, url, body)


def _list(path: str, query: str = "") -> Route:
    """A list of what the caller sees."""
    return Route("GET", path, "read", Apart.LISTS, path + query)


def _listed(path: str) -> Route:
    """A list of one namespace."""
    url = path.replace("{lane}", "default") + "?namespace={place}"
    return Route("GET", path, "read", Apart.REFUSES, url)


def _work(end: str, **members: Any) -> Route:
    url = f"/v1/work/{{waiting}}/{end}"
    return Route("POST", f"/v1/work/{{id}}/{end}", "work", Apart.HIDES, url, {**FENCE, **members})


def _named(method: str, noun: str, end: str, scope: str, body: Any = None) -> Route:
    path = f"/v1/{noun}/{{name}}{end}"
    url = path.replace("{action}", "pause") + ("?holder=h" if end in ("/read", "/release") else "")
    return Route(method, path, scope, Apart.HIDES, url, body)


_RUNS = [
    _run("GET", "", "read"),
    _run("GET", "/state", "read"),
    _run("GET", "/result", "read"),
    _run("GET", "/describe", "read", target="/describe?payload=true"),
    _run("GET", "/attempts", "read"),
    _run("GET", "/steps", "read"),
    _run("GET", "/explain", "read"),
    _run("GET", "/signals", "read"),
    _run("GET", "/tags", "read"),
    _run("GET", "/wait", "read", target="/wait?wait=1ms"),
    _run("GET", "/events", "read"),
    _run("GET", "/stream", "read"),
    _run("GET", "/pending-waitpoints", "read"),
    _run("GET", "/attempts/{index}/stream", "read", target="/attempts/0/stream"),
    _run("GET", "/attempts/{index}/stream/tail", "read", target="/attempts/0/stream/tail"),
    _run("GET", "/summary", "read"),
    _run("GET", "/attempts/{index}/summary", "read", target="/attempts/0/summary"),
    _run(
        "GET",
        "/waitpoints/{waitpoint_id}/token",
        "signal",
        target="/waitpoints/{waitpoint}/token",
    ),
    _run("POST", "/waitpoints/{waitpoint}/link", "signal", {}),
    _run("GET", "/waitpoints", "read"),
    _run("POST", "/waitpoints/{waitpoint}/decide", "signal", {"decision": "approved"}),
    _run("POST", "/send", "signal", {"name": "go"}),
    _run("POST", "/cancel", "operate", {"reason": "r"}),
    _run("PUT", "/priority", "operate", {"new_priority": 1}),
    _run("PUT", "/tags", "operate", {"a.b": "c"}),
    _run("POST", "/replay", "operate"),
    _run("POST", "/revoke-lease", "operate"),
    _run("POST", "/reclaim", "work", {**WORKER, "lane_id": "default", "grant_ttl_ms": 1000}),
    _run("POST", "/signal", "", SIGNAL)._replace(scope=None),
]
_FLOWS = [
    _flow("GET", "", "read"),
    _flow("GET", "/members", "read"),
    _flow("GET", "/edges", "read"),
    _flow("GET", "/wait", "read", target="/wait?wait=1ms"),
    _flow("PUT", "/edge-groups/{downstream}", "submit", {"kind": "all_of"}, "/edge-groups/{run}"),
    _flow("POST", "/edge-groups/{downstream}", "submit", {"kind": "all_of"}, "/edge-groups/{run}"),
    _flow("POST", "/replay", "operate"),
    _flow("POST", "/seal", "submit"),
    _flow("GET", "/tags", "read"),
    _flow("PUT", "/tags", "operate", {"a.b": "c"}),
    _flow("POST", "/members", "submit", {"execution_id": "{run}"}),
    _flow("POST", "/edges", "submit", {**EDGE, "expected_graph_revision": 0}),
    _flow("POST", "/edges/apply", "submit", {**EDGE, "edge_id": "{edge}", "graph_revision": 0}),
    _flow("POST", "/cancel", "operate", {"reason": "r", "cancellation_policy": "cancel_all"}),
]
_LISTS = [
    _list("/v1/executions", "?partition={partition}"),
    _list("/v1/schedules", "?limit=1"),
    _listed("/v1/executions/search"),
    _listed("/v1/flows"),
    _listed("/v1/counts"),
    _listed("/v1/failures"),
    _listed("/v1/suspended"),
    _listed("/v1/waitpoints"),
    _listed("/v1/subscriptions"),
    _listed("/v1/events"),
    _listed("/v1/events/stream"),
    _listed("/v1/overview"),
    _listed("/v1/workers"),
    _listed("/v1/lanes/{lane}"),
    _listed("/v1/lanes/{lane}/explain"),
]
_NAMED = [
    _named("GET", "schedules", "", "read"),
    _named("POST", "schedules", "/{action}", "operate"),
    _named("DELETE", "schedules", "", "operate"),
    _named("GET", "subscriptions", "", "read"),
    _named("POST", "subscriptions", "/read", "read"),
    _named("POST", "subscriptions", "/ack", "read", {"cursor": "e1"}),
    _named("POST", "subscriptions", "/release", "read"),
    _named("DELETE", "subscriptions", "", "operate"),
    _named("GET", "webhooks", "", "operate"),
    _named("POST", "webhooks", "/pause", "operate"),
    _named("POST", "webhooks", "/resume", "operate"),
    _named("POST", "webhooks", "/test", "operate"),
    _named("DELETE", "webhooks", "", "operate"),
]
_PLACES = [
    Route("POST", "/v1/executions", "submit", Apart.REFUSES, body=CREATE),
    Route(
        "POST",
        "/v1/flows",
        "submit",
        Apart.REFUSES,
        body={"flow_kind": "k", "namespace": "{place}"},
    ),
    Route(
        "PUT",
        "/v1/schedules/{name}",
        "operate",
        Apart.REFUSES,
        body={"execution_kind": "k", "every": "1h", "namespace": "{place}"},
    ),
    Route(
        "PUT", "/v1/subscriptions/{name}", "operate", Apart.REFUSES, body={"namespace": "{place}"}
    ),
    Route("GET", "/v1/webhooks", "operate", Apart.REFUSES, "/v1/webhooks?namespace={place}"),
    Route(
        "PUT",
        "/v1/webhooks/{name}",
        "operate",
        Apart.REFUSES,
        body={"url": "https://example.org/in", "namespace": "{place}"},
    ),
    Route(
        "POST",
        "/v1/workers/{worker_id}/claim",
        "work",
        Apart.REFUSES,
        "/v1/workers/w/claim",
        {
            "lane_id": "default",
            "worker_instance_id": "w-1",
            "grant_ttl_ms": 1000,
            "namespace": "{place}",
        },
    ),
    Route("POST", "/v1/work/claim", "work", Apart.REFUSES, body={**WORKER, "namespace": "{place}"}),
    Route(
        "PUT",
        "/v1/workers/{instance}",
        "work",
        Apart.REFUSES,
        "/v1/workers/{name}",
        {"worker_id": "w", "namespace": "{place}"},
    ),
    Route(
        "POST",
        "/v1/workers/{instance}/heartbeat",
        "work",
        Apart.REFUSES,
        "/v1/workers/{name}/heartbeat",
        {"namespace": "{place}"},
    ),
    Route(
        "POST",
        "/v1/workers/{instance}/dead",
        "operate",
        Apart.REFUSES,
        "/v1/workers/{name}/dead",
        {"namespace": "{place}", "reason": "r"},
    ),
    Route(
        "DELETE",
        "/v1/workers/{instance}",
        "work",
        Apart.REFUSES,
        "/v1/workers/{name}?namespace={place}",
    ),
]
_WORK = [
    _work("complete"),
    _work("fail", reason="r"),
    _work("delay", delay_ms=1),
    _work("release"),
    _work("wait-for-children"),
    _work("cancel", reason="r"),
    _work("finish-cleanup"),
    _work("progress", percent=1),
    _work("state", value=1),
    _work("steps", name="s", value=1),
    _work("frames", frames=[{"text": "t"}]),
    _work("spend", amounts={"tokens": 1}),
    _work("waitpoints", waitpoint_key="k"),
    _work("suspend", signal="go"),
    Route("GET", "/v1/work/{id}/steps", "work", Apart.HIDES, "/v1/work/{waiting}/steps"),
    Route(
        "POST",
        "/v1/work/claim-grant",
        "work",
        Apart.HIDES,
        body={**WORKER, "execution_id": "{waiting}", "grant_key": "g"},
    ),
]
_MANY = [
    Route(
        "POST",
        "/v1/executions/replay",
        "operate",
        Apart.HIDES,
        body={"execution_ids": ["{run}", "{waiting}"]},
    ),
    Route(
        "POST",
        "/v1/executions/batch",
        "submit",
        Apart.HIDES,
        body={"executions": [CREATE]},
    ),
    Route(
        "POST",
        "/v1/executions/cancel",
        "operate",
        Apart.HIDES,
        body={"execution_ids": ["{run}", "{waiting}"], "reason": "r"},
    ),
    Route(
        "POST",
        "/v1/executions/signal",
        "signal",
        Apart.HIDES,
        body={"signals": [{**SIGNAL, "execution_id": "{waiting}"}]},
    ),
    Route(
        "POST",
        "/v1/work/renew",
        "work",
        Apart.HIDES,
        body={"leases": [{**FENCE, "execution_id": "{waiting}"}], "lease_ms": 1000},
    ),
    Route(
        "POST",
        "/v1/work/batch",
        "work",
        Apart.HIDES,
        body={"operations": [{"op": "complete", "execution_id": "{waiting}", **FENCE}]},
    ),
]
_SHARED = [
    Route("POST", "/v1/lanes/{lane}/{action}", "operate", Apart.SHARED, "/v1/lanes/a/pause", {}),
    Route("PUT", "/v1/lanes/{lane}", "operate", Apart.SHARED, "/v1/lanes/a", {"weight": 2}),
    Route("GET", "/v1/leases/expired", "read", Apart.SHARED),
    Route("GET", "/v1/budgets", "read", Apart.SHARED),
    Route("GET", "/v1/quotas", "read", Apart.SHARED),
    Route("GET", "/v1/quotas/{name}", "read", Apart.SHARED),
    Route("POST", "/v1/budgets", "operate", Apart.SHARED, body=BUDGET),
    Route("GET", "/v1/budgets/{id}", "read", Apart.SHARED, "/v1/budgets/{edge}"),
    Route(
        "POST",
        "/v1/budgets/{id}/usage",
        "work",
        Apart.SHARED,
        "/v1/budgets/{edge}/usage",
        {"dimensions": {"tokens": 1}},
    ),
    Route("POST", "/v1/budgets/{id}/reset", "operate", Apart.SHARED, "/v1/budgets/{edge}/reset"),
    Route("PUT", "/v1/budgets/{id}", "operate", Apart.SHARED, "/v1/budgets/{edge}", BUDGET),
    Route("DELETE", "/v1/budgets/{id}", "operate", Apart.SHARED, "/v1/budgets/{edge}"),
    Route("PUT", "/v1/quotas/{name}", "operate", Apart.SHARED, "/v1/quotas/{edge}", QUOTA),
    Route("DELETE", "/v1/quotas/{name}", "operate", Apart.SHARED, "/v1/quotas/{edge}"),
    Route(
        "POST",
        "/v1/quotas",
        "operate",
        Apart.SHARED,
        body=QUOTA,
    ),
    Route(
        "POST",
        "/v1/admin/rotate-waitpoint-secret",
        "admin",
        Apart.SHARED,
        body={"new_kid": "k2", "new_secret_hex": "ab" * 32},
    ),
]
_PUBLIC = [
    Route("GET", "/healthz", None, Apart.SAME),
    Route("GET", "/readyz", None, Apart.SAME),
    Route("GET", "/approve/{run}/{waitpoint}", None, Apart.HIDES),
    Route("GET", "/pages/{name}", None, Apart.SAME, "/pages/approve.css"),
    Route("POST", "/v1/waitpoints/look", None, Apart.HIDES, body=LINK),
    Route(
        "POST", "/v1/waitpoints/decide", None, Apart.HIDES, body={**LINK, "decision": "approved"}
    ),
    Route("GET", "/", None, Apart.SAME),
    Route("GET", "/dashboard/{name}", None, Apart.SAME, "/dashboard/app.js"),
    Route("GET", "/metrics", None, Apart.SAME),
    Route("GET", "/v1/openapi.json", None, Apart.SAME),
    Route("GET", "/openapi.json", None, Apart.SAME),
    Route("GET", "/v1/me", None, Apart.CALLS),
    Route("GET", "/v1/changes/stream", "read", Apart.CALLS),
    Route(
        "GET",
        "/v1/workers/{instance}/leases",
        "read",
        Apart.REFUSES,
        "/v1/workers/{name}/leases?namespace={place}",
    ),
    Route("GET", "/v1/capabilities", "read", Apart.SAME),
    Route("GET", "/v1/lanes", "read", Apart.SAME),
    Route("POST", "/v1/engine", None, Apart.CALLS),
    Route("GET", "/v1/engine/hints", None, Apart.CALLS),
]

ROUTES: list[Route] = [
    *_RUNS,
    *_FLOWS,
    *_LISTS,
    *_NAMED,
    *_PLACES,
    *_WORK,
    *_MANY,
    *_SHARED,
    *_PUBLIC,
]

"""Every route: who may use it, and what it says of other tenants. The routes come from the
application itself, so that a new one without a rule fails here."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from msgspec import Struct

from flowfabric.core.access.token import AccessScope, Identity
from flowfabric.engine.engine import Engine
from tests.kit.every_route import ROUTES, Apart, Route, known_routes
from tests.kit.http import NOBODY, add_member, client_as, create, create_flow, error_of, tenant

THEIRS, MINE, NOWHERE = "theirs", "mine", "nowhere"
SECRET = "hush"
"""Part of every name that the other tenant has chosen."""
WORKER = {"worker_id": "w", "worker_instance_id": "w-1", "namespace": THEIRS}


class World(Struct):
    """What one tenant has, by the names of the templates."""

    run: str
    waiting: str
    flow: str
    waitpoint: str
    lease: str
    attempt: str
    edge: str
    name: str
    place: str
    partition: str

    def fill(self, template: str) -> str:
        for name in self.__struct_fields__:
            template = template.replace(f"{{{name}}}", getattr(self, name))
        return template

    def hide(self, text: str) -> str:
        """The text without the words of this world."""
        for name in self.__struct_fields__:
            text = text.replace(getattr(self, name), name)
        return text


def _uuid(last: str) -> str:
    return NOBODY[:-1] + last


NOTHING = World(
    run=_uuid("1"),
    waiting=_uuid("2"),
    flow=_uuid("3"),
    waitpoint=_uuid("4"),
    lease=_uuid("5"),
    attempt=_uuid("6"),
    edge=_uuid("7"),
    name="no-such-name",
    place=NOWHERE,
    partition="255",
)


@pytest.fixture
async def theirs(http: httpx.AsyncClient) -> World:
    """A world of another tenant: a suspended run, a running one, a flow, names of its own."""
    kind = {"execution_kind": f"{SECRET}-kind", "namespace": THEIRS}
    flow = await create_flow(http, namespace=THEIRS, flow_kind=f"{SECRET}-flow")
    await add_member(http, flow, **kind)
    schedule = {"execution_kind": SECRET, "every": "1h", "namespace": THEIRS}
    for name in (f"a-{SECRET}", f"z-{SECRET}"):
        nouns = {
            "schedules": schedule,
            "subscriptions": {"namespace": THEIRS},
            "webhooks": {"url": f"https://{SECRET}.example.org", "namespace": THEIRS},
        }
        for noun, body in nouns.items():
            assert (await http.put(f"/v1/{noun}/{name}", json=body)).status_code == 200
        body = {"worker_id": SECRET, "namespace": THEIRS}
        assert (await http.put(f"/v1/workers/{name}", json=body)).status_code == 200
    await create(http, **kind)
    await create(http, **kind)
    claims = (await http.post("/v1/work/claim", json={**WORKER, "limit": 3})).json()["claims"]
    parked, running = claims[0], claims[1]
    suspended = await http.post(
        f"/v1/work/{parked['execution_id']}/suspend",
        json={"handle": parked["handle"], "signal": "go"},
    )
    return World(
        run=_bare(parked["execution_id"]),
        waiting=_bare(running["execution_id"]),
        flow=flow,
        waitpoint=suspended.json()["waitpoints"][0]["waitpoint_id"],
        lease=running["lease_id"],
        attempt=running["attempt_id"],
        edge=NOTHING.edge,
        name=f"a-{SECRET}",
        place=THEIRS,
        partition=running["execution_id"].partition("}")[0].rpartition(":")[2],
    )


def _bare(id: str) -> str:
    return id.rpartition(":")[2]


@pytest.fixture
async def caller(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """Another tenant, with every scope."""
    async with client_as(engine, tenant(namespace=MINE)) as client:
        yield client


async def _send(client: httpx.AsyncClient, route: Route, world: World) -> httpx.Response:
    body = None if route.body is None else world.fill(json.dumps(route.body))
    headers = {} if body is None else {"Content-Type": "application/json"}
    url = world.fill(route.url)
    return await client.request(route.method, url, content=body, headers=headers)


def _routes(*kinds: Apart) -> list[Route]:
    return [route for route in ROUTES if route.apart in kinds]


def test_every_route_has_its_rule() -> None:
    assert {route.key: route.scope for route in ROUTES} == known_routes()
    assert len(ROUTES) == len({route.key for route in ROUTES})


@pytest.mark.rules
async def test_routes_refuse_callers_without_their_scope(engine: Engine) -> None:
    for route in ROUTES:
        others = frozenset(AccessScope) - {route.scope}
        odd, nobody = client_as(engine, Identity("odd", others)), client_as(engine, None)
        async with odd, nobody:
            if route.scope is not None:
                refused = error_of(await _send(odd, route, NOTHING), 403)
                assert refused["details"]["scope"] == route.scope, route.key
            if route.scope is not None or route.apart is Apart.CALLS:
                error_of(await _send(nobody, route, NOTHING), 401)


async def test_another_tenant_is_answered_as_if_there_was_nothing(
    http: httpx.AsyncClient, theirs: World, caller: httpx.AsyncClient
) -> None:
    before = await _seen(http)
    for route in _routes(Apart.HIDES, Apart.LISTS, Apart.REFUSES):
        there, nothing = await _send(caller, route, theirs), await _send(caller, route, NOTHING)
        assert theirs.hide(there.text) == NOTHING.hide(nothing.text), route.key
        assert there.status_code == nothing.status_code < 500, route.key
        assert SECRET not in there.text.replace(theirs.name, ""), route.key
        if route.apart is Apart.REFUSES:
            assert error_of(there, 403)["code"] == "forbidden", route.key
        assert await _seen(http) == before, route.key


async def test_lists_without_a_namespace_are_those_of_the_caller(
    theirs: World, caller: httpx.AsyncClient
) -> None:
    ids = (theirs.run, theirs.waiting, theirs.flow, SECRET)
    for route in _routes(Apart.LISTS, Apart.REFUSES):
        if route.method != "GET" or route.path == "/v1/events/stream":
            continue
        bare = route._replace(target=route.url.replace("?namespace={place}", ""))
        reply = await _send(caller, bare, theirs)
        assert reply.status_code == 200, reply.text
        assert not [each for each in ids if each in reply.text], route.key


async def test_what_all_share_is_for_callers_that_see_all(caller: httpx.AsyncClient) -> None:
    for route in _routes(Apart.SHARED):
        refused = error_of(await _send(caller, route, NOTHING), 403)
        assert refused["code"] == "forbidden", route.key


async def _seen(http: httpx.AsyncClient) -> list[str]:
    """The world of the other tenant, as one who sees all of it finds it."""
    return [
        (await http.get(f"/v1/{noun}", params={"namespace": THEIRS})).text
        for noun in ("executions/search", "flows", "subscriptions", "webhooks", "waitpoints")
    ] + [(await http.get("/v1/schedules")).text]

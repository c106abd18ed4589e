"""Starlette and FastAPI applications with a fabric."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, WebSocket
from fastapi.testclient import TestClient
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from flowfabric import Fabric, Invalid, NotFound, WorkerOptions, testing
from flowfabric.integrations import fastapi, starlette
from tests.kit.connections import sqlalchemy_url


def double(n: int) -> int:
    return 2 * n


def test_a_request_reaches_the_fabric_which_closes_with_the_application(store_url: str) -> None:
    fabric = Fabric(store_url)
    task = fabric.task()(double)
    app = FastAPI(lifespan=fastapi.lifespan(fabric, worker=WorkerOptions()))

    @app.get("/double/{n}")
    async def endpoint(n: int, found: fastapi.FabricDependency) -> int:
        assert found is fabric
        return await (await task.submit(n)).result(timeout=60)

    @app.websocket("/double")
    async def socket(socket: WebSocket, found: fastapi.FabricDependency) -> None:
        await socket.accept()
        await socket.send_text(str(found is fabric))
        await socket.close()

    with TestClient(app) as client:
        assert client.get("/double/4").json() == 8
        with client.websocket_connect("/double") as open_socket:
            assert open_socket.receive_text() == "True"
    assert fabric._engine is None
    with TestClient(app) as client:  # an application may start again
        assert client.get("/double/5").json() == 10


def test_a_mounted_application_finds_the_fabric_too(store_url: str) -> None:
    fabric = Fabric(store_url)

    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse(starlette.get_fabric(request) is fabric)

    inside = Starlette(routes=[Route("/here", endpoint)])
    app = Starlette(routes=[Mount("/inside", inside)], lifespan=starlette.lifespan(fabric))
    with TestClient(app) as client:
        assert client.get("/inside/here").json() is True


def test_the_own_lifespan_finds_the_fabric_open_and_ends_first(store_url: str) -> None:
    fabric = Fabric(store_url)
    seen: list[bool] = []

    @asynccontextmanager
    async def own(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
        seen.append(fabric._engine is not None)
        yield {"colour": "red"}
        seen.append(fabric._engine is not None)

    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse([request.state.colour, starlette.get_fabric(request) is fabric])

    lifespan = starlette.lifespan(fabric, inner=own)
    with TestClient(Starlette(routes=[Route("/", endpoint)], lifespan=lifespan)) as client:
        assert client.get("/").json() == ["red", True]
    assert seen == [True, True]


async def test_the_run_exists_if_and_only_if_the_session_commits(store_url: str) -> None:
    fabric = Fabric(store_url)
    task = fabric.task()(double)
    engine = create_engine(sqlalchemy_url(store_url, "psycopg"))
    app = FastAPI(lifespan=fastapi.lifespan(fabric))

    @app.post("/double/{n}")
    def endpoint(n: int, fail: bool = False) -> str:
        with Session(engine) as session, session.begin():
            run = task.with_options(connection=session).submit_sync(n)
            if fail:
                session.rollback()
        return run.id

    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://app") as client,
    ):
        kept = (await client.post("/double/3")).json()
        dropped = (await client.post("/double/3?fail=true")).json()
        assert (await (await fabric.run(kept)).state()).name
        with pytest.raises(NotFound):
            await fabric.run(dropped)
    engine.dispose()


async def test_an_application_is_tested_in_a_harness(fabric: Fabric) -> None:
    task = fabric.task()(double)
    app = FastAPI(lifespan=fastapi.lifespan(fabric))

    @app.get("/double/{n}")
    async def endpoint(n: int, found: fastapi.FabricDependency) -> int:
        return await (await task.submit(n)).result()

    transport = httpx.ASGITransport(app)
    async with (
        testing.harness(fabric),
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://app") as client,
    ):
        assert (await client.get("/double/21")).json() == 42


def test_an_application_without_the_lifespan_says_what_is_missing() -> None:
    app = FastAPI()

    @app.get("/")
    async def endpoint(found: fastapi.FabricDependency) -> None: ...

    with pytest.raises(Invalid, match="lifespan=lifespan\\(fabric\\)"):
        TestClient(app).get("/")


def test_a_lifespan_needs_a_fabric() -> None:
    with pytest.raises(Invalid):
        starlette.lifespan("sqlite:///x.db")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        starlette.lifespan(Fabric("sqlite://:memory:"), worker=True)  # type: ignore[arg-type]

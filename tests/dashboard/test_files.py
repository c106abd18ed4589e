"""The files of the dashboard, without a browser: nothing from another host, nothing inline, small
modules, and any prefix."""

import re
from collections.abc import AsyncIterator
from importlib.resources import files

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.routing import Mount

from flowfabric.dashboard.files import INDEX, dashboard_file, names
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext
from flowfabric.store.open import open_store

STATIC = files("flowfabric.dashboard") / "static"
TEXTS = {name: (STATIC / name).read_text() for name in names()}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_file_names_no_other_host(name: str) -> None:
    urls = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", TEXTS[name]))
    assert urls <= {"http://www.w3.org"}  # the namespace of SVG, which is never asked for


@pytest.mark.parametrize("name", sorted(name for name in TEXTS if name.endswith(".js")))
def test_a_module_is_small_and_never_parses_markup(name: str) -> None:
    text = TEXTS[name]
    assert len(text.splitlines()) < 300
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    for imported in re.findall(r'from "(.+?)"', text):
        assert imported.startswith("./")
        assert imported[2:] in TEXTS


def test_the_page_has_nothing_inline_and_relative_addresses_only() -> None:
    text = TEXTS[INDEX]
    assert not re.search(r"<script(?![^>]*src=)|<style|style=|\son\w+=", text)
    addresses = re.findall(r'(?:src|href)="([^#"]+)"', text)
    assert addresses
    assert all(each.startswith("dashboard/") and each[10:] in TEXTS for each in addresses)


def test_every_file_comes_with_the_policy_and_a_tag() -> None:
    found = dashboard_file("app.js")
    assert found is not None
    assert found.media_type == "text/javascript"
    policy = found.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert found.headers["ETag"]


@pytest.mark.parametrize("name", ["", "../files.py", "files.py", "nothing.js", ".", "app.js/"])
def test_there_are_no_other_files(name: str) -> None:
    assert dashboard_file(name) is None


@pytest_asyncio.fixture(loop_scope="package")
async def engine() -> AsyncIterator[Engine]:
    engine = await Engine.open(await open_store("sqlite://:memory:"))
    yield engine
    await engine.close()


async def test_the_server_hands_them_out_to_everyone(engine: Engine) -> None:
    app = create_app(ServerContext(engine, Authentication(engine, is_open=False)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s") as http:
        page = await http.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.headers["x-frame-options"] == "DENY"
        script = await http.get("/dashboard/app.js")
        again = await http.get(
            "/dashboard/app.js", headers={"if-none-match": script.headers["etag"]}
        )
        assert (again.status_code, again.content) == (304, b"")
        assert (await http.get("/v1/me")).status_code == 401
        assert (await http.get("/dashboard/files.py")).status_code == 401


async def test_it_can_be_mounted_in_another_application(engine: Engine) -> None:
    server = create_app(ServerContext(engine, Authentication(engine, is_open=True)))
    app = Starlette(routes=[Mount("/ops", app=server)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s") as http:
        assert "FlowFabric" in (await http.get("/ops/")).text
        assert (await http.get("/ops/dashboard/app.js")).status_code == 200
        assert (await http.get("/ops/v1/me")).json()["name"] == "anonymous"

"""The Django project of the examples: web processes of both kinds, and its worker."""

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from flowfabric import Fabric
from tests.kit.service import Service

PROJECT = Path(__file__).parents[2] / "examples" / "django_shop"
MANAGE = str(PROJECT / "manage.py")


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(
    request: pytest.FixtureRequest, tmp_path: Path, fresh_database: Callable[..., str]
) -> str:
    """A database without any tables."""
    return f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else fresh_database()


@pytest.fixture
def shop(database_url: str, tmp_path: Path) -> Iterator[Service]:
    given = {
        "DATABASE": database_url.removeprefix("sqlite:///"),
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }
    shop = Service(PROJECT, given, tmp_path)
    shop.run(MANAGE, "migrate")
    yield shop
    shop.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("app", "interface"),
    [("config.asgi:application", "asgi3"), ("config.wsgi:application", "wsgi")],
)
async def test_an_order_is_shipped_by_the_worker(
    shop: Service, database_url: str, app: str, interface: str
) -> None:
    with shop.serve(app, f"--interface={interface}") as client:
        placed = client.post("/orders/", json={"customer": "ada", "cents": 1999})
        order = {"id": 1, "customer": "ada", "cents": 1999, "state": "new", "reminders": 0}
        assert (placed.status_code, placed.json()) == (201, order), placed.text
        assert client.post("/orders/1/reminders").status_code == 202
        assert client.post("/orders/", json={"customer": "eve", "cents": 0}).status_code == 400
        assert client.get("/orders/2").status_code == 404
        assert client.get("/orders/2/receipt").status_code == 404
        assert await workers(database_url) == []

        worker = shop.start(MANAGE, "flowfabric_worker", "--name", "packer", "--log-json")
        receipt = client.get("/orders/1/receipt")
        assert receipt.json() == {"order": 1, "payment": "pay-1-1999"}, receipt.text
        assert client.get("/orders/1").json()["state"] == "shipped"
        assert client.get("/orders/turnover").json() == {"cents": 1999}
        assert await workers(database_url) == ["packer"]

        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0, shop.log_of(worker)
        assert client.get("/orders/1").json()["reminders"] == 1
    assert '"message":"' in shop.log_of(worker)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_runserver_and_its_autoreload_start_no_worker(
    shop: Service, database_url: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = shop.start(MANAGE, "runserver", f"127.0.0.1:{port}")
    transport = httpx.HTTPTransport(retries=0)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=transport) as client:
        placed = until_it_listens(client)
    assert placed.status_code == 201, shop.log_of(server)
    assert await workers(database_url) == []
    server.send_signal(signal.SIGTERM)  # it ends the process that serves
    server.wait(60)


def until_it_listens(client: httpx.Client) -> httpx.Response:
    while True:
        try:
            return client.post("/orders/", json={"customer": "ada", "cents": 1999}, timeout=60)
        except httpx.ConnectError:
            continue  # the test has a timeout


async def workers(url: str) -> list[str]:
    async with Fabric(url) as fabric:
        engine = await fabric.engine()
        return [entry.worker for entry in await engine.workers.list(namespace=None, alive=True)]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_models_have_their_migrations(shop: Service) -> None:
    shop.run(MANAGE, "makemigrations", "--check", "--dry-run")
    shop.run(MANAGE, "check", "--database", "default")

"""The order service of the examples: a web process, a payment provider, and workers that die."""

import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from tests.kit.service import Service

EXAMPLES = Path(__file__).parents[2] / "examples"
WORKER = """
import asyncio
from flowfabric import WorkerOptions
from order_service.tasks import fabric
asyncio.run(fabric.run_worker(WorkerOptions(ttl="2s")))
"""


class Provider:
    """A payment provider that answers only after `answers` is set, and charges once per key."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}
        self.asked = threading.Semaphore(0)
        self.answers = threading.Event()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
                key = self.headers["Idempotency-Key"]
                provider.charges.setdefault(key, body["cents"])
                provider.asked.release()
                provider.answers.wait(60)
                answer = msgspec.json.encode({"payment_id": f"pay-{key}"})
                try:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:  # the worker was killed
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/charges"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.answers.set()
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(
    request: pytest.FixtureRequest, tmp_path: Path, fresh_database: Callable[..., str]
) -> str:
    """A database that the service migrates itself."""
    return f"sqlite:///{tmp_path}/orders.db" if request.param == "sqlite" else fresh_database()


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.close()


@pytest.fixture
def service(database_url: str, provider: Provider, tmp_path: Path) -> Iterator[Service]:
    given = {"FLOWFABRIC_URL": database_url, "PAYMENTS_URL": provider.url}
    service = Service(EXAMPLES, given, tmp_path)
    yield service
    service.close()


@pytest.mark.long
def test_an_order_is_charged_once_and_shipped_though_its_worker_is_killed(
    service: Service, provider: Provider
) -> None:
    with service.serve("order_service.app:app") as shop:
        placed = shop.post("/orders", json={"customer": "ada", "cents": 1999})
        order = {"id": 1, "customer": "ada", "cents": 1999, "state": "new"}
        assert (placed.status_code, placed.json()) == (201, order)

        first = service.start("-c", WORKER)
        assert provider.asked.acquire(timeout=40)  # in the middle of the charge
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert shop.get("/orders/1").json()["state"] == "new"

        provider.answers.set()
        service.start("-c", WORKER)
        receipt = shop.get("/orders/1/receipt")
        assert receipt.json() == {"orderId": 1, "paymentId": "pay-order-1"}, receipt.text
        assert shop.get("/orders/1").json()["state"] == "shipped"
    assert provider.charges == {"order-1": 1999}


def test_a_wrong_order_leaves_nothing(service: Service) -> None:
    with service.serve("order_service.app:app") as shop:
        assert shop.post("/orders", json={"customer": "", "cents": -1}).status_code == 422
        assert shop.get("/orders/1").status_code == 404
        assert shop.get("/orders/1/receipt").status_code == 404

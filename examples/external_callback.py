"""A payment that another company confirms by calling a webhook.

The run asks the payment provider for money and hands it a *callback*: an id and a token, as part of
the URL to call back. Then it waits without a worker, for seconds or days. A caller of the webhook
must present exactly this token; a modified token is refused and does not wake the run.

    python examples/external_callback.py
"""

import asyncio
import tempfile
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec

from flowfabric import Context, Fabric, NotSignalable, Unauthorized

store = Path(tempfile.mkdtemp()) / "shop.db"
fabric = Fabric(f"sqlite:///{store}")


class Payment(msgspec.Struct):
    """What the provider reports."""

    cents: int
    reference: str


# -- the provider, elsewhere, which only knows the URL it was given


class Provider:
    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.callback_url = ""

    async def charge(self, order: str, cents: int, callback_url: str) -> None:
        self.callback_url = callback_url
        self.asked.set()


provider = Provider()


# -- our task


@fabric.task(retries=3)
async def check_out(ctx: Context, order: str, cents: int) -> str:
    callback = await ctx.callback("payment")  # the same id and token every time this runs
    query = urlencode({"id": callback.id, "token": callback.token.reveal()})
    await ctx.step(provider.charge, order, cents, f"https://shop.example/paid?{query}")
    payment = await callback.result(Payment, timeout="3d")
    return f"{order}: {payment.cents} cents, {payment.reference}"


# -- our webhook: what a web framework would call for POST /paid


async def paid(url: str, body: bytes) -> int:
    """The HTTP status of the answer. The token is checked before anything else."""
    query = parse_qs(urlsplit(url).query)
    try:
        payment = msgspec.json.decode(body, type=Payment)
        await fabric.signal(
            query["id"][0], payload=payment, token=query["token"][0], key=payment.reference
        )
    except Unauthorized:
        return 403
    except NotSignalable:  # already answered, or too late
        return 410
    except (KeyError, msgspec.ValidationError):
        return 400
    return 200


# -- everything together


async def main() -> None:
    async with fabric:
        worker = await fabric.worker()
        working = asyncio.create_task(worker.run())
        run = await check_out.submit("order-7", 1999)
        await provider.asked.wait()

        url = provider.callback_url
        forged = url[:-1] + ("0" if url[-1] != "0" else "1")
        print("a forged call gets", await paid(forged, b'{"cents": 1, "reference": "mine"}'))
        body = b'{"cents": 1999, "reference": "pay-42"}'
        print("the right one gets", await paid(url, body))
        print("the same once more", await paid(url, body))  # known by its reference: harmless
        print(await run.result())
        print("another one later ", await paid(url, b'{"cents": 5, "reference": "pay-43"}'))

        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())

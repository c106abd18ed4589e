"""A lively sample application for a first look at the dashboard: a shop with orders and payments,
an agent that asks before it publishes and spends from a budget, a nightly flow, and some failures.

Nothing here is random from run to run: what an order does follows from its number.
"""

import asyncio
import logging
from itertools import count

from flowfabric.core.base.errors import Unavailable
from flowfabric.fabric import Fabric
from flowfabric.worker.api.backoff import Fixed
from flowfabric.worker.api.context import Context
from flowfabric.worker.errors import Fail

log = logging.getLogger("flowfabric.demo")

fabric = Fabric("sqlite:///flowfabric-demo.db")

fabric.quota("payments", concurrency=4)
fabric.quota("crm", rate="50/m")
fabric.budget("model tokens", tokens=40_000, every="10m")
fabric.budget("marketing", cents=300, every="1h")

TOPICS = ("sleep", "tea", "trains", "bees", "maps", "rain")
REGIONS = ("north", "south", "west")

PACE = 0.7
"""Seconds between two rounds of the shop."""


# -- orders


@fabric.task(lane="orders", retries=2, backoff=Fixed(delay="3s"), quotas=["payments"])
async def fulfil_order(ctx: Context, number: int, customer: str) -> dict[str, object]:
    """Three durable steps. Every ninth card is declined for good, every fifth at first."""
    stock = await ctx.step(reserve_stock, number)
    receipt = await ctx.step(charge_card, number, ctx.info.attempt)
    parcel = await ctx.step(pack_parcel, number)
    return {"order": number, "customer": customer, "parcel": parcel, "from": stock, "paid": receipt}


async def reserve_stock(number: int) -> str:
    await asyncio.sleep(0.2 + number % 3 / 10)
    return f"shelf {number % 40}"


async def charge_card(number: int, attempt: int) -> str:
    await asyncio.sleep(0.4 + number % 4 / 5)
    if number % 9 == 0:
        raise Fail(f"card of order {number} was declined")
    if number % 5 == 0 and attempt == 1:
        raise ConnectionError("the payment provider did not answer in time")
    return f"receipt-{number:05}"


async def pack_parcel(number: int) -> str:
    await asyncio.sleep(0.5)
    return f"parcel-{number:05}"


@fabric.task(lane="mail", budgets=["marketing"])
async def remind_customer(ctx: Context, number: int) -> str:
    """Sleeps without a worker, then sends."""
    await ctx.sleep("45s")
    await ctx.spend(cents=12)
    return f"reminder for order {number} sent"


@fabric.task(lane="orders")
async def collect_payment(ctx: Context, number: int) -> str:
    """Waits until the bank says that the transfer has arrived."""
    amount = await ctx.wait_for_signal("transfer arrived", int)
    return f"{amount} cents for order {number}"


@fabric.task(lane="crm", retries=1, backoff=Fixed(delay="5s"), quotas=["crm"])
async def sync_contact(contact: int) -> str:
    await asyncio.sleep(0.3)
    if contact % 15 == 0:
        raise TimeoutError("crm.example.com: no answer after 30 s")
    return f"contact {contact} is up to date"


@fabric.task(lane="thumbnails")
async def make_thumbnail(picture: str, width: int = 320) -> str:
    await asyncio.sleep(1.5)
    return f"{picture} at {width} px"


async def submit_thumbnails(album: str, pictures: int) -> None:
    """Everything else goes first."""
    calls = [(f"{album}-{number:02}.jpg",) for number in range(pictures)]
    await make_thumbnail.with_options(priority=-1).submit_many(calls)


# -- an agent with a budget, which asks before it publishes


@fabric.task(lane="agents", budgets=["model tokens"])
async def research_agent(ctx: Context, topic: str) -> str:
    notes: list[str] = []
    for turn in range(1, 4):
        notes.append(await ctx.step(ask_model, topic, turn))
        await ctx.emit(notes[-1])
        await ctx.spend(tokens=700 + 150 * turn)
    verdict = await ctx.approval(
        "publish", about={"title": f"Ten things about {topic}", "words": 900, "notes": notes}
    )
    return f"published: {topic}" if verdict.approved else f"dropped: {topic}"


async def ask_model(topic: str, turn: int) -> str:
    await asyncio.sleep(0.6)
    return f"finding {turn} about {topic}"


# -- the nightly flow


@fabric.task(lane="nightly")
async def extract(region: str) -> int:
    await asyncio.sleep(1.0)
    return 100 + 10 * len(region)


@fabric.task(lane="nightly")
async def clean(rows: int) -> int:
    await asyncio.sleep(0.8)
    return rows - 3


@fabric.task(lane="nightly")
async def load(parts: list[int]) -> int:
    await asyncio.sleep(1.2)
    return sum(parts)


@fabric.task(lane="nightly")
async def publish_report(rows: int) -> str:
    await asyncio.sleep(0.4)
    return f"{rows} rows in the report"


@fabric.task(lane="nightly", every="1m")
async def check_backups() -> str:
    await asyncio.sleep(0.2)
    return "all backups are there"


async def submit_nightly() -> None:
    """Three regions are read and cleaned at once, then loaded and reported."""
    async with fabric.flow("nightly report") as flow:
        parts = [
            flow.add(clean, flow.add(extract, region, name=f"extract {region}").output,
                     name=f"clean {region}")
            for region in REGIONS
        ]  # fmt: skip
        rows = flow.add(load, [part.output for part in parts])
        flow.add(publish_report, rows.output)


# -- what happens in the shop


async def open_shop() -> None:
    """Submits work until it is cancelled."""
    await submit_nightly()
    await submit_thumbnails("start", 60)
    for topic in TOPICS[:2]:
        await research_agent.submit(topic)
    for number in count(1):
        try:
            await _round(number)
        except Unavailable as error:
            log.warning("order %d was not submitted; the shop goes on: %s", number, error)
        await asyncio.sleep(PACE)


async def _round(number: int) -> None:
    customer = f"customer-{number % 17:02}"
    tagged = fulfil_order.with_options(tags={"shop.customer": customer}, priority=number % 3)
    await tagged.submit(number, customer)
    if number % 2:
        await sync_contact.submit(number)
    if number % 7 == 3:
        await remind_customer.submit(number)
    if number % 20 == 4:
        await collect_payment.submit(number)
    if number % 30 == 10:
        await research_agent.submit(TOPICS[number // 30 % len(TOPICS)])
    if number % 35 == 12:
        await submit_thumbnails(f"order-{number}", 45)
    if number % 75 == 40:
        await submit_nightly()

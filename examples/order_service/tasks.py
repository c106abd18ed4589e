"""What happens to an order. A worker does it: `flowfabric worker order_service.tasks:fabric`"""

import os

import httpx

from flowfabric import Fabric, SyncContext

from .models import Order, OrderView, Receipt, session_maker

fabric = Fabric()
sessions = session_maker()


@fabric.step(retries=2)
def charge(order: OrderView, key: str) -> str:
    """Asks the payment provider, who charges once however often it sees the same key."""
    answer = httpx.post(
        os.environ["PAYMENTS_URL"],
        json={"customer": order.customer, "cents": order.cents},
        headers={"Idempotency-Key": key},
        timeout=30,
    )
    return str(answer.raise_for_status().json()["payment_id"])


@fabric.task(retries=5)
def fulfil(ctx: SyncContext, order: OrderView) -> Receipt:
    payment = ctx.step(charge, order, f"order-{order.id}")
    receipt = Receipt(orderId=order.id, paymentId=payment)
    with sessions.begin() as session:
        session.get_one(Order, order.id).state = "shipped"
        session.flush()
        ctx.complete_in(session, receipt)  # shipped and completed, or neither
    return receipt

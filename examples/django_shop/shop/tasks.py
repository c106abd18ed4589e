"""What happens to an order. Workers do it: `manage.py flowfabric_worker`"""

from django.db import connection, transaction
from django.db.models import F, Sum

from flowfabric import SyncContext
from flowfabric.integrations.django import fabric

from .models import Order, Receipt


@fabric.step(retries=2)
def charge(order: int, cents: int) -> str:
    """A payment provider would be asked here, with the order as the idempotency key."""
    return f"pay-{order}-{cents}"


@fabric.task(retries=5)
def fulfil(ctx: SyncContext, order: int) -> Receipt:
    """A plain function: it runs in a thread and uses the ORM as a view does."""
    cents = Order.objects.values_list("cents", flat=True).get(id=order)
    receipt = Receipt(order, ctx.step(charge, order, cents))
    with transaction.atomic():
        Order.objects.filter(id=order).update(state="shipped")
        ctx.complete_in(connection, receipt)  # shipped and completed, or neither
    return receipt


@fabric.task(retries=5)
async def remind(order: int) -> None:
    """A coroutine: it uses the asynchronous methods of the ORM."""
    await Order.objects.filter(id=order).aupdate(reminders=F("reminders") + 1)


@fabric.task(process=True)
def turnover() -> int:
    """Heavy work: it runs in a process of its own, in which Django is set up."""
    found = Order.objects.filter(state="shipped").aggregate(cents=Sum("cents"))
    return found["cents"] or 0

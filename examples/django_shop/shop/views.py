"""What the shop answers."""

import json
from dataclasses import asdict

from django.db import connection, transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from flowfabric.integrations.django import fabric, submit_on_commit

from .models import Order, Receipt
from .tasks import fulfil, remind, turnover


@require_POST
def create(request: HttpRequest) -> HttpResponse:
    """Saves the order and its run in one transaction."""
    wanted = json.loads(request.body)
    if wanted["cents"] <= 0:
        return JsonResponse({"error": "an order costs something"}, status=400)
    with transaction.atomic():  # the order and its run, or neither
        order = Order.objects.create(customer=wanted["customer"], cents=wanted["cents"])
        call = fulfil.with_options(connection=connection, key=f"order-{order.id}")
        order.run_id = str(call.submit_sync(order.id).id)
        order.save()
    return JsonResponse(_shown(order), status=201)


def show(request: HttpRequest, id: int) -> HttpResponse:
    return JsonResponse(_shown(get_object_or_404(Order, id=id)))


async def receipt(request: HttpRequest, id: int) -> HttpResponse:
    """Answers when the order is shipped, or with 504 if that takes longer than 20 seconds."""
    try:
        order = await Order.objects.aget(id=id)
    except Order.DoesNotExist:
        raise Http404(f"there is no order {id}") from None
    run = await fabric.run(order.run_id)
    try:
        found: Receipt = await run.result(timeout=20)
    except TimeoutError:
        return JsonResponse({"error": f"order {id} is not shipped yet"}, status=504)
    return JsonResponse(asdict(found))


@require_POST
def reminders(request: HttpRequest, id: int) -> HttpResponse:
    """Sends a reminder after the commit."""
    with transaction.atomic():
        order = get_object_or_404(Order.objects.select_for_update(), id=id)
        submit_on_commit(remind, order.id)
    return JsonResponse(_shown(order), status=202)


def show_turnover(request: HttpRequest) -> HttpResponse:
    """A plain view that waits for a result."""
    return JsonResponse({"cents": turnover.submit_sync().result_sync(timeout=20)})


def _shown(order: Order) -> dict[str, object]:
    return {
        "id": order.id,
        "customer": order.customer,
        "cents": order.cents,
        "state": order.state,
        "reminders": order.reminders,
    }

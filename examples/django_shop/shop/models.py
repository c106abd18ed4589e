"""What the shop keeps."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import models


class Order(models.Model):
    id: int
    customer: models.CharField[str, str] = models.CharField(max_length=100)
    cents: models.PositiveIntegerField[int, int] = models.PositiveIntegerField()
    state: models.CharField[str, str] = models.CharField(max_length=20, default="new")
    reminders: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(default=0)
    run_id: models.CharField[str, str] = models.CharField(max_length=100, default="")


@dataclass
class Receipt:
    """What a customer gets when the order is shipped."""

    order: int
    payment: str

"""Stands for the payment provider: `uvicorn order_service.payments:app --port 9000`"""

from typing import Annotated

from fastapi import FastAPI, Header

app = FastAPI()
payments: dict[str, str] = {}


@app.post("/charges")
async def charge(idempotency_key: Annotated[str, Header()]) -> dict[str, str]:
    """The same key pays once."""
    return {"payment_id": payments.setdefault(idempotency_key, f"pay-{len(payments) + 1}")}

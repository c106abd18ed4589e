"""The service: `uvicorn order_service.app:app`"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy.orm import Session

from flowfabric.integrations.fastapi import FabricDependency, lifespan

from .models import Base, NewOrder, Order, OrderView, Receipt
from .tasks import fabric, fulfil, sessions


@asynccontextmanager
async def tables(app: FastAPI) -> AsyncIterator[None]:
    with sessions.begin() as session:
        Base.metadata.create_all(session.connection())
    yield


app = FastAPI(lifespan=lifespan(fabric, inner=tables))


def open_session() -> Iterator[Session]:
    with sessions() as session:
        yield session


SessionDependency = Annotated[Session, Depends(open_session)]


@app.post("/orders", status_code=201)
def create(new: NewOrder, session: SessionDependency) -> OrderView:
    with session.begin():  # the order and its run, or neither
        order = Order(customer=new.customer, cents=new.cents)
        session.add(order)
        session.flush()  # gives the order its id
        view = view_of(order)
        call = fulfil.with_options(connection=session, key=f"order-{order.id}")
        order.run_id = str(call.submit_sync(view).id)
    return view


@app.get("/orders/{id}")
def show(id: int, session: SessionDependency) -> OrderView:
    return view_of(found(session, id))


@app.get("/orders/{id}/receipt")
async def receipt(id: int, session: SessionDependency, fabric: FabricDependency) -> Receipt:
    """Answers when the order is shipped, or with 504 if that takes longer than 20 seconds."""
    run = await fabric.run(found(session, id).run_id)
    try:
        result: Receipt = await run.result(timeout=20)
    except TimeoutError:
        raise HTTPException(504, f"order {id} is not shipped yet") from None
    return result


def found(session: Session, id: int) -> Order:
    order = session.get(Order, id)
    if order is None:
        raise HTTPException(404, f"there is no order {id}")
    return order


def view_of(order: Order) -> OrderView:
    return OrderView(id=order.id, customer=order.customer, cents=order.cents, state=order.state)

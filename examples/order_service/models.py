"""What the service keeps, and what it takes and gives."""

import os

from pydantic import BaseModel, Field
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]
    state: Mapped[str] = mapped_column(default="new")
    run_id: Mapped[str] = mapped_column(default="")


class NewOrder(BaseModel):
    customer: str = Field(min_length=1)
    cents: int = Field(gt=0)


class OrderView(NewOrder):
    id: int
    state: str


class Receipt(BaseModel):
    order_id: int = Field(alias="orderId")
    payment_id: str = Field(alias="paymentId")


def session_maker() -> sessionmaker[Session]:
    """Sessions on the database of the runs: only then can both be saved in one transaction."""
    url = os.environ["FLOWFABRIC_URL"].replace("postgresql://", "postgresql+psycopg://", 1)
    return sessionmaker(create_engine(url))

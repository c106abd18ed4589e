"""How runs, tasks and flows reach the engine."""

from collections.abc import Awaitable, Callable

from flowfabric.engine.engine import Engine
from flowfabric.worker.api.blocking import Block
from flowfabric.worker.api.declared import Declarations
from flowfabric.worker.api.transactions import TransactionalClient


class Client:
    """The engine behind a Fabric.

    `engine` opens it on first use, `block_on` runs a coroutine for code without an event loop,
    `transactions` submits on a connection of the application, and `declarations` are the quotas and
    budgets that the application declares.
    """

    def __init__(
        self,
        engine: Callable[[], Awaitable[Engine]],
        block_on: Block,
        transactions: TransactionalClient,
    ) -> None:
        self.engine = engine
        self.block_on = block_on
        self.transactions = transactions
        self.declarations = Declarations()

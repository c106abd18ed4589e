"""Quotas and budgets that an application declares at import, and that a worker makes when it
starts. Awaiting a declaration makes it at once."""

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from flowfabric.core.limit.budget import Budget
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.engine import Engine
from flowfabric.worker.api.ids import with_run

P = ParamSpec("P")
D = TypeVar("D", bound=Quota | Budget)
V = TypeVar("V")


class DeclaredLimit(Generic[V]):
    """A quota or budget of this application. `await` makes it now and returns it as it is then;
    otherwise every worker of this application makes it when it starts, and so does the first
    submission."""

    def __init__(self, definition: Quota | Budget, make: Callable[[], Awaitable[V]]) -> None:
        self.definition = definition
        self._make = make

    @property
    def name(self) -> str:
        return self.definition.name

    def __repr__(self) -> str:
        return f"DeclaredLimit({self.definition!r})"

    def __await__(self) -> Generator[Any, None, V]:
        return self._make().__await__()


def made_now(
    method: Callable[Concatenate[Any, P], DeclaredLimit[V]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, V]]:
    """The method as one that makes what it declares, and declares nothing before it is awaited."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> V:
        return await method(self, *args, **kwargs)

    call.__name__ = f"_{method.__name__}_now"
    return call


class Declarations:
    """The quotas and budgets that an application declares; the last declaration of a name counts.
    An `await` takes one out: it is the application's own change then, which no worker repeats."""

    def __init__(self) -> None:
        self._quotas: dict[str, Quota] = {}
        self._budgets: dict[str, Budget] = {}
        self._made_on: Engine | None = None

    def add(self, definition: Quota | Budget) -> None:
        self._made_on = None
        match definition:
            case Quota():
                self._quotas[definition.name] = definition
            case Budget():
                self._budgets[definition.name] = definition

    def forget(self, definition: Quota | Budget) -> None:
        kept: dict[str, Any] = self._quotas if isinstance(definition, Quota) else self._budgets
        if kept.get(definition.name) is definition:
            del kept[definition.name]

    async def ensure(self, engine: Engine) -> None:
        """Makes them before the first submission: a run cannot name a limit that does not exist."""
        if self._made_on is not engine:
            await self.make(engine)

    async def make(self, engine: Engine) -> None:
        """Makes all of them; one that is there already gets these limits."""
        quotas, budgets = list(self._quotas.values()), parents_first(self._budgets.values())
        self._made_on = engine
        try:
            for quota in quotas:
                await engine.quotas.define(quota)
            for budget in budgets:
                await engine.budgets.define(await with_run(engine, budget))
        except BaseException:
            self._made_on = None
            raise


def parents_first(budgets: Iterable[Budget]) -> list[Budget]:
    """The budgets in an order in which each comes after its parent, if that is one of them."""
    left = {budget.name: budget for budget in budgets}
    found: list[Budget] = []
    while left:
        ready = [each for each in left.values() if each.parent not in left]
        for budget in ready or list(left.values()):  # a circle is refused by the engine
            found.append(left.pop(budget.name))
    return found

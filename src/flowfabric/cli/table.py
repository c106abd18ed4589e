"""How a noun is printed: as a line of a list, as fields on a page of its own, as JSON."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from flowfabric.cli.json import Document, document
from flowfabric.cli.output import Cells, Screen

T = TypeVar("T")
K = TypeVar("K")

PAGE = 1000


class Table(Struct, Generic[T], frozen=True, kw_only=True):
    """One noun. `row` gives the headings and texts of its line in a list, `fields` those of a
    page of its own; `json` gives the document for programs."""

    row: Callable[[T], Cells] = lambda item: []
    fields: Callable[[T], Cells] = lambda item: []
    json: Callable[[T], Document] = document  # type: ignore[assignment]
    empty: str = ""

    async def list(self, screen: Screen, items: AsyncIterable[T]) -> None:
        """One document per line as they come, or one table of all."""
        if screen.as_json:
            async for item in items:
                screen.document(self.json(item))
        else:
            self.lines(screen, [item async for item in items])

    def lines(self, screen: Screen, items: Sequence[T], empty: str | None = None) -> None:
        """The same for items that are all at hand."""
        if screen.as_json:
            for item in items:
                screen.document(self.json(item))
        elif items:
            screen.table([self.row(item) for item in items])
        else:
            screen.note(self.empty if empty is None else empty)

    def below(self, screen: Screen, items: Sequence[T], most: int | None = None) -> None:
        """A table under the fields of something else, if there are items."""
        if not items:
            return
        screen.line("")
        screen.table([self.row(item) for item in items[:most]])
        if most is not None and len(items) > most:
            screen.line(f"… {len(items) - most} more")

    def show(self, screen: Screen, item: T) -> None:
        if screen.as_json:
            screen.document(self.json(item))
        else:
            screen.fields(self.fields(item))


async def pages(
    fetch: Callable[[K | None, int], Awaitable[Sequence[T]]],
    cursor: Callable[[T], K],
    limit: int | None = None,
) -> AsyncIterator[T]:
    """All items of a list that is read page by page, or the first `limit`. `fetch` gets the
    cursor of the last item and how many are wanted at most."""
    after: K | None = None
    left = limit
    while left is None or left > 0:
        page = await fetch(after, PAGE if left is None else min(PAGE, left))
        if not page:
            return
        for item in page:
            yield item
        after = cursor(page[-1])
        left = None if left is None else left - len(page)

"""Changes with where their rows are and where they go."""

from collections.abc import Iterable
from uuid import UUID

from msgspec import Struct

from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Snapshot
from flowfabric.store.rows.execution import StateTable, place_of


class RowMove(Struct, frozen=True, gc=False):
    """A change with where its row is and where it goes."""

    change: Change[object]
    before: Snapshot
    after: Snapshot
    origin: StateTable
    target: StateTable

    @property
    def uuid(self) -> UUID:
        return self.before.execution.uuid


def moves_of(changes: Iterable[Change[object]]) -> list[RowMove]:
    return [
        RowMove(change, before, after, place_of(before.state), place_of(after.state))
        for change in changes
        if (before := change.before) is not None and (after := change.after) is not None
    ]

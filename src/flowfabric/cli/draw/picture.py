"""What of a flow is drawn: its members in layers, those of the same shape folded when many."""

from collections import Counter
from collections.abc import Iterable, Mapping
from uuid import UUID

from msgspec import Struct

from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import AllOf, AnyOf, Edge, Join, On, Quorum
from flowfabric.engine.flow.views import FlowGraph, Member

SIGNS = {
    PublicState.WAITING: "○",
    PublicState.DELAYED: "◷",
    PublicState.RATE_LIMITED: "◍",
    PublicState.WAITING_CHILDREN: "◌",
    PublicState.ACTIVE: "▶",
    PublicState.SUSPENDED: "‖",
    PublicState.COMPLETED: "✓",
    PublicState.FAILED: "✗",
    PublicState.CANCELLED: "⊘",
    PublicState.EXPIRED: "⌀",
    PublicState.SKIPPED: "↷",
}
WORDS = {state: str(state).replace("_", " ") for state in PublicState}
WORDS[PublicState.WAITING_CHILDREN] = "waiting for others"
KINDS = {On.SUCCESS: "on success", On.FAILURE: "on failure", On.ANY_END: "on any end"}

_INTEREST = (
    PublicState.FAILED,
    PublicState.EXPIRED,
    PublicState.CANCELLED,
    PublicState.ACTIVE,
    PublicState.SUSPENDED,
    PublicState.RATE_LIMITED,
    PublicState.DELAYED,
    PublicState.WAITING,
    PublicState.WAITING_CHILDREN,
    PublicState.SKIPPED,
    PublicState.COMPLETED,
)
"""Which states are worth being seen when not all members are."""


class Box(Struct, frozen=True):
    """A member, or many that are folded into one box; `state` is the most interesting one."""

    label: str
    state: PublicState
    layer: int
    note: str = ""
    folded: int = 0

    @property
    def text(self) -> str:
        words = f"{self.label} {self.note}" if self.note else self.label
        return words if self.folded else f"{SIGNS[self.state]} {words}"


class Arrow(Struct, frozen=True):
    """From one box to another, by their numbers; `kinds` of the edges it stands for."""

    upstream: int
    downstream: int
    kinds: frozenset[On]


class Picture(Struct, frozen=True):
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    @property
    def states(self) -> list[PublicState]:
        """The states of boxes, for a legend."""
        found = {box.state for box in self.boxes if not box.folded}
        return [state for state in PublicState if state in found]

    @property
    def kinds(self) -> list[On]:
        return [on for on in On if any(on in arrow.kinds for arrow in self.arrows)]


def picture(shape: "NodeShape", most: int, *, name_length: int = 60, alike: bool = True) -> Picture:
    """At most `most` members of the same form in a layer, the rest of them in one box. With
    `alike` False all members of a layer are folded together."""
    groups: dict[object, list[UUID]] = {}
    for uuid, layer in shape.layers.items():
        groups.setdefault((layer, shape.forms[uuid] if alike else None), []).append(uuid)
    boxes: list[Box] = []
    place: dict[UUID, int] = {}
    for uuids in groups.values():
        layer = shape.layers[uuids[0]]
        shown, folded = _choose(uuids, shape.members, most)
        for uuid in shown:
            place[uuid] = len(boxes)
            boxes.append(_box(shape.members[uuid], layer, name_length))
        if folded:
            place.update(dict.fromkeys(folded, len(boxes)))
            boxes.append(_fold([shape.members[uuid] for uuid in folded], layer))
    return Picture(tuple(boxes), tuple(_arrows(shape.edges, place)))


def counts(states: Mapping[PublicState, int]) -> str:
    """`188 completed, 2 active`"""
    return ", ".join(f"{states[state]} {WORDS[state]}" for state in _INTEREST if states.get(state))


def join_note(join: Join | None) -> str:
    """What a join asks for, where that is not simply everything."""
    match join:
        case Join(policy=AnyOf(), n=n) if n > 1:
            return f"(any of {n})"
        case Join(policy=Quorum(k=k), n=n):
            return f"({k} of {n})"
        case Join(policy=AllOf()) | None | Join():
            return ""


class NodeShape:
    """The graph as maps from one member to others."""

    def __init__(self, graph: FlowGraph) -> None:
        self.members = {member.id.uuid: member for member in graph.members}
        self.edges = tuple(state.edge for state in graph.edges)
        self.before: dict[UUID, list[UUID]] = {uuid: [] for uuid in self.members}
        self.after: dict[UUID, list[UUID]] = {uuid: [] for uuid in self.members}
        for edge in self.edges:
            if edge.upstream in self.members and edge.downstream in self.members:
                self.before[edge.downstream].append(edge.upstream)
                self.after[edge.upstream].append(edge.downstream)
        order = self._order()
        self.layers = self._layers(order)
        self.forms = self._forms(order)

    def _order(self) -> list[UUID]:
        """Every member after all it waits for."""
        waiting = {uuid: len(before) for uuid, before in self.before.items()}
        found = [uuid for uuid, number in waiting.items() if not number]
        for uuid in found:  # grows while it is read
            for child in self.after[uuid]:
                waiting[child] -= 1
                if not waiting[child]:
                    found.append(child)
        return found

    def _layers(self, order: list[UUID]) -> dict[UUID, int]:
        """How many others come before a member at least."""
        found: dict[UUID, int] = {}
        for uuid in order:
            found[uuid] = max((found[before] + 1 for before in self.before[uuid]), default=0)
        return found

    def _forms(self, order: list[UUID]) -> dict[UUID, tuple[int, int]]:
        """The same for members whose past and future look the same, by any name."""
        numbers: dict[object, int] = {}
        past = self._looks(order, self.before, numbers)
        future = self._looks(reversed(order), self.after, numbers)
        return {uuid: (past[uuid], future[uuid]) for uuid in order}

    def _looks(
        self, order: Iterable[UUID], others: Mapping[UUID, list[UUID]], numbers: dict[object, int]
    ) -> dict[UUID, int]:
        found: dict[UUID, int] = {}
        for uuid in order:
            around = Counter(found[other] for other in others[uuid])
            look = (self.members[uuid].kind, tuple(sorted(around.items())))
            found[uuid] = numbers.setdefault(look, len(numbers))
        return found


def _choose(
    uuids: list[UUID], members: Mapping[UUID, Member], most: int
) -> tuple[list[UUID], list[UUID]]:
    """Which are shown and which folded; one alone is never folded. The order is stable."""
    uuids = sorted(uuids, key=lambda uuid: _natural(members[uuid].name))
    if len(uuids) <= most + 1:
        return uuids, []
    by_interest = sorted(uuids, key=lambda uuid: _INTEREST.index(members[uuid].state))
    shown = set(by_interest[:most])
    return [u for u in uuids if u in shown], [u for u in uuids if u not in shown]


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Names in the order people count in: part 9 comes before part 10."""
    parts: list[str] = []
    for letter in name:
        if parts and parts[-1][-1].isdecimal() == letter.isdecimal():
            parts[-1] += letter
        else:
            parts.append(letter)
    return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts)


def _box(member: Member, layer: int, name_length: int) -> Box:
    name = "".join(letter if letter.isprintable() else " " for letter in member.name)
    if len(name) > name_length:
        name = f"{name[: name_length - 1]}…"
    return Box(name, member.state, layer, join_note(member.join))


def _fold(members: list[Member], layer: int) -> Box:
    states = Counter(member.state for member in members)
    first = next(state for state in _INTEREST if states[state])
    return Box(f"… {len(members)} more ({counts(states)})", first, layer, folded=len(members))


def _arrows(edges: Iterable[Edge], place: Mapping[UUID, int]) -> Iterable[Arrow]:
    kinds: dict[tuple[int, int], set[On]] = {}
    for edge in edges:
        upstream, downstream = place.get(edge.upstream), place.get(edge.downstream)
        if upstream is not None and downstream is not None:
            kinds.setdefault((upstream, downstream), set()).add(edge.on)
    return (Arrow(up, down, frozenset(found)) for (up, down), found in kinds.items())

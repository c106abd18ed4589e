"""The reference evaluation of a graph: what joins, edges and counts must be, from endings alone.

It knows how members ended and were replayed (the events say that) and how the graph was built. What
an engine stores about edges, joins and the flow is never asked here, it is compared with this.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

ENDINGS = ("success", "failed", "cancelled", "expired", "skipped")
REPLAYED = "replayed"
REOPENED = "reopened"
SATISFYING = {
    "on_success": {"success"},
    "on_failure": {"failed", "expired"},
    "on_any_end": set(ENDINGS),
}


@dataclass(frozen=True)
class Rule:
    """When a member runs: after `k` of its upstreams (None: all). `cancels` those it beats."""

    k: int | None = None
    cancels: bool = False

    def verdict(self, n: int, tally: Counter[str], *, growing: bool = True) -> str:
        """`growing`: edges may still come."""
        k = n if self.k is None else min(self.k, n) if n == 0 else self.k
        if n < k and growing:
            return "pending"
        if tally["good"] >= k:
            return "satisfied"
        return "impossible" if tally["bad"] + tally["skipped"] > n - k else "pending"


@dataclass
class Wire:
    """An edge, and the endings it may have been settled by (None: by none so far). `told` says that
    it must have been settled once nothing is owed."""

    up: UUID
    down: UUID
    on: str
    may: set[str | None] = field(default_factory=lambda: {None})
    told: bool = False

    def word(self, outcome: str | None) -> str:
        """How an edge that was settled so counts."""
        if outcome is None:
            return "open"
        if outcome in SATISFYING[self.on]:
            return "good"
        return "skipped" if outcome == "skipped" else "bad"

    def reopen(self, ended: str | None) -> None:
        """The downstream was replayed: it waits again, unless the edge was satisfied before (a
        downstream that is replayed alone keeps that) or the upstream has ended well since. One that
        failed may be about to be replayed with it."""
        self.may = {None, ended} | {each for each in self.may if self.word(each) == "good"}
        self.told = self.word(ended) == "good" and ended == "success"

    @property
    def wanted(self) -> set[str | None]:
        """What may be stored once nothing is owed."""
        return self.may - {None} if self.told else self.may


@dataclass
class Member:
    """`asked`: somebody cancelled it by hand. `overtaken`: an edge came when it was under way.
    `held`: it may not run before the flow is sealed."""

    uuid: UUID
    rule: Rule = Rule()
    held: bool = False
    asked: bool = False
    overtaken: bool = False
    tale: list[str] = field(default_factory=list)

    @property
    def ended(self) -> str | None:
        return self.tale[-1] if self.tale and self.tale[-1] in ENDINGS else None

    @property
    def was_replayed(self) -> bool:
        return REPLAYED in self.tale or REOPENED in self.tale


@dataclass
class Child:
    """A flow that a member has started, when it had ended and was replayed `since` times in all."""

    parent: Member
    since: int

    @property
    def left_by(self) -> str | None:
        """How the member ended first after that; later ends are not about this flow."""
        return next((word for word in self.parent.tale[self.since :] if word in ENDINGS), None)


@dataclass
class Book:
    """One flow. `cancel` is the policy it was cancelled with."""

    members: dict[UUID, Member] = field(default_factory=dict)
    wires: dict[UUID, Wire] = field(default_factory=dict)
    children: dict[UUID, Child] = field(default_factory=dict)
    sealed: bool = False
    cancel: str | None = None

    def hear(self, uuid: UUID, word: str) -> None:
        """A member ended or was replayed; it does one after the other, beginning with an end."""
        member = self.members[uuid]
        again = word in (REPLAYED, REOPENED)
        assert again == (member.ended is not None), f"{uuid} {member.tale} and then {word}"
        member.tale.append(word)
        for wire in self.out_of(uuid):
            if word in ENDINGS and None in wire.may:
                wire.may.add(word)
                wire.told = True
            elif again:
                wire.told = False  # an ending that is taken back need not be told any more
        if word == REOPENED:
            for wire in self.into(uuid):
                wire.reopen(self.members[wire.up].ended)

    def into(self, uuid: UUID) -> list[Wire]:
        return [wire for wire in self.wires.values() if wire.down == uuid]

    def out_of(self, uuid: UUID) -> list[Wire]:
        return [wire for wire in self.wires.values() if wire.up == uuid]

    def link(self, id: UUID, up: UUID, down: UUID, on: str, *, under_way: bool = False) -> None:
        ended = self.members[up].ended
        self.wires[id] = Wire(up, down, on, {ended}, told=ended is not None)
        self.members[down].overtaken |= under_way

    def may_run(self, uuid: UUID) -> bool:
        """Whether a member may run now, as far as its upstreams go."""
        wires = self.into(uuid)
        hopes = Counter(_best(wire) for wire in wires)
        return self.members[uuid].rule.verdict(len(wires), hopes) == "satisfied"

    def counts(self, spared: Iterable[UUID]) -> Counter[str]:
        """How many members ended how; `spared` lost a race, which is no failure."""
        losers = set(spared)
        return Counter(
            "spared" if uuid in losers else member.ended
            for uuid, member in self.members.items()
            if member.ended is not None
        )

    def state(self, counts: Counter[str]) -> str:
        if self.cancel is not None:
            return "cancelled"
        if not self.sealed:
            return "open"
        if counts.total() < len(self.members):
            return "running"
        bad = counts["failed"] + counts["cancelled"] + counts["expired"]
        return "failed" if bad else "completed"


def _best(wire: Wire) -> str:
    words = {wire.word(outcome) for outcome in wire.may}
    return "good" if "good" in words else min(words)

"""Random graphs, random moves, deaths between any two commits: in the end it is as the reference
says.

A rule that finds nothing to act on does nothing, so that what is drawn does not depend on how races
end.
"""

from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from flowfabric.core.flow.join import AllOf, AnyOf, JoinPolicy, On, Quorum, Rest
from flowfabric.core.flow.model import CancelPolicy
from tests.machine.driver import Machine, at_once, pick_from
from tests.machine.flow_play import FlowPlay, Wanted, Wish, paged

KEYS = "abcdefghijkl"
MOST_ROUNDS = 60

picks = st.integers(0, 11)
rests = st.sampled_from(Rest)
ons = st.sampled_from([On.SUCCESS, On.SUCCESS, On.FAILURE, On.ANY_END])
deeds = st.sampled_from(
    ["complete"] * 5
    + ["fail"] * 3
    + ["fail for good"] * 3
    + ["delay", "hand back", "wait for children"]
)
fuses = st.integers(1, 9)


@st.composite
def graphs(draw: st.DrawFn, *, pieces: bool) -> tuple[list[Wish], list[Wanted]]:
    """An acyclic graph: members in some order, edges from earlier to later ones."""
    size = draw(st.integers(1, len(KEYS)))
    wishes: list[Wish] = []
    links: list[Wanted] = []
    for index, key in enumerate(KEYS[:size]):
        ups = draw(st.lists(st.integers(0, index - 1), max_size=4)) if index else []
        wish = draw(_wishes(key, len(ups), pieces=pieces))
        for up in ups:
            links.append(Wanted(len(links), wishes[up], wish, draw(ons)))
        wishes.append(wish)
    return draw(st.permutations(wishes)), draw(st.permutations(links))


@st.composite
def _wishes(draw: st.DrawFn, key: str, n: int, *, pieces: bool) -> Wish:
    rarely = draw(st.integers(0, 7))
    return Wish(
        key,
        join=draw(_joins(n)),
        delay=1000 if rarely == 1 else None,
        deadline=4000 if rarely == 2 else None,
        retries=draw(st.sampled_from([0, 0, 1])),
        late=pieces and rarely in (3, 4),
    )


def _joins(n: int) -> st.SearchStrategy[JoinPolicy]:
    if n == 0:
        return st.just(AllOf())
    quorums = st.builds(Quorum, st.integers(1, n), rests)
    return st.one_of(st.just(AllOf()), st.builds(AnyOf, rests), quorums)


class FlowMachine(Machine):
    play: FlowPlay

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Wish | Wanted | str] = []

    @initialize(data=st.data(), pieces=st.booleans(), seed=st.integers(0, 999), fuse=fuses)
    def begin(self, data: st.DataObject, pieces: bool, seed: int, fuse: int) -> None:
        self.play = FlowPlay(self.bench, seed)
        self.patches.enter_context(paged())
        self._begin()
        wishes, links = data.draw(graphs(pieces=pieces))
        if data.draw(st.booleans()):
            self.play.light(fuse, heard=data.draw(st.booleans()))
        if not pieces:
            self._run(self.play.declare(wishes, links))
            return
        self._run(self.play.create())
        self.steps = [*_in_some_order(data, wishes, links), "seal"]

    @invariant()
    def endings_and_replays_take_turns(self) -> None:
        self._run(self.play.checks.hear())

    # -- building

    @rule(number=st.integers(1, 6))
    def build(self, number: int) -> None:
        for _ in range(number):
            if self.steps:
                self._run(self._build(self.steps.pop(0)))

    @rule(pick=picks, on=ons, key=st.sampled_from(["late-1", "late-2"]))
    def grow(self, pick: int, on: On, key: str) -> None:
        """A new member, and whoever there is waits for it from now on."""
        play, wish = self.play, Wish(key)
        if not play.book.sealed or wish.uuid in play.book.members:
            return
        down = Wish(self._key(pick))
        self._run(play.add(wish))
        self._run(play.stage(Wanted(1000 + int(key[-1]), wish, down, on)))

    async def _build(self, step: Wish | Wanted | str) -> None:
        match step:
            case Wish():
                await self.play.add(step)
            case Wanted():
                await self.play.stage(step)
            case _:
                await self.play.seal()

    # -- working

    @rule(limit=st.integers(1, 4), ttl=st.sampled_from([500, 30_000, 30_000]))
    def claim(self, limit: int, ttl: int) -> None:
        self._run(self.play.claim(limit, ttl))

    @rule(many=st.lists(st.tuples(picks, deeds), min_size=1, max_size=4))
    def work(self, many: list[tuple[int, str]]) -> None:
        self._run(self.play.claim(2, 30_000))
        for pick, how in many:
            self._run(self.play.work(pick, how))

    @rule(deeds=st.lists(deeds, min_size=2, max_size=4), sweeps=st.integers(0, 2))
    def several_end_at_once(self, deeds: list[str], sweeps: int) -> None:
        """And others sweep meanwhile."""
        play = self.play
        self._run(play.claim(len(deeds), 30_000))
        steps = [play.work(0, how) for how in deeds]
        self._run(at_once([*steps, *(play.other_sweeps() for _ in range(sweeps))]))

    @rule(pick=picks)
    def start_a_flow(self, pick: int) -> None:
        self._run(self.play.claim(1, 30_000))
        self._run(self.play.start_flow(pick))

    @rule(pick=picks)
    def revoke(self, pick: int) -> None:
        self._run(self.play.revoke(pick))

    # -- steering

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        if (uuid := self._member(pick)) is not None:
            self._run(self.play.cancel(uuid))

    @rule(rare=st.integers(0, 3), policy=st.sampled_from(CancelPolicy), wait=st.booleans())
    def cancel_flow(self, rare: int, policy: CancelPolicy, wait: bool) -> None:
        if rare == 0:
            self._run(self.play.cancel_flow(policy, wait=wait))

    @rule(pick=picks)
    def replay(self, pick: int) -> None:
        ended = [uuid for uuid, one in self.play.book.members.items() if one.ended]
        if ended:
            self._run(self.play.replay(pick_from(ended, pick)))

    @rule()
    def replay_flow(self) -> None:
        self._run(self.play.replay_flow())

    # -- time, and trouble

    @rule(span=st.sampled_from([100, 600, 1000, 5000, 31_000]))
    def wait(self, span: int) -> None:
        self.play.clock.advance(span)

    @rule(both=st.booleans())
    def sweep(self, both: bool) -> None:
        self._run(self.play.sweep(both=both))

    @rule(fuse=fuses, heard=st.booleans())
    def light_the_fuse(self, fuse: int, heard: bool) -> None:
        self.play.light(fuse, heard=heard)

    @rule(idle=st.booleans())
    def leave_it_to_the_sweep(self, idle: bool) -> None:
        self.play.tune(idle=idle)

    @rule()
    def rest(self) -> None:
        if self.play.book.members:
            self._run(self.play.settle())

    # -- the end

    async def _play_to_the_end(self) -> None:
        """Builds what is missing and works until every member has ended."""
        play = self.play
        while self.steps:
            await self._build(self.steps.pop(0))
        for number in range(MOST_ROUNDS):
            await play.settle()
            if all(member.ended for member in play.book.members.values()):
                return
            await self._free_the_stuck()
            await play.claim(len(KEYS), 30_000)
            while play.holdings:
                await play.work(0, "fail for good" if play.jitter.random() < 0.3 else "complete")
            play.clock.advance(1000 if number % 2 else 31_000)
        raise AssertionError(f"some members never end: {play.book.members}")

    async def _free_the_stuck(self) -> None:
        """What was replayed alone waits for its upstreams: those are replayed now."""
        play, book = self.play, self.play.book
        for uuid in list(play.checks.stuck):
            if book.cancel is not None:
                await play.cancel(uuid)
            for wire in book.into(uuid):
                if None in wire.may and book.members[wire.up].ended:
                    await play.replay(wire.up)

    # -- which member a step is about

    def _member(self, pick: int) -> UUID | None:
        members = list(self.play.book.members)
        return pick_from(members, pick) if members else None

    def _key(self, pick: int) -> str:
        return KEYS[pick]


def _in_some_order(
    data: st.DataObject, wishes: list[Wish], links: list[Wanted]
) -> list[Wish | Wanted]:
    """Members in the order given, each edge somewhere after its ends."""
    steps: list[Wish | Wanted] = list(wishes)
    for link in links:
        earliest = 1 + max(steps.index(link.up), steps.index(link.down))
        steps.insert(data.draw(st.integers(earliest, len(steps))), link)
    return steps

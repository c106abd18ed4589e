"""Letting work through limits, tried on a small hall of lines that remembers what was decided."""

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.limit.quota import Quota, Rate, Use, Uses, queue_of
from flowfabric.core.limit.release import (
    AHEAD,
    ALL,
    TURNS,
    Candidate,
    Key,
    Line,
    OpenLine,
    QuotaView,
    Release,
    StartsBack,
    Turns,
    Window,
    latest_turn,
    one_key,
    release,
    serve,
    starts_back,
)

START = Millis(1_000_000)
MOST = 500

Place = tuple[tuple[str, str], ...]
"""A line: the quotas it is before, and the keys."""


class Hall:
    """What a store would keep: who waits in which line, who has gone in, and when."""

    def __init__(self, *quotas: Quota) -> None:
        self.quotas = {quota.name: replace(quota, version=1) for quota in quotas}
        self.now = START
        self.waiting: dict[Place, list[Candidate]] = {}
        self.inside: list[tuple[Place, Candidate]] = []
        self.admitted: dict[Key, Counter[Millis]] = {}
        self.turns: dict[tuple[str, int], int] = {}
        self.started: list[tuple[Millis, Place]] = []
        self._made = 0

    def come(self, uses: Place, *, rank: int | None = None, starts: bool = True) -> Candidate:
        self._made += 1
        candidate = Candidate(UUID(int=self._made), 1, self._made if rank is None else rank, starts)
        line = self.waiting.setdefault(uses, [])
        line.append(candidate)
        line.sort(key=lambda one: (one.rank, one.uuid))
        return candidate

    def view(self, quota: str | None = None) -> QuotaView:
        """What a release for a quota sees; without one it sees everything."""
        seen = [uses for uses in self.waiting if quota is None or quota in dict(uses)]
        name = quota or ""
        lines = [
            Line(number(uses), uses_of(uses), self.turns.get((name, number(uses)), 0), waiting)
            for uses in seen
            if (waiting := list(self.waiting[uses]))
        ]
        lines.sort(key=lambda line: (line.turn, line.id))
        held = Counter(uses for uses, _ in self.inside)
        admitted: dict[Key, Window] = {key: sorted(at.items()) for key, at in self.admitted.items()}
        slots = [(uses_of(uses), count) for uses, count in held.items()]
        served = {
            name: max((turn for (of, _), turn in self.turns.items() if of == name), default=0)
            for name in self.quotas
        }
        return QuotaView(dict(self.quotas), lines, slots, admitted, served)

    def decide(self, quota: str | None = None, *, at: int | None = None) -> Release:
        return release(self.view(quota), Millis(self.now if at is None else at), MOST)

    def release(self, quota: str | None = None) -> list[Candidate]:
        """Decides and writes; returns who went in, in order."""
        decided = self.decide(quota)
        compared = {name for name, version in decided.versions.items() if version}
        assert compared <= {name for name, _ in decided.turns} <= set(decided.versions)
        line_of = {one.uuid: uses for uses, line in self.waiting.items() for one in line}
        moved = self.moved(decided)
        for one in moved:
            uses = line_of[one.uuid]
            self.waiting[uses].remove(one)
            self.inside.append((uses, one))
            if one.starts:
                self.started.append((self.now, uses))
        self._count(decided)
        return moved

    def moved(self, decided: Release) -> list[Candidate]:
        """Who is let through, in order."""
        waiting = {one.uuid: one for line in self.waiting.values() for one in line}
        return [waiting[move.uuid] for move in decided.moves]

    def _count(self, decided: Release) -> None:
        for name, version in decided.versions.items():
            if name not in self.quotas:
                assert version == 0
                continue
            assert self.quotas[name].version == version
            self.quotas[name] = replace(self.quotas[name], version=version + 1)
        self.turns |= decided.turns
        for (of, part, at), count in decided.admissions.items():
            self.admitted.setdefault((of, part), Counter())[at] += count
        for name, until in decided.forget.items():
            for key, window in self.admitted.items():
                if key[0] == name:
                    self.admitted[key] = Counter({at: n for at, n in window.items() if at > until})

    def leave(self, place: int = 0) -> None:
        if self.inside:
            self.inside.pop(place % len(self.inside))

    def check(self) -> None:
        """Nothing is above any limit, now or in any window there ever was."""
        slots = Counter(key for uses, _ in self.inside for key in keys_of(uses))
        for quota in self.quotas.values():
            for (name, key), count in slots.items():
                cap = quota.concurrency_per_key if key else quota.concurrency
                assert name != quota.name or cap is None or count <= cap
            self._check_rate(quota.name, quota.rate, per_key=False)
            self._check_rate(quota.name, quota.rate_per_key, per_key=True)

    def _check_rate(self, name: str, rate: Rate | None, *, per_key: bool) -> None:
        if rate is None:
            return
        starts: dict[str, list[Millis]] = {}
        for at, uses in self.started:
            for quota, key in keys_of(uses):
                if quota == name and bool(key) == per_key:
                    starts.setdefault(key, []).append(at)
        for moments in starts.values():
            for first, last in zip(moments, moments[rate.count :], strict=False):
                assert last - first >= rate.window


def at_line(**uses: str) -> Place:
    return tuple(sorted(uses.items()))


def uses_of(place: Place) -> Uses:
    return tuple(Use(quota=quota, key=key) for quota, key in place)


def number(place: Place) -> int:
    return queue_of(uses_of(place))


def keys_of(place: Place) -> list[Key]:
    return [(quota, part) for quota, key in place for part in ("", one_key(key))]


caps = st.none() | st.integers(1, 4)
rates = st.none() | st.builds(Rate, st.integers(1, 4), st.integers(1, 50).map(Millis))


def quota_named(name: str) -> st.SearchStrategy[Quota]:
    return st.builds(
        Quota,
        name=st.just(name),
        concurrency=caps,
        concurrency_per_key=caps,
        rate=rates,
        rate_per_key=rates,
    )


halls = st.tuples(quota_named("a"), quota_named("b")).map(lambda quotas: Hall(*quotas))
lines = st.sampled_from(
    [{"a": "x"}, {"a": "y"}, {"a": "x", "b": "x"}, {"b": "x"}, {"b": "y"}, {"a": "z", "gone": "x"}]
).map(lambda uses: at_line(**uses))
comings = st.tuples(st.just("come"), lines, st.integers(0, 9), st.booleans())
goings = st.tuples(st.just("leave"), st.integers(0, 9))
passing = st.tuples(st.just("pass"), st.integers(1, 30))
releasing = st.tuples(st.just("release"), st.sampled_from(["a", "b", None]))
steps = st.lists(comings | comings | goings | passing | releasing, max_size=60)


def walk(hall: Hall, todo: list[tuple[object, ...]]) -> None:
    for step in todo:
        match step:
            case ("come", tuple() as uses, int() as rank, bool() as starts):
                hall.come(uses, rank=rank, starts=starts)
            case ("leave", int() as place):
                hall.leave(place)
            case ("pass", int() as span):
                hall.now = Millis(hall.now + span)
            case ("release", (str() | None) as quota):
                hall.release(quota)
            case _:
                raise AssertionError(step)
        hall.check()


@given(halls, steps)
def test_no_limit_is_ever_exceeded(hall: Hall, todo: list[tuple[object, ...]]) -> None:
    """I-27: what is held and what is let through together, in any window, however spread"""
    walk(hall, todo)


@given(halls, steps)
def test_every_run_that_could_go_has_gone(hall: Hall, todo: list[tuple[object, ...]]) -> None:
    """I-28: a release leaves nobody behind there is room for; a second one finds nothing"""
    walk(hall, todo)
    hall.release()
    assert hall.release() == []
    assert hall.decide().turns == {}


@given(halls, steps)
def test_the_moment_given_is_the_moment_a_run_can_go(
    hall: Hall, todo: list[tuple[object, ...]]
) -> None:
    """C-T95: one millisecond before nothing moves, at that moment something does"""
    walk(hall, todo)
    hall.release()
    next_at = hall.decide().next_at
    if next_at is None:
        assert not hall.decide(at=hall.now + 1_000).moves
    else:
        assert next_at > hall.now
        assert not hall.decide(at=next_at - 1).moves
        assert hall.decide(at=next_at).moves


def test_the_moment_told_knows_what_was_let_through_after_the_line_was_looked_at() -> None:
    """C-T95: another line takes the last start of the second quota"""
    a, b = Quota(name="a", rate=Rate(1, Millis(10))), Quota(name="b", rate=Rate(1, Millis(50)))
    hall = Hall(a, b)
    hall.come(at_line(a=""))
    hall.release("a")
    hall.come(at_line(a="", b=""))
    other = hall.come(at_line(b=""))
    decided = hall.decide("b")
    assert hall.moved(decided) == [other]
    assert decided.next_at == START + 50


@given(st.lists(st.integers(1, 40), min_size=2, max_size=8), st.data())
def test_lines_are_served_in_turn_whatever_their_length(
    lengths: list[int], data: st.DataObject
) -> None:
    """F-47: k lines are each served within k slots, however long one of them is"""
    hall = Hall(Quota(name="a", concurrency=1))
    queues = [at_line(a=f"k{n}") for n in range(len(lengths))]
    for uses, length in zip(queues, lengths, strict=True):
        for _ in range(length):
            hall.come(uses, rank=data.draw(st.integers(0, 3)))
    since = dict.fromkeys(queues, 0)
    while any(hall.waiting.values()):
        k = sum(bool(line) for line in hall.waiting.values())
        waited = {uses for uses, line in hall.waiting.items() if line}
        hall.leave()
        assert len(hall.release("a")) == 1
        ((served, _),) = hall.inside
        for uses in waited:
            since[uses] = 0 if uses == served else since[uses] + 1
            assert since[uses] < max(k, len(queues))
    assert sum(lengths) == len(hall.started)


def test_many_slots_at_once_are_shared_evenly() -> None:
    """F-47"""
    hall = Hall(Quota(name="a", concurrency=10))
    for key, length in {"big": 2_000, "small": 3, "other": 9}.items():
        for _ in range(length):
            hall.come(at_line(a=key))
    hall.release("a")
    served = Counter(uses[0][1] for uses, _ in hall.inside)
    assert served == {"big": 4, "small": 3, "other": 3}


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30), st.integers(1, 5))
def test_within_a_line_the_best_goes_first(comers: list[tuple[int, bool]], slots: int) -> None:
    """I-32"""
    hall = Hall(Quota(name="a", concurrency=slots))
    uses = at_line(a="k")
    for rank, starts in comers:
        hall.come(uses, rank=rank, starts=starts)
    expected = list(hall.waiting.get(uses, []))
    gone: list[Candidate] = []
    while any(hall.waiting.values()):
        gone += hall.release("a")
        for _ in range(slots):
            hall.leave()
    assert gone == expected


def test_who_needs_several_quotas_takes_all_or_nothing() -> None:
    hall = Hall(Quota(name="a", concurrency=5), Quota(name="b", concurrency=1))
    both, only_a = at_line(a="", b=""), at_line(a="")
    first, second = hall.come(both), hall.come(both)
    third = hall.come(only_a)
    assert hall.release("a") == [first, third]
    assert hall.release("a") == hall.release("b") == []
    decided = hall.decide("b")
    assert (decided.turns, decided.admissions, decided.versions) == ({}, {}, {})
    hall.inside = [(uses, one) for uses, one in hall.inside if one != first]
    assert hall.release("b") == [second]


def test_a_rate_is_counted_for_all_quotas_or_for_none() -> None:
    hall = Hall(
        Quota(name="a", rate=Rate(2, Millis(10))), Quota(name="b", rate=Rate(1, Millis(50)))
    )
    both = at_line(a="", b="")
    for _ in range(3):
        hall.come(both)
    assert len(hall.release("a")) == 1
    hall.now = Millis(START + 10)
    assert hall.release("a") == []
    assert hall.decide("a").next_at == START + 50
    only_a = at_line(a="")
    for _ in range(2):
        hall.come(only_a)
    assert len(hall.release("a")) == 2, "what b refused was not counted for a"


def test_who_goes_on_needs_a_slot_and_no_start() -> None:
    """C-T95: a rate counts starts only"""
    hall = Hall(Quota(name="a", rate=Rate(1, Millis(10)), concurrency=3))
    uses = at_line(a="")
    first = hall.come(uses, rank=1)
    later = hall.come(uses, rank=2)
    resumed = [hall.come(uses, rank=n, starts=False) for n in (3, 4, 5)]
    assert hall.release("a") == [first, *resumed[:2]]
    assert hall.admitted == {("a", ""): Counter({START: 1})}
    assert hall.decide("a").next_at is None, "a slot is missing, time does not help"
    hall.leave()
    hall.leave()
    assert hall.release("a") == [resumed[2]]
    assert hall.decide("a").next_at == START + 10
    hall.now = Millis(START + 10)
    assert hall.release("a") == [later]


def test_a_deleted_quota_limits_nothing() -> None:
    hall = Hall(Quota(name="a", concurrency=1))
    gone, both = at_line(gone="x"), at_line(a="", gone="")
    waiting = [hall.come(gone) for _ in range(5)] + [hall.come(both) for _ in range(2)]
    assert sorted(one.rank for one in hall.release("gone")) == [1, 2, 3, 4, 5, 6]
    assert [one for line in hall.waiting.values() for one in line] == waiting[6:]


def test_windows_are_per_key_and_of_all_keys_together() -> None:
    """C-T95, F-10: one name for a window, whoever writes or reads it"""
    hall = Hall(Quota(name="a", rate=Rate(3, Millis(100)), rate_per_key=Rate(2, Millis(10))))
    x, y = at_line(a="x"), at_line(a="y")
    for _ in range(4):
        hall.come(x)
        hall.come(y)
    hall.release("a")
    assert Counter(uses for uses, _ in hall.inside) == {x: 2, y: 1}
    assert hall.admitted == {
        ("a", ""): Counter({START: 3}),
        ("a", "=x"): Counter({START: 2}),
        ("a", "=y"): Counter({START: 1}),
    }
    assert hall.decide("a").next_at == START + 100


def test_a_lowered_rate_counts_what_was_admitted_before() -> None:
    """C-T93: a new limit holds at once"""
    hall = Hall(Quota(name="a", rate=Rate(3, Millis(100))))
    uses = at_line(a="")
    for after in (0, 5, 10):
        hall.now = Millis(START + after)
        hall.come(uses)
        assert hall.release("a")
    hall.quotas["a"] = replace(hall.quotas["a"], rate=Rate(2, Millis(50)))
    hall.come(uses)
    assert hall.decide("a").next_at == START + 55
    hall.quotas["a"] = replace(hall.quotas["a"], rate=Rate(1, Millis(50)))
    assert hall.decide("a").next_at == START + 60


@pytest.mark.parametrize("most", [0, 1, 7])
def test_no_more_than_asked_for_go_at_once(most: int) -> None:
    hall = Hall(Quota(name="a", concurrency=100))
    for n in range(10):
        hall.come(at_line(a=f"k{n % 3}"))
    assert len(release(hall.view("a"), hall.now, most).moves) == most


def test_what_no_window_reaches_is_forgotten() -> None:
    hall = Hall(Quota(name="a", rate=Rate(1, Millis(10)), rate_per_key=Rate(1, Millis(30))))
    uses = at_line(a="k")
    hall.come(uses)
    assert hall.decide("a").forget == {"a": START - 30 - AHEAD}
    hall.release("a")
    hall.come(uses)
    hall.now = Millis(START + 30)
    hall.release("a")
    assert hall.admitted[("a", "=k")] == Counter({START: 1, START + 30: 1})
    hall.come(uses)
    hall.now = Millis(START + 30 + AHEAD)
    hall.release("a")
    assert hall.admitted[("a", "=k")] == Counter({START + 30: 1, START + 30 + AHEAD: 1})


def test_of_many_starts_in_a_long_window_a_thousandth_is_told_apart() -> None:
    """Never earlier than it was: the log stays short and nobody starts too early."""
    day, count = 86_400_000, 1001
    hall = Hall(Quota(name="a", rate=Rate(count, Millis(day)), rate_per_key=Rate(2000, Millis(9))))
    for _ in range(count + 1):
        hall.come(at_line(a="k"))
    began = hall.now = Millis(1_700_000_000_001)
    assert [len(hall.release("a")) for _ in range(4)] == [500, 500, 1, 0]
    (noted,) = hall.admitted["a", ALL]
    assert began <= noted < began + day // 1000
    assert noted % (day // 1000) == 0
    assert list(hall.admitted["a", one_key("k")]) == [began]
    decided = hall.decide("a")
    assert (decided.moves, decided.next_at) == ([], noted + day)
    hall.now = Millis(noted + day - 1)
    assert hall.release("a") == []
    hall.now = Millis(hall.now + 1)
    assert len(hall.release("a")) == 1


def test_starts_given_back_are_the_oldest_of_their_span() -> None:
    """C-T95: a moment of admission may be ahead of its release; keys and long windows count too."""
    quota = Quota(name="q", rate=Rate(5, Millis(1000)), rate_per_key=Rate(5000, Millis(86_400_000)))
    at = Millis(86_400_000_000)
    uses = uses_of(at_line(q="k"))
    now = Millis(at + 999)
    back = starts_back([(uses, at), (uses, Millis(at + 7))], {"q": quota}, now)
    of_key = StartsBack("q", "=k", at, 2)
    assert back == [StartsBack("q", "", Millis(at - AHEAD), 2), of_key]
    assert starts_back([(uses, at)], {}, now) == []
    over = starts_back([(uses, at)], {"q": quota}, Millis(now + 1))
    assert over == [replace(of_key, count=1)], "its window is over, that of its key is not"
    changed = {"q": replace(quota, since=at)}
    later = starts_back([(uses, at), (uses, Millis(at + 1))], changed, now)
    assert [back.count for back in later] == [1, 1]


def test_who_is_let_through_with_others_has_a_moment_that_claims_go_by() -> None:
    """C-T100: by (moment, id) they are in the order in which they were let through, also after a
    release that is ahead of the clock; but never more than a few seconds ahead."""
    hall = Hall(Quota(name="a", concurrency=100_000))
    for uses in (at_line(a="x"), at_line(a="y"), at_line(a="z")):
        for _ in range(40):
            hall.come(uses)
    first = hall.decide("a")
    hall.release("a")
    for _ in range(30):
        hall.come(at_line(a="x"))
    second = hall.decide("a")
    moves = [*first.moves, *second.moves]
    assert moves == sorted(moves, key=lambda move: (move.at, move.uuid))
    assert (first.moves[0].at, first.moves[-1].at) == (hall.now, hall.now + 39)
    turns = Turns((hall.now + 2 * AHEAD) * TURNS, hall.now)
    handed = [turns.next(UUID(int=number)) for number in (5, 4, 3)]
    assert handed == sorted(set(handed))
    assert turns.moment == hall.now + AHEAD


# -- limits of keys alone


@given(
    keys=st.lists(st.integers(0, 4), max_size=30),
    held=st.lists(st.integers(0, 4), max_size=8),
    cap=st.integers(1, 3),
    most=st.integers(1, 20),
)
def test_keys_alone_are_served_as_lines_of_any_quota(
    keys: list[int], held: list[int], cap: int, most: int
) -> None:
    """The same go in, in the same order and at the same moments; of the turns the last is kept."""
    hall = Hall(Quota(name="a", concurrency_per_key=cap))
    for key in held:
        hall.inside.append((((("a", str(key))),), Candidate(UUID(int=1000 + key), 1, 0)))
    for key in keys:
        hall.come((("a", str(key)),))
    view = hall.view("a")
    expected = release(view, hall.now, most)
    taken = Counter(str(key) for key in held)
    lines = [
        OpenLine(line.id, line.turn, [(each.rank, each.uuid.bytes) for each in line.waiting[:room]])
        for line in view.lines
        if (room := cap - taken[line.uses[0].key]) > 0
    ]
    lines_of = {each.uuid: line.id for line in view.lines for each in line.waiting}
    latest = latest_turn(view.quotas["a"], view.served.get("a"))
    found = serve(lines, latest, hall.now, most)
    assert list(found.moves) == [(move.uuid.bytes, move.at) for move in expected.moves]
    last = max(expected.turns.items(), key=lambda each: each[1], default=None)
    assert ((("a", found.queues[-1]), found.turn) if found.moves else None) == last
    assert list(found.queues) == [lines_of[move.uuid] for move in expected.moves]

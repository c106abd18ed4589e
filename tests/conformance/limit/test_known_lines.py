"""Runs that are admitted in the commit that creates them, because their process knows room in their
line; and what it knows when other processes take that room, give it back, or die."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.execution.submission import Submission
from flowfabric.core.limit.release import Release
from flowfabric.core.limit.release import release as decide
from flowfabric.engine.limit import releases
from flowfabric.store.queries import (
    ChangedByEnds,
    LinesRequest,
    MovedByRelease,
    QuotaViewRequest,
)
from tests.kit.lab import Lab
from tests.kit.limiting import began, crowd, define, finish, keys_of, one, settled, slots, using
from tests.kit.race import Race

KEY = ("q", "k")


class Looks:
    """Counts the looks of a process, and keeps the lines that each was asked for. No look at all
    lines comes between."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.lines: list[dict[int, int | None]] = []
        serve = lab.engine.store.serve

        async def counted(ask: LinesRequest) -> Any:
            self.count += 1
            self.lines.append(dict(ask.lines))
            return await serve(ask)

        monkeypatch.setattr(lab.engine.store, "serve", counted)
        monkeypatch.setattr(releases, "REFRESH", 1e9)


async def acquainted(lab: Lab, cap: int = 1) -> None:
    """A quota whose line of one key is empty, as this process knows."""
    await define(lab, concurrency_per_key=cap)
    await finish(lab, await began(lab, KEY))
    await finish(lab, await began(lab, KEY))


async def test_a_run_that_finds_room_is_ready_when_it_is_created(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T94: no look at its line is needed, and its state says so at once"""
    await acquainted(lab, cap=2)
    looks = Looks(lab, monkeypatch)
    ids = [await lab.submit(policy=using(KEY)) for _ in range(2)]
    assert [await lab.state(id) for id in ids] == ["waiting", "waiting"]
    assert [claim.id for claim in await lab.claim(limit=9)] == ids
    assert looks.count == 0


async def test_a_run_that_finds_its_line_full_waits_for_the_next_ending(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-28: without a look that would find nothing"""
    await acquainted(lab)
    claim = await began(lab, KEY)
    looks = Looks(lab, monkeypatch)
    id = await one(lab, KEY)
    assert (await lab.state(id), looks.count) == ("rate_limited", 0)
    await finish(lab, claim)
    assert looks.count == 1
    assert (await lab.claim_one()).id == id


async def test_an_ending_in_an_empty_line_is_added_without_a_look_at_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-28: the version of the quota is moved all the same"""
    await acquainted(lab, cap=2)
    claim = await began(lab, KEY)
    looks = Looks(lab, monkeypatch)
    await finish(lab, claim)
    assert looks.lines == [{}]
    await crowd(lab, 3, KEY)
    assert await slots(lab) == (2, 1)


async def test_an_ending_in_a_full_line_in_which_no_run_waits_needs_no_look_at_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-28: the process has admitted both runs when they were created, and has seen those go that
    came to wait"""
    await acquainted(lab)
    looks = Looks(lab, monkeypatch)
    await finish(lab, await began(lab, KEY))
    assert looks.lines == [{}]
    first, second = await began(lab, KEY), await one(lab, KEY)
    await finish(lab, first)
    assert [list(lines.values()) for lines in looks.lines[1:]] == [[1]]
    await finish(lab, await lab.claim_one())
    assert looks.lines[2:] == [{}]
    assert await lab.state(second) == "completed"
    await crowd(lab, 2, KEY)
    assert await slots(lab) == (1, 1)


async def test_a_run_of_another_process_in_a_full_line_is_not_missed(
    lab: Lab, second_lab: Lab
) -> None:
    """I-28: this process has filled the line, and knows of no run that waits in it"""
    await acquainted(lab)
    claim = await began(lab, KEY)
    id = await one(second_lab, KEY)
    assert await slots(lab) == (1, 1)
    await finish(lab, claim)
    assert (await lab.claim_one()).id == id


async def test_a_run_of_a_rival_that_a_look_admits_leaves_ours_to_the_look_of_the_rival(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """I-28: this process has counted one run that waits, and its look admits the rival's, which is
    more urgent"""
    await acquainted(lab)
    claim = await began(lab, KEY)
    ours = await one(lab, KEY)
    theirs = ""

    async def rival() -> None:
        nonlocal theirs
        theirs = await one(second_lab, KEY, priority=9, key="order-7")

    race.before("serve", rival)
    await finish(lab, claim)
    urgent = await lab.claim_one()
    assert urgent.id == theirs
    await finish(lab, urgent)
    assert (await lab.claim_one()).id == ours


async def test_the_slot_of_an_ending_is_offered_without_counting(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-27: as many runs as have ended"""
    await acquainted(lab, cap=2)
    claims = [await began(lab, KEY) for _ in range(2)]
    await crowd(lab, 3, KEY)
    looks = Looks(lab, monkeypatch)
    await asyncio.gather(*(lab.engine.attempts.complete(claim) for claim in claims))
    await settled(lab)
    assert sum(free or 0 for lines in looks.lines for free in lines.values()) == 2
    assert await slots(lab) == (2, 1)


async def test_a_look_that_counts_while_an_ending_is_answered_gives_its_slot_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-27: the ending is committed, a look counts its slot as free and admits the next run, and
    then the answer of the ending arrives"""
    await acquainted(lab)
    claim = await began(lab, KEY)
    await crowd(lab, 3, KEY)
    end = lab.engine.store.end

    async def slow(*args: Any) -> Any:
        written = await end(*args)
        await lab.engine.sweep.once()
        assert await slots(lab) == (1, 2)
        return written

    with monkeypatch.context() as slowly:
        slowly.setattr(lab.engine.store, "end", slow)
        await finish(lab, claim)
    assert await slots(lab) == (1, 2)
    await crowd(lab, 2, KEY)
    assert await slots(lab) == (1, 4)


async def test_an_ending_whose_reply_was_lost_is_counted_and_not_added(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-27: another call may have been told of the same ending"""
    await acquainted(lab)
    claim = await began(lab, KEY)
    await crowd(lab, 2, KEY)
    end = lab.engine.store.end

    async def repeated(*args: Any) -> Any:
        return ChangedByEnds(await end(*args), repeated=True)

    looks = Looks(lab, monkeypatch)
    monkeypatch.setattr(lab.engine.store, "end", repeated)
    await finish(lab, claim)
    assert [list(lines.values()) for lines in looks.lines] == [[None]]
    assert await slots(lab) == (1, 1)


async def test_a_slot_that_is_given_back_during_a_submission_is_not_missed(
    lab: Lab, race: Race
) -> None:
    """I-28: the submission finds room for one of two, and a run ends before it is written"""
    await acquainted(lab, cap=2)
    claim = await began(lab, KEY)

    async def rival() -> None:
        await lab.engine.attempts.complete(claim)

    race.before("submit_and_admit", rival)
    policy = using(KEY)
    await lab.engine.executions.submit_many(
        [Submission(kind="job", policy=policy) for _ in range(2)]
    )
    await settled(lab)
    assert await slots(lab) == (2, 0)


async def test_a_run_of_another_process_in_a_line_known_as_empty_is_not_missed(
    lab: Lab, second_lab: Lab
) -> None:
    """I-28: the ending here would need no look; the version tells that the other one has looked"""
    await acquainted(lab, cap=2)
    claim = await began(lab, KEY)
    await crowd(second_lab, 3, KEY)
    assert await slots(lab) == (2, 2)
    await finish(lab, claim)
    assert await slots(lab) == (2, 1)


async def test_lines_with_more_runs_than_one_look_admits_are_asked_for_once_more(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-28: only those, and their slots are not counted again"""
    monkeypatch.setattr(releases, "MAX_MOVES", 4)
    await acquainted(lab, cap=2)
    looks = Looks(lab, monkeypatch)
    uses = [("q", key) for key in "abc" for _ in range(3)]
    await lab.engine.executions.submit_many(
        [Submission(kind="job", policy=using(use)) for use in uses]
    )
    await settled(lab)
    assert await slots(lab) == (6, 3)
    counted, *others = [lines for lines in looks.lines if lines]
    assert list(counted.values()) == [None] * 3
    assert [list(lines.values()) for lines in others] == [[1, 1]]


async def test_keys_of_one_submission_are_admitted_each_by_its_own_room(lab: Lab) -> None:
    await define(lab, concurrency_per_key=2)
    for _ in range(2):
        for key in "ab":
            await crowd(lab, 2, ("q", key))
        for claim in await lab.claim(limit=9):
            await finish(lab, claim)
    ids = [await one(lab, ("q", key)) for key in "aaabbc"]
    claims = await lab.claim(limit=9)
    assert keys_of(claims) == {"a": 2, "b": 2, "c": 1}
    assert await lab.state(ids[2]) == "rate_limited"


async def test_two_processes_that_know_the_same_room_give_it_away_once(
    lab: Lab, second_lab: Lab
) -> None:
    """I-27: both have seen the empty line; the version of the quota tells the second"""
    await acquainted(lab)
    await finish(second_lab, await began(second_lab, KEY))
    await finish(lab, await began(lab, KEY))
    await asyncio.gather(*(each.submit(policy=using(KEY)) for each in (lab, second_lab) * 3))
    await settled(second_lab)
    assert await slots(lab) == (1, 5)
    for left in (4, 3, 2, 1, 0):
        (claim,) = await lab.claim(limit=9)
        await finish(second_lab if left % 2 else lab, claim)
        assert await slots(lab) == (1, left)


async def test_a_rival_that_takes_the_room_between_decision_and_commit(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """I-27: the run waits, and is not forgotten"""
    await acquainted(lab)

    async def rival() -> None:
        await one(second_lab, KEY)

    race.before("submit_and_admit", rival)
    late = await one(lab, KEY)
    assert await slots(lab) == (1, 1)
    assert await lab.state(late) == "rate_limited"
    await finish(lab, await lab.claim_one())
    assert (await lab.claim_one()).id == late


async def test_room_that_another_process_finds_in_a_full_line_is_not_missed(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """I-28: this process knows the line as full and would not look; meanwhile the other one ends
    the run and finds no other in the line"""
    await acquainted(lab)
    claim = await began(lab, KEY)

    async def rival() -> None:
        await finish(second_lab, claim)

    race.before("submit_and_admit", rival)
    id = await one(lab, KEY)
    assert (await lab.claim_one()).id == id


async def test_room_that_another_process_finds_beside_a_second_quota_is_not_missed(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """I-28: the same if the other process knows lines that use two quotas, and looks at all"""
    await define(lab, "r", concurrency=9)
    await acquainted(lab)
    claim = await began(second_lab, KEY, "r")
    await lab.engine.executions.cancel(await one(lab, KEY), reason="enough")

    async def rival() -> None:
        await finish(second_lab, claim)

    race.before("submit_and_admit", rival)
    id = await one(lab, KEY)
    assert (await lab.claim_one()).id == id


async def test_two_lines_of_one_key_share_its_room(lab: Lab) -> None:
    """I-27: the process knows room in one line, and gives it to the other one of the same key"""
    await define(lab, "r", concurrency=9)
    await acquainted(lab)
    await one(lab, KEY, "r")
    await one(lab, KEY)
    assert await slots(lab) == (1, 1)


async def test_room_that_a_look_at_all_lines_finds_is_not_missed(lab: Lab) -> None:
    """I-28: this process knows the line as full, ends the run, and looks at all lines, because one
    of them uses two quotas; no run waits in them"""
    await define(lab, "r", concurrency=9)
    await acquainted(lab)
    claim = await began(lab, KEY)
    await lab.engine.executions.cancel(await one(lab, KEY, "r"), reason="enough")
    await finish(lab, claim)
    id = await one(lab, KEY)
    assert (await lab.claim_one()).id == id


async def test_a_run_that_came_before_is_not_overtaken(lab: Lab, second_lab: Lab) -> None:
    """It waits without a look, because its process died; this one knows the line as empty"""
    await acquainted(lab)
    second_lab.engine._releases.committed = lambda commit: None  # type: ignore[method-assign]
    first = await second_lab.submit(policy=using(KEY))
    second = await one(lab, KEY)
    claim = await lab.claim_one()
    assert (claim.id, await slots(lab)) == (first, (1, 1))
    await finish(lab, claim)
    assert (await lab.claim_one()).id == second


async def test_what_was_known_ends_with_other_limits(lab: Lab, second_lab: Lab) -> None:
    """I-29: the other process lowers the limit, deletes the quota and creates it again"""
    await acquainted(lab, cap=3)
    await define(second_lab, concurrency_per_key=1)
    await crowd(lab, 3, KEY)
    assert await slots(lab) == (1, 2)
    await second_lab.engine.quotas.delete("q")
    await settled(second_lab)
    assert len(await lab.claim(limit=9)) == 3
    await define(second_lab, concurrency_per_key=4)
    await crowd(lab, 3, KEY)
    assert await slots(lab) == (4, 2)


async def test_endings_above_a_lowered_limit_give_nothing_back(lab: Lab) -> None:
    """I-27: three runs have slots of a key that has one now; the first two endings free none"""
    await acquainted(lab, cap=3)
    claims = [await began(lab, KEY) for _ in range(3)]
    await define(lab, concurrency_per_key=1)
    await crowd(lab, 4, KEY)
    for claim, left in zip(claims, [(2, 4), (1, 4), (1, 3)], strict=True):
        await finish(lab, claim)
        assert await slots(lab) == left


async def test_nothing_is_kept_of_a_quota_that_is_gone(lab: Lab, second_lab: Lab) -> None:
    """Quotas come and go, and each may have a hundred thousand lines."""
    await acquainted(lab)
    claim = await began(lab, KEY)
    await second_lab.engine.quotas.delete("q")
    await finish(lab, claim)
    assert not lab.engine._releases.lines._quotas


async def test_an_empty_line_that_was_tidied_away_counts_its_slots(
    lab: Lab, second_lab: Lab
) -> None:
    """I-27: the process still knows its room"""
    await acquainted(lab)
    now = lab.clock.now()
    assert await second_lab.engine.store.trim_limits(now, now, 99)
    await crowd(lab, 3, KEY)
    await lab.engine.sweep.once()
    assert await slots(lab) == (1, 2)


async def test_a_process_that_dies_after_an_ending_leaves_its_room_to_the_sweep(
    lab: Lab, second_lab: Lab
) -> None:
    """I-28: no look follows the ending, and the other process knows the line as full"""
    await acquainted(lab)
    claim = await began(lab, KEY)
    second_lab.engine._releases.committed = lambda commit: None  # type: ignore[method-assign]
    await finish(second_lab, claim)
    id = await one(lab, KEY)
    await lab.engine.sweep.once()
    assert (await lab.claim_one()).id == id


async def test_a_rival_is_not_taken_for_a_look_whose_request_was_lost(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-27: the look at all lines never arrives, the rival takes the room and moves the version,
    and the repeated look finds the version that it would have left"""
    await acquainted(lab)
    lines = lab.engine._releases.lines
    now = lab.clock.now()
    view = await lab.engine.store.quota_view(QuotaViewRequest("q", None, 9, 9, now))
    release = lab.engine.store.release

    async def lost(looked: Release) -> MovedByRelease:
        taken = await second_lab.submit(policy=using(KEY))
        found = await second_lab.engine.store.quota_view(QuotaViewRequest("q", None, 9, 9, now))
        moved = await release(decide(found, now, 9))
        assert moved == {taken.uuid}
        return MovedByRelease((), repeated=True)

    second_lab.engine._releases.committed = lambda commit: None  # type: ignore[method-assign]
    with monkeypatch.context() as broken:
        broken.setattr(lab.engine.store, "release", lost)
        async with lines.turns:
            assert await lines.looked(view, keep=True)
    await crowd(lab, 2, KEY)
    assert await slots(lab) == (1, 2)


async def test_a_look_that_failed_leaves_nothing_known(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-28: the slot was freed, so the next run is followed by a look"""
    await acquainted(lab)
    claim = await began(lab, KEY)

    async def gone(ask: Any) -> Any:
        raise Unavailable("gone")

    with monkeypatch.context() as broken:
        broken.setattr(lab.engine.store, "serve", gone)
        await finish(lab, claim)
    id = await one(lab, KEY)
    assert (await lab.claim_one()).id == id


async def test_runs_with_keys_of_their_own_are_admitted_after_their_commit(lab: Lab) -> None:
    """Such a submission may wait for another session, and holds no quota meanwhile."""
    await acquainted(lab)
    id = await one(lab, KEY, key="order-7")
    assert (await lab.claim_one()).id == id
    assert await slots(lab) == (1, 0)


async def test_a_paused_lane_gets_no_slot(lab: Lab) -> None:
    """The slot stays for runs that can be claimed."""
    await acquainted(lab)
    await lab.engine.lanes.pause("slow")
    await lab.engine._releases.closed.refresh()
    closed = await one(lab, KEY, lane="slow")
    open = await one(lab, KEY)
    assert (await lab.claim_one()).id == open
    assert await lab.state(closed) == "rate_limited"


async def test_what_is_known_of_a_deleted_quota_is_not_known_of_the_next(
    lab: Lab, second_lab: Lab
) -> None:
    """I-27: the next one was made in the same millisecond, and has seen as many changes"""
    await define(lab, concurrency_per_key=5)
    await one(lab, KEY)
    assert await second_lab.engine.quotas.delete("q")
    await define(second_lab, concurrency_per_key=2)
    await one(second_lab, KEY)
    await crowd(lab, 4, KEY)
    assert await slots(lab) == (2, 4)

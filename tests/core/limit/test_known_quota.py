"""The account that a process keeps of the slots of lines."""

from flowfabric.core.limit.known_quota import KnownQuota
from tests.kit.limiting import known_quota

LINE, OTHER = 1, 2


def known(room: int) -> KnownQuota:
    """One line, counted by the first look."""
    return known_quota(7, {LINE: room})


def test_only_a_line_of_which_nothing_is_known_is_counted() -> None:
    assert known(0).ask([LINE, OTHER]) == {OTHER: None}


def test_an_ending_gives_room_to_an_empty_line_which_needs_no_look() -> None:
    quota = known(1)
    quota.give_back([LINE], looks=1)
    assert quota.room == {LINE: 2}
    assert quota.ask([LINE]) == {}


def test_an_ending_in_a_line_that_submissions_have_filled_needs_no_look() -> None:
    """None of them has come to wait there."""
    quota = known(2)
    quota.take({LINE: 2}, {})
    quota.give_back([LINE], looks=1)
    assert (quota.room, quota.ask([LINE])) == ({LINE: 1}, {})


def test_a_line_is_empty_when_as_many_were_admitted_as_have_come_to_wait() -> None:
    quota = known(1)
    quota.take({LINE: 1}, {LINE: 2})
    for left in (1, 0):
        quota.give_back([LINE], looks=1)
        asked = quota.ask([LINE])
        assert asked == {LINE: 1}, left
        quota.learn(asked, {LINE: 0}, (), 2)
    quota.give_back([LINE], looks=2)
    assert (quota.room, quota.ask([LINE])) == ({LINE: 1}, {})


def test_a_slot_that_is_given_back_while_the_last_run_is_admitted_is_room() -> None:
    quota = known(1)
    quota.take({LINE: 1}, {LINE: 1})
    quota.give_back([LINE], looks=1)
    asked = quota.ask([LINE])
    quota.give_back([LINE], looks=1)
    quota.learn(asked, {LINE: 0}, (), 2)
    assert (quota.room, quota.ask([LINE])) == ({LINE: 1}, {})


def test_a_run_that_comes_to_wait_in_another_way_is_not_counted() -> None:
    """A retry, an idempotency key: how many there are is not known then."""
    quota = known(1)
    quota.take({LINE: 1}, {})
    quota.wait([LINE])
    for _ in range(3):
        quota.give_back([LINE], looks=1)
        asked = quota.ask([LINE])
        assert asked == {LINE: 1}
        quota.learn(asked, {LINE: 0}, (), 2)


def test_the_slots_of_a_full_line_are_for_runs_that_wait_in_it() -> None:
    """A new run finds the line full, until a look has found that none waits."""
    quota = known(0)
    quota.give_back([LINE], looks=1)
    quota.give_back([LINE], looks=2)
    assert quota.room == {LINE: 0}
    asked = quota.ask([LINE])
    assert asked == {LINE: 2}
    quota.learn(asked, {LINE: 1}, (), 2)
    assert quota.room == {LINE: 1}


def test_more_held_than_the_limit_is_now_must_end_before_a_slot_is_free() -> None:
    quota = known(-1)
    quota.wait([LINE])
    quota.give_back([LINE], looks=1)
    assert (quota.room, quota.ask([LINE])) == ({LINE: 0}, {})
    quota.give_back([LINE], looks=1)
    assert quota.ask([LINE]) == {LINE: 1}


def test_an_ending_that_a_count_may_have_seen_is_not_added() -> None:
    """It was sent before the look that counted was answered."""
    quota = known(0)
    quota.give_back([LINE], looks=0)
    assert quota.ask([LINE]) == {LINE: None}


def test_what_a_look_counts_while_an_ending_is_answered_is_not_kept() -> None:
    """The count may have seen its slot as free or as taken."""
    quota = KnownQuota()
    asked = quota.ask([LINE, OTHER])
    quota.give_back([LINE], looks=0)
    quota.learn(asked, {LINE: 0, OTHER: 1}, (), 1)
    assert quota.room == {OTHER: 1}
    assert quota.ask([LINE]) == {LINE: None}


def test_a_look_that_counts_nothing_and_an_ending_do_not_touch_each_other() -> None:
    for rest, after in ((0, {LINE: 1}), (1, {})):
        quota = known(0)
        quota.give_back([LINE], looks=1)
        asked = quota.ask([LINE])
        quota.give_back([LINE], looks=1)
        quota.learn(asked, {LINE: rest}, (), 2)
        assert quota.room == {LINE: rest * 2}
        assert quota.ask([LINE]) == after


def test_a_slot_that_is_given_back_during_a_submission_is_for_the_run_that_found_no_room() -> None:
    quota = known(1)
    quota.take({LINE: 1}, {LINE: 1})
    quota.give_back([LINE], looks=1)
    assert quota.room == {LINE: 0}
    assert quota.ask([LINE]) == {LINE: 1}


def test_lines_with_more_runs_than_one_look_admits_are_offered_their_rest() -> None:
    quota = known(0)
    quota.give_back([LINE], looks=1)
    quota.give_back([LINE], looks=1)
    quota.learn(quota.ask([LINE]), {LINE: 1}, [LINE], 2)
    assert quota.room == {LINE: 0}
    assert quota.ask([LINE]) == {LINE: 1}


def test_a_run_that_comes_to_wait_is_offered_the_room_there_is() -> None:
    """Nothing is counted; in a full line it needs no look."""
    quota = known(2)
    quota.wait([LINE])
    assert quota.room == {LINE: 0}
    assert quota.ask([LINE]) == {LINE: 2}
    full = known(0)
    full.wait([LINE])
    assert full.ask([LINE]) == {}


def test_a_run_that_comes_to_wait_during_a_look_is_not_missed() -> None:
    quota = known(0)
    quota.give_back([LINE], looks=1)
    asked = quota.ask([LINE])
    quota.wait([LINE])
    quota.learn(asked, {LINE: 1}, (), 2)
    assert quota.ask([LINE]) == {LINE: None}


def test_a_line_that_is_forgotten_during_a_look_is_counted_again() -> None:
    """A run has come to wait in it, and the look may not have seen it."""
    quota = known(0)
    quota.give_back([LINE], looks=1)
    asked = quota.ask([LINE])
    quota.forget([LINE])
    quota.learn(asked, {LINE: 1}, (), 2)
    assert quota.ask([LINE]) == {LINE: None}


def test_a_line_without_a_row_is_not_known() -> None:
    quota = KnownQuota()
    quota.learn(quota.ask([LINE]), {}, (), 1)
    assert quota.room == {}

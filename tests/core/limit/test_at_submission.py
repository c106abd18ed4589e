"""Admission at submission: new runs that find their line empty and a slot free."""

from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Ready, Snapshot
from flowfabric.core.execution.submission import Creation, Submission, create
from flowfabric.core.limit.at_submission import Admissions, at_submission
from flowfabric.core.limit.known_quota import KnownQuota
from flowfabric.core.limit.quota import name_uses, queue_of
from flowfabric.core.limit.release import TURNS
from tests.kit.limiting import known_quota

NOW = Millis(1_000_000)


def creation(number: int, *, uses: dict[str, str] | None = None, priority: int = 0) -> Creation:
    quotas = [{"quota": quota, "key": key} for quota, key in (uses or {"q": "k"}).items()]
    given = Submission(kind="job", policy={"quotas": quotas}, priority=priority)
    return create(given, UUID(int=number), NOW)


def runs(count: int, uses: dict[str, str] | None = None) -> list[Snapshot]:
    return [creation(number, uses=uses).snapshot for number in range(1, count + 1)]


def queue(**uses: str) -> int:
    return queue_of(name_uses(uses))


def known(room: int, *, turn: int = 0, version: int = 7) -> dict[str, KnownQuota]:
    return {"q": known_quota(version, {queue(q="k"): room}, turn=turn)}


def admitted(found: Admissions) -> list[int]:
    return list(found.admitted)


def test_runs_are_admitted_as_far_as_there_is_room() -> None:
    found = at_submission(runs(3), NOW, known(2), ())
    assert admitted(found) == [1, 2]
    assert found.full == {3}
    assert found.versions == {"q": 7}
    assert found.taken == {"q": {queue(q="k"): 2}}
    assert found.waiting == {"q": {queue(q="k"): 1}}


def test_the_most_urgent_comes_first() -> None:
    snapshots = [creation(number, priority=number).snapshot for number in (1, 3, 2)]
    assert admitted(at_submission(snapshots, NOW, known(1), ())) == [3]


def test_an_admitted_run_is_ready_and_ranked_by_its_admission() -> None:
    """The same as if a release had admitted it after the latest turn."""
    (run,) = runs(1)
    ahead = known(1, turn=(NOW + 5) * TURNS)
    (ready,) = at_submission([run], NOW, ahead, ()).admitted.values()
    assert isinstance(ready.state, Ready)
    assert ready.head.version == run.head.version
    assert ready.admitted_at == NOW + 6


def test_lines_that_are_full_keep_their_quota_in_the_comparison() -> None:
    """Another process may have found room there meanwhile."""
    found = at_submission(runs(2), NOW, known(0), ())
    assert (admitted(found), len(found.full), found.versions) == ([], 2, {"q": 7})


def test_what_is_not_known_is_left_to_a_release() -> None:
    """C-T80: another line, another quota, and lines that use two quotas"""
    for uses in ({"q": "other"}, {"r": "k"}, {"q": "k", "r": ""}):
        found = at_submission(runs(1, uses), NOW, known(9), ())
        assert (found.versions, found.admitted, found.full) == ({}, {}, set())


def test_runs_without_limits_and_runs_that_wait_for_a_moment_are_left_as_they_are() -> None:
    plain = create(Submission(kind="job"), UUID(int=1), NOW).snapshot
    policy = {"quotas": [{"quota": "q", "key": "k"}]}
    later = Submission(kind="job", policy=policy, delay_until=Millis(NOW + 9))
    delayed = create(later, UUID(int=2), NOW).snapshot
    assert at_submission([plain, delayed], NOW, known(9), ()).versions == {}


def test_a_run_that_no_worker_can_take_gets_no_slot() -> None:
    (run,) = runs(1)
    found = at_submission([run], NOW, known(9), (run.execution.route,))
    assert (found.versions, found.admitted) == ({}, {})


def test_runs_are_written_as_they_were_admitted() -> None:
    snapshots = runs(2)
    first, second = at_submission(snapshots, NOW, known(1), ()).written(snapshots)
    assert isinstance(first.state, Ready)
    assert second is snapshots[1]

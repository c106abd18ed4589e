"""Lists by pages and filters, and counts. E-T329, E-X28, INV-7."""

from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    Invalid,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Failure
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.execution import views as views_module
from flowfabric.engine.execution.described import Info
from flowfabric.store.queries import Query
from tests.kit import situations
from tests.kit.lab import Lab
from tests.kit.situations import ALL, LIVING

# -- lists


async def walk(lab: Lab, **filters: Any) -> list[ExecutionId]:
    """Every page, one after the other."""
    query = Query(**filters)
    page = await lab.engine.views.list(query)
    found = [info.id for info in page.items]
    while page.cursor is not None:
        page = await lab.engine.views.list(query, page.cursor)
        found += [info.id for info in page.items]
    return found


async def test_a_list_has_pages_and_a_last_one(lab: Lab) -> None:
    """E-T329: fifteen by five, in order of creation, each once, no cursor at the end"""
    ids = []
    for number in range(15):
        ids.append(await lab.submit())
        lab.clock.advance(number % 3)
    cursor, pages = None, []
    for _ in range(3):
        page = await lab.engine.views.list(Query(limit=5), cursor)
        pages.append([info.id for info in page.items])
        cursor = page.cursor
    assert pages == [ids[:5], ids[5:10], ids[10:]]
    assert cursor is None
    assert await walk(lab, limit=4, newest_first=True) == ids[::-1]
    assert await walk(lab, limit=1) == ids


async def test_a_list_of_the_members_of_a_flow(lab: Lab) -> None:
    """With the other filters; executions that are in no flow, or in another one, are left out"""
    flow, other = UUID(int=1), UUID(int=2)
    for id in (flow, other):
        await lab.engine.flows.create("nightly", id=id)
    add = lab.engine.flows.add
    await add(other, Submission(kind="job"))
    members = [(await add(flow, Submission(kind="job", lane=lane))).id for lane in ("fast", "slow")]
    await lab.submit()
    assert await walk(lab, flow=flow) == members
    assert await walk(lab, flow=flow, limit=1, newest_first=True) == members[::-1]
    assert await walk(lab, flow=flow, lane="slow") == members[1:]
    assert await walk(lab, flow=UUID(int=7)) == []
    with pytest.raises(Invalid):
        await lab.engine.views.list(Query(flow="nightly"))  # type: ignore[arg-type]


async def test_an_empty_list_and_a_list_of_nothing(lab: Lab) -> None:
    """E-T329"""
    views = lab.engine.views
    assert (await views.list(Query())).items == ()
    assert (await views.list(Query())).cursor is None
    await lab.submit()
    for query in (Query(limit=0), Query(namespace="none"), Query(lane="none"), Query(kind="none")):
        page = await views.list(query)
        assert (page.items, page.cursor) == ((), None)


async def test_what_was_created_in_one_millisecond_is_listed_whole(lab: Lab) -> None:
    submissions = [Submission(kind="job") for _ in range(60)]
    answers = await lab.engine.executions.submit_many(submissions)
    ids = [answer.id for answer in answers]
    for newest_first in (False, True):
        found = await walk(lab, limit=7, newest_first=newest_first)
        assert found == (ids[::-1] if newest_first else ids)


@pytest.mark.rules
@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "nonsense",
        "1",
        "1.",
        ".",
        "1.zz",
        "x." + "0" * 32,
        "1." + "0" * 31,
        "-1." + "0" * 32,
        "1" * 30 + "." + "0" * 32,
        "1" * 5000 + "." + "0" * 32,
        "1.\0" + "0" * 31,
    ],
)
async def test_a_malformed_cursor_is_refused(lab: Lab, cursor: str) -> None:
    """E-T329"""
    await lab.submit()
    with pytest.raises(Invalid):
        await lab.engine.views.list(Query(), cursor)


async def test_a_cursor_may_be_a_moment_and_an_id(lab: Lab) -> None:
    first, second = await lab.submit(), await lab.submit()
    assert await walk(lab, after=(lab.clock.now(), first.uuid)) == [second]
    assert await walk(lab, after=(lab.clock.now(), second.uuid), newest_first=True) == [first]


async def test_a_cursor_of_what_is_gone_continues_where_it_was(lab: Lab) -> None:
    ids = [await situations.cancelled_unrun(lab) for _ in range(4)]
    page = await lab.engine.views.list(Query(limit=2))
    lab.clock.advance(8 * 86_400_000)
    later = await lab.submit()
    assert await lab.engine.sweep.trim() == 4
    page = await lab.engine.views.list(Query(limit=2), page.cursor)
    assert [info.id for info in page.items] == [later]
    assert ids


async def test_a_list_is_filtered_by_where_and_what(lab: Lab) -> None:
    """Each filter alone, and together"""
    rows = [
        (namespace, lane, kind, tenant)
        for namespace in ("n1", "n2")
        for lane in ("l1", "l2")
        for kind in ("k1", "k2")
        for tenant in ("t1", "t2")
    ]
    ids = {
        row: await lab.submit(
            row[2], namespace=row[0], lane=row[1], tags={"app.tenant": row[3], "app.x": "1"}
        )
        for row in rows
    }

    def expected(**wanted: str) -> list[ExecutionId]:
        names = ("namespace", "lane", "kind", "tenant")
        return [
            ids[row]
            for row in rows
            if all(row[names.index(name)] == value for name, value in wanted.items())
        ]

    assert await walk(lab, namespace="n1") == expected(namespace="n1")
    assert await walk(lab, lane="l2") == expected(lane="l2")
    assert await walk(lab, kind="k1") == expected(kind="k1")
    assert await walk(lab, tag=("app.tenant", "t2")) == expected(tenant="t2")
    assert await walk(lab, tag=("app.tenant", "t3")) == []
    assert await walk(lab, tag=("app.none", "t2")) == []
    assert await walk(lab, namespace="n2", lane="l1", limit=3) == expected(
        namespace="n2", lane="l1"
    )
    everything: dict[str, Any] = {"namespace": "n2", "lane": "l1", "kind": "k2"}
    assert await walk(lab, **everything, tag=("app.tenant", "t1"), limit=1) == expected(
        **everything, tenant="t1"
    )


async def test_a_list_is_filtered_by_when(lab: Lab) -> None:
    """From is inclusive, until is not"""
    start = lab.clock.now()
    ids = []
    for _ in range(5):
        ids.append(await lab.submit())
        lab.clock.advance(10)
    moment = Millis(start + 20)
    assert await walk(lab, created_from=moment) == ids[2:]
    assert await walk(lab, created_until=moment) == ids[:2]
    assert (
        await walk(lab, created_from=Millis(start + 10), created_until=Millis(start + 31))
        == (ids[1:4])
    )
    assert await walk(lab, created_from=moment, limit=1, newest_first=True) == ids[:1:-1]
    assert await walk(lab, created_from=moment, created_until=moment) == []


async def test_a_list_is_filtered_by_every_state(lab: Lab) -> None:
    """Each public state, alone and with others, by pages of one"""
    by_state: dict[PublicState, list[ExecutionId]] = {state: [] for state in PublicState}
    ids = []
    for situation in [*ALL.values()] * 2:
        id = await situation(lab)
        ids.append(id)
        by_state[await lab.state(id)].append(id)
    assert all(by_state.values())
    for state, expected in by_state.items():
        for limit in (1, 100):
            assert await walk(lab, states=(state,), limit=limit) == expected, state
        newest = await walk(lab, states=(state,), limit=2, newest_first=True)
        assert newest == expected[::-1], state
    mixed = {PublicState.WAITING, PublicState.RATE_LIMITED, PublicState.FAILED}
    expected = [id for id in ids if any(id in by_state[state] for state in mixed)]
    assert await walk(lab, states=tuple(mixed), limit=3) == expected
    assert await walk(lab, states=tuple(PublicState)) == ids


@pytest.mark.rules
@pytest.mark.parametrize(
    "wrong",
    [
        {"states": ("nonsense",)},
        {"namespace": "a\0b"},
        {"lane": 7},
        {"kind": "\ud800"},
        {"tag": ("app.tenant", "a\0b")},
        {"tag": ("nodot", "v")},
        {"tag": ("app.tenant",)},
        {"created_from": -1},
        {"created_until": 2**70},
        {"created_from": "yesterday"},
        {"after": (-1, UUID(int=1))},
        {"after": (1, "nonsense")},
        {"after": "nonsense"},
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused(lab: Lab, wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await lab.engine.views.list(Query(**wrong))


@pytest.mark.parametrize("newest_first", [False, True])
async def test_pages_neither_repeat_nor_lose_anything_while_rows_are_added(
    lab: Lab, newest_first: bool
) -> None:
    """Also while the listed ones move from state to state"""
    ids = []
    for number in range(20):
        ids.append(await lab.submit())
        lab.clock.advance(number % 2)
    query = Query(limit=3, newest_first=newest_first)
    cursor, seen = None, []
    for _ in range(40):
        page = await lab.engine.views.list(query, cursor)
        seen += [info.id for info in page.items]
        cursor = page.cursor
        if cursor is None:
            break
        await lab.submit()
        for claim in await lab.claim(limit=2):
            await lab.complete(claim)
        await lab.submit(delay_until=Millis(lab.clock.now() + 1))
        if len(seen) > 30:
            break
    assert len(seen) == len(set(seen))
    old = [id for id in seen if id in ids]
    assert old == (ids[::-1] if newest_first else ids)


async def test_a_rare_row_in_a_long_list_is_found(lab: Lab) -> None:
    """A call looks at a bounded number of rows: a short page may still have a cursor"""
    many = [Submission(kind="common", delay_until=Millis(lab.clock.now() + 1))] * 10_100
    await lab.engine.executions.submit_many(many)
    rare = await lab.submit("rare", tags={"app.rare": "yes"})
    for filters in (
        {"kind": "rare"},
        {"tag": ("app.rare", "yes")},
        {"states": (PublicState.WAITING,)},
    ):
        assert await walk(lab, **filters) == [rare]
    page = await lab.engine.views.list(Query(limit=50_000))
    assert len(page.items) == 1000
    assert page.cursor is not None
    newest = await lab.engine.views.list(Query(limit=1, newest_first=True))
    assert [info.id for info in newest.items] == [rare]
    assert (await lab.engine.views.counts()).by_state["delayed"] == 10_100


async def test_what_a_list_shows_is_what_the_execution_shows(lab: Lab) -> None:
    ids = [await situation(lab) for situation in LIVING.values()]
    infos: list[Info | None] = [await lab.engine.views.info(id) for id in ids]
    assert list((await lab.engine.views.list(Query())).items) == infos


# -- counts


async def test_counts_are_those_of_the_states(lab: Lab) -> None:
    views = lab.engine.views
    expected: Counter[PublicState] = Counter()
    for number, situation in enumerate([*ALL.values()] * 2):
        lane, namespace = f"lane-{number % 2}", f"space-{number % 3}"
        id = await situation(lab, lane=lane, namespace=namespace)
        expected[await lab.state(id)] += 1
    counts = await views.counts()
    assert {PublicState(word): count for word, count in counts.by_state.items() if count} == (
        expected
    )
    assert not counts.capped
    total: Counter[str] = Counter()
    for lane in ("lane-0", "lane-1"):
        for namespace in ("space-0", "space-1", "space-2"):
            part = (await views.counts(namespace=namespace, lane=lane)).by_state
            listed = await walk(lab, namespace=namespace, lane=lane)
            assert sum(part.values()) == len(listed)
            total.update(part)
    assert {word: count for word, count in total.items() if count} == expected
    assert sum((await views.counts(lane="nowhere")).by_state.values()) == 0


# -- failures by error


async def failing(lab: Lab, message: str, kind: str = "job", **members: Any) -> ExecutionId:
    claim = await lab.running(kind=kind, **members)
    await lab.fail(claim, message=message)
    lab.clock.advance(1000)
    return claim.id


async def test_failures_are_grouped_by_task_and_error(lab: Lab) -> None:
    start = lab.engine.now()
    await failing(lab, "Timeout: no answer in 31 ms")
    last = await failing(lab, "Timeout: no answer in 2718 ms")
    other = await failing(lab, "Timeout: no answer in 31 ms", kind="other")
    twice = [await failing(lab, "KeyError: 'x'") for _ in range(3)]
    await lab.complete(await lab.running())
    found = await lab.engine.views.failures()
    assert found.complete
    shown = [(g.kind, g.error, g.count, g.example) for g in found.groups]
    assert shown == [
        ("job", "KeyError: 'x'", 3, twice[-1]),
        ("job", "Timeout: no answer in … ms", 2, last),
        ("other", "Timeout: no answer in 31 ms", 1, other),
    ]
    assert found.groups[1].message == "Timeout: no answer in 2718 ms"
    assert (found.groups[1].first_at, found.groups[1].last_at) == (start, start + 1000)


async def test_failures_are_filtered_by_task_namespace_and_the_moment_they_failed(lab: Lab) -> None:
    views = lab.engine.views
    await failing(lab, "old", kind="a")
    middle = lab.engine.now()
    await failing(lab, "new", kind="a")
    await failing(lab, "new", kind="b", namespace="there")
    assert [g.error for g in (await views.failures(kind="a", since=middle)).groups] == ["new"]
    assert [g.kind for g in (await views.failures(namespace="there")).groups] == ["b"]
    assert (await views.failures(since=lab.engine.now())).groups == ()
    with pytest.raises(Invalid):
        await views.failures(kind=7)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        await views.failures(since="yesterday")  # type: ignore[arg-type]


async def test_a_run_that_is_replayed_is_no_failure_until_it_fails_again(lab: Lab) -> None:
    id = await failing(lab, "boom")
    await lab.engine.executions.replay(id)
    assert (await lab.engine.views.failures()).groups == ()
    await lab.fail(await lab.claim_one(), message="boom")
    assert [g.count for g in (await lab.engine.views.failures()).groups] == [1]


async def test_failures_are_read_page_by_page_and_only_the_latest(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views_module, "MAX_PAGE", 2)
    ids = [await failing(lab, "boom") for _ in range(5)]
    (group,) = (await lab.engine.views.failures()).groups
    assert (group.count, group.example) == (5, ids[-1])
    monkeypatch.setattr(views_module, "FAILURES_READ", 4)
    cut = await lab.engine.views.failures()
    assert (cut.groups[0].count, cut.complete) == (4, False)
    assert cut.read_since == group.first_at + 1000


# -- what a run waits for, and how it failed


@pytest.mark.parametrize(
    ("situation", "text"),
    [
        (situations.waiting, "a worker"),
        (situations.delayed, "a delay"),
        (situations.backing_off, "a retry"),
        (situations.worker_delayed, "a delay"),
        (situations.blocked, "unblock: paused by operator"),
        (situations.lost, "a worker"),
        (situations.running, None),
        (situations.completed, None),
    ],
)
async def test_a_list_says_what_a_run_waits_for(
    lab: Lab, situation: situations.Situation, text: str | None
) -> None:
    id = await situation(lab)
    (info,) = (await lab.engine.views.list(Query())).items
    assert (info.id, info.waits_for) == (id, text)
    assert (info.due_at is None) == (text not in {"a delay", "a retry"})


async def test_a_list_has_the_failure_of_a_run_without_its_traceback(lab: Lab) -> None:
    claim = await lab.running()
    failure = Failure("boom", detail=b"Traceback")
    await lab.engine.attempts.fail(claim, failure)
    (info,) = (await lab.engine.views.list(Query())).items
    assert info.failure == Failure("boom")


async def test_a_list_has_the_last_failure_of_runs_that_are_tried_again(lab: Lab) -> None:
    await lab.complete(await lab.running())
    id = await situations.backing_off(lab)
    listed = {info.id: info for info in (await lab.engine.views.list(Query())).items}
    assert [info.failure is not None for info in listed.values()] == [False, True]
    attempts = await lab.engine.views.attempts(id)
    failure = listed[id].failure
    assert failure is not None
    assert attempts[0].failure is not None
    assert failure.message == attempts[0].failure.message
    await lab.pass_time(situations.DELAY)
    await situations.take(lab, id)
    running = [info for info in (await lab.engine.views.list(Query())).items if info.id == id]
    assert (running[0].state, running[0].failure) == (PublicState.ACTIVE, failure)

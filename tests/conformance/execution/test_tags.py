"""Tags: free text about an execution, in any phase, all or none. E-T331 to E-T333, §1.11."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, InvalidTag, NotFound
from flowfabric.store.queries import Query
from tests.kit.lab import Lab
from tests.kit.situations import ALL, load, missing_ids

WRONG_KEYS = [
    "nodot",
    "Upper.case",
    "app.Upper",
    "app.",
    ".app",
    "1app.x",
    "app..x",
    "app.x y",
    "äpp.x",
    "app.ä",
    "",
    "app.x\n",
    "a" * 300 + ".x",
]
GOOD_KEYS = ["a.b", "app.tenant", "app2_x.y.z", "a.0", "a._", "cairn.instance_id"]


async def tags_of(lab: Lab, id: str) -> dict[str, str]:
    seen = await lab.engine.views.describe(id)
    assert seen is not None
    return dict(seen.tags)


async def test_a_batch_of_tags_is_counted_and_stored(lab: Lab) -> None:
    """E-T331: the last moment anything happened moves, the state does not"""
    id = await lab.submit(tags={"app.tenant": "a"})
    before = await load(lab, id)
    touched_at = lab.clock.advance(5)
    assert await lab.engine.executions.set_tags(id, {"z.last": "1", "a.first": "2"}) == 2
    assert await tags_of(lab, id) == {"a.first": "2", "app.tenant": "a", "z.last": "1"}
    assert await load(lab, id) == before
    seen = await lab.engine.views.describe(id)
    assert seen is not None
    assert seen.touched_at == touched_at
    assert list(seen.tags) == ["a.first", "app.tenant", "z.last"]
    assert not await lab.events(id)


async def test_a_single_tag_is_set_and_overwritten(lab: Lab) -> None:
    """E-T333"""
    id = await lab.submit()
    executions = lab.engine.executions
    assert await executions.get_tag(id, "app.tenant") is None
    await executions.set_tag(id, "app.tenant", "a")
    assert await executions.get_tag(id, "app.tenant") == "a"
    await executions.set_tag(id, "app.tenant", "b")
    assert await executions.get_tag(id, "app.tenant") == "b"
    assert await tags_of(lab, id) == {"app.tenant": "b"}


async def test_keys_that_follow_the_pattern_are_accepted(
    lab: Lab, subtests: pytest.Subtests
) -> None:
    """§1.11"""
    for key in GOOD_KEYS:
        with subtests.test(key):
            id = await lab.submit(tags={key: "at submit"})
            await lab.engine.executions.set_tag(id, key, "later")
            assert await lab.engine.executions.get_tag(id, key) == "later"


async def test_keys_that_do_not_are_refused_and_nothing_is_stored(
    lab: Lab, subtests: pytest.Subtests
) -> None:
    """E-T332, E-T333: on set and on get, alone and in a batch, before the store is asked"""
    id = await lab.submit()
    executions = lab.engine.executions
    before = await lab.engine.views.describe(id)
    for key in WRONG_KEYS:
        for call in (
            executions.set_tag(id, key, "v"),
            executions.set_tags(id, {"app.good": "v", key: "v"}),
            executions.get_tag(id, key),
            lab.submit(tags={key: "v"}),
            lab.engine.views.list(Query(tag=(key, "v"))),
        ):
            with subtests.test(key), pytest.raises(InvalidTag):
                await call
    assert await lab.engine.views.describe(id) == before


@pytest.mark.rules
async def test_the_key_is_looked_at_before_the_execution(lab: Lab) -> None:
    """E-T333"""
    for id in (*await missing_ids(lab), "nonsense"):
        with pytest.raises(InvalidTag):
            await lab.engine.executions.get_tag(id, "nodot")
        with pytest.raises(InvalidTag):
            await lab.engine.executions.set_tag(id, "nodot", "v")


@pytest.mark.rules
async def test_an_empty_batch_is_refused(lab: Lab) -> None:
    """E-T332"""
    id = await lab.submit()
    with pytest.raises(Invalid):
        await lab.engine.executions.set_tags(id, {})


@pytest.mark.rules
@pytest.mark.parametrize("value", ["a\0b", "\udfff", "x" * 4097, 7, None, b"bytes"])
async def test_values_are_storable_text(lab: Lab, value: Any) -> None:
    """All or none"""
    id = await lab.submit()
    with pytest.raises(Invalid):
        await lab.engine.executions.set_tags(id, {"app.good": "v", "app.bad": value})
    assert await tags_of(lab, id) == {}


async def test_any_value_that_can_be_stored_is_stored_as_it_is(lab: Lab) -> None:
    id = await lab.submit()
    values = {"v.empty": "", "v.wide": "ünïcödé 🚀", "v.quote": "';--\"\n", "v.long": "x" * 4096}
    assert await lab.engine.executions.set_tags(id, values) == 4
    assert await tags_of(lab, id) == values


async def test_a_missing_execution_has_no_tags_and_takes_none(lab: Lab) -> None:
    """E-T333"""
    for id in await missing_ids(lab):
        with pytest.raises(NotFound):
            await lab.engine.executions.set_tag(id, "app.tenant", "v")
        with pytest.raises(NotFound):
            await lab.engine.executions.set_tags(id, {"app.tenant": "v"})
        assert await lab.engine.executions.get_tag(id, "app.tenant") is None


async def test_tags_are_set_in_every_phase(lab: Lab, subtests: pytest.Subtests) -> None:
    """§3.45, INV-4: the state does not move, nor does its version"""
    for name, situation in ALL.items():
        with subtests.test(name):
            id = await situation(lab)
            before, events = await load(lab, id), await lab.events(id)
            await lab.engine.executions.set_tag(id, "app.note", name)
            assert await lab.engine.executions.get_tag(id, "app.note") == name
            assert await load(lab, id) == before
            assert await lab.events(id) == events


async def test_tags_last_through_a_whole_life(lab: Lab) -> None:
    id = await lab.submit(tags={"app.tenant": "a"})
    claim = await lab.claim_one()
    await lab.engine.executions.set_tag(id, "app.step", "1")
    await lab.complete(claim)
    await lab.engine.executions.replay(id)
    assert await tags_of(lab, id) == {"app.step": "1", "app.tenant": "a"}
    assert (await lab.engine.views.context(id)).tags == {"app.step": "1", "app.tenant": "a"}


async def test_tags_belong_to_their_execution(lab: Lab) -> None:
    one = await lab.submit(tags={"app.tenant": "a"})
    two = await lab.submit(tags={"app.tenant": "b"})
    await lab.engine.executions.set_tag(one, "app.extra", "1")
    assert await tags_of(lab, two) == {"app.tenant": "b"}


async def test_a_changed_tag_is_found_by_its_new_value_only(lab: Lab) -> None:
    id = await lab.submit(tags={"app.tenant": "a"})
    await lab.engine.executions.set_tag(id, "app.tenant", "b")
    found = {
        value: [info.id for info in (await lab.engine.views.list(Query(tag=tag))).items]
        for value, tag in (("a", ("app.tenant", "a")), ("b", ("app.tenant", "b")))
    }
    assert found == {"a": [], "b": [id]}


async def test_tags_set_at_once_are_all_there(lab: Lab, second_lab: Lab) -> None:
    id = await lab.submit()
    await asyncio.gather(
        *(
            each.engine.executions.set_tags(id, {f"app.t{number}": "v", "app.same": "v"})
            for number, each in enumerate([lab, second_lab] * 10)
        )
    )
    assert len(await tags_of(lab, id)) == 21

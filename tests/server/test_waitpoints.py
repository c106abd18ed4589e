"""Waitpoints and signals over HTTP (server-sdk.md 1.7)."""

from functools import partial
from typing import Any

import httpx
import pytest

from flowfabric.core.access.token import Identity
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.wait.condition.model import AllTrue, all_waitpoints
from flowfabric.engine.wait.suspensions import Ticket
from tests.kit.http import (
    NOBODY,
    client_as,
    create,
    error_of,
    padded,
    tagged,
    tenant,
    uuid_of,
    without,
)
from tests.kit.lab import Lab
from tests.kit.waits import create_waitpoint, named, suspend, wait_on

pytestmark = pytest.mark.rules

URL = "/v1/executions"


async def suspended(http: httpx.AsyncClient, lab: Lab, **options: Any) -> tuple[str, Ticket]:
    """An execution that waits for a signal `go`, and its waitpoint."""
    id = await create(http, **options)
    answer = await suspend(lab, await lab.claim_one(), wait_on(lab, named("go")))
    return id, answer.primary


def signal(ticket: Ticket, **members: Any) -> dict[str, Any]:
    assert ticket.token is not None
    return {
        "waitpoint_id": str(ticket.id),
        "signal_name": "go",
        "signal_category": "external",
        "source_type": "user",
        "source_identity": "ada",
        "target_scope": "execution",
        "waitpoint_token": ticket.token.reveal(),
        **members,
    }


# -- which are open


async def test_pending_waitpoints_are_a_bare_array(http: httpx.AsyncClient, lab: Lab) -> None:
    """E-T248"""
    id, ticket = await suspended(http, lab)
    assert ticket.token is not None
    now = lab.clock.now()
    assert (await http.get(f"{URL}/{id}/pending-waitpoints")).json() == [
        {
            "waitpoint_id": str(ticket.id),
            "waitpoint_key": "go",
            "state": "active",
            "required_signal_names": ["go"],
            "created_at": now,
            "activated_at": now,
            "execution_id": id,
            "token_kid": ticket.token.kid,
            "token_fingerprint": ticket.token.fingerprint,
        }
    ]


@pytest.mark.parametrize("count", [1000, 1001])
async def test_the_inbox_has_all_waitpoints_of_a_run(
    http: httpx.AsyncClient, lab: Lab, count: int
) -> None:
    """Its pages are of runs: one that waits at many places shows them all"""
    await create(http)
    names = [f"w{number}" for number in range(count)]
    waits = [wait_on(lab, all_waitpoints(*names[:1000])), *map(partial(wait_on, lab), names[1000:])]
    await suspend(lab, await lab.claim_one(), *waits)
    found = (await http.get("/v1/waitpoints")).json()["waitpoints"]
    assert sorted(each["key"] for each in found) == sorted(names)


async def test_a_suspended_execution_says_in_words_where_it_waits(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    """Scenario 7.8: who polls a suspended execution reads `blocking_detail`."""
    id, ticket = await suspended(http, lab)
    info = (await http.get(f"{URL}/{id}")).json()
    assert (info["public_state"], info["blocking_detail"]) == ("suspended", "waits at go")
    assert (await http.post(f"{URL}/{id}/signal", json=signal(ticket))).status_code == 200
    assert (await http.get(f"{URL}/{id}")).json()["blocking_detail"] == ""


async def test_a_waitpoint_that_nothing_waits_at_is_pending(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    id = await create(http)
    assert (await http.get(f"{URL}/{id}/pending-waitpoints")).json() == []
    await create_waitpoint(lab, await lab.claim_one(), "later", expires_in=500)
    (found,) = (await http.get(f"{URL}/{id}/pending-waitpoints")).json()
    assert (found["state"], found["required_signal_names"]) == ("pending", [])
    assert found["expires_at"] == lab.clock.now() + 500
    assert "activated_at" not in found


async def test_pages_of_waitpoints_have_their_cursor_in_a_header(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    id = await create(http)
    claim = await lab.claim_one()
    made = sorted([str((await create_waitpoint(lab, claim, f"w{n}")).id) for n in range(3)])
    url = f"{URL}/{id}/pending-waitpoints"
    first = await http.get(url, params={"limit": 2})
    assert [each["waitpoint_id"] for each in first.json()] == made[:2]
    cursor = first.headers["FlowFabric-Next-Cursor"]
    rest = await http.get(url, params={"cursor": cursor})
    assert [each["waitpoint_id"] for each in rest.json()] == made[2:]
    assert "FlowFabric-Next-Cursor" not in rest.headers


@pytest.mark.parametrize(("limit", "shown"), [(0, 1), (1, 1), (1000, 3), (1001, 3), (10**12, 3)])
async def test_the_limit_of_a_page_of_waitpoints_is_clamped(
    http: httpx.AsyncClient, lab: Lab, limit: int, shown: int
) -> None:
    """§3.40: to 1..1000"""
    id = await create(http)
    claim = await lab.claim_one()
    for number in range(3):
        await create_waitpoint(lab, claim, f"w{number}")
    page = await http.get(f"{URL}/{id}/pending-waitpoints", params={"limit": limit})
    assert len(page.json()) == shown


async def test_no_open_waitpoint_is_left_out(http: httpx.AsyncClient, lab: Lab) -> None:
    """Flaw 11: lists that end at 100 waitpoints, and do not say so."""
    id = await create(http)
    claim = await lab.claim_one()
    made = [(await create_waitpoint(lab, claim, f"k{number}")).id for number in range(100)]
    made.append((await suspend(lab, claim, wait_on(lab, named("go")))).primary.id)
    known = sorted(map(str, made))

    async def listed(path: str, **query: Any) -> tuple[list[str], str | None]:
        found = (await http.get(path, params=query)).json()
        return [each["id"] for each in found["waitpoints"]], found["next_cursor"]

    inbox, more = await listed("/v1/waitpoints")
    assert (sorted(inbox), more) == (known, None)
    assert await listed(f"{URL}/{id}/waitpoints") == (known, None)
    first, cursor = await listed(f"{URL}/{id}/waitpoints", limit=100)
    rest, end = await listed(f"{URL}/{id}/waitpoints", limit=100, cursor=cursor)
    assert (first + rest, end) == (known, None)


@pytest.mark.parametrize("query", [{"limit": -1}, {"limit": "x"}, {"cursor": "nonsense"}])
async def test_a_wrong_page_of_waitpoints_is_400(
    http: httpx.AsyncClient, query: dict[str, Any]
) -> None:
    id = await create(http)
    error_of(await http.get(f"{URL}/{id}/pending-waitpoints", params=query), 400)


# -- tokens


async def test_a_token_is_never_cached(http: httpx.AsyncClient, lab: Lab) -> None:
    """E-T249"""
    id, ticket = await suspended(http, lab)
    assert ticket.token is not None
    reply = await http.get(f"{URL}/{id}/waitpoints/{ticket.id}/token")
    assert (reply.status_code, reply.json()) == (200, {"token": ticket.token.reveal()})
    assert reply.headers["Cache-Control"] == "no-store"


async def test_there_is_no_token_without_an_open_waitpoint(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    id, ticket = await suspended(http, lab)
    await http.post(f"{URL}/{id}/cancel", json={"reason": "over"})
    other = await create(http)
    for run, waitpoint in ((id, ticket.id), (id, NOBODY), (other, ticket.id), (NOBODY, NOBODY)):
        reply = await http.get(f"{URL}/{run}/waitpoints/{waitpoint}/token")
        assert error_of(reply, 404)["error"] == "not found: waitpoint"
        assert reply.headers["Cache-Control"] == "no-store"


async def test_malformed_ids_are_400(http: httpx.AsyncClient) -> None:
    id = await create(http)
    error_of(await http.get(f"{URL}/{id}/waitpoints/nonsense/token"), 400)
    error_of(await http.get(f"{URL}/nonsense/waitpoints/{NOBODY}/token"), 400)


# -- signals


async def test_a_signal_resumes(http: httpx.AsyncClient, lab: Lab) -> None:
    id, ticket = await suspended(http, lab)
    given = str(new_uuid7(1, 1))
    body = signal(ticket, execution_id=id, signal_id=given, payload=[1, 2], now=1)
    reply = await http.post(f"{URL}/{id}/signal", json=body)
    effect = {"signal_id": given, "effect": "resume_condition_satisfied"}
    assert (reply.status_code, reply.json()) == (200, {"Accepted": effect})
    assert (await http.get(f"{URL}/{id}/state")).json() == "waiting"
    again = await http.post(f"{URL}/{id}/signal", json=body)
    assert again.json() == {"Duplicate": {"existing_signal_id": given}}


async def test_the_idempotency_key_finds_the_first_signal(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    id, ticket = await suspended(http, lab)
    body = signal(ticket, idempotency_key="once", signal_name="other")
    first = (await http.post(f"{URL}/{id}/signal", json=body)).json()["Accepted"]
    assert first["effect"] == "no_op"
    again = (await http.post(f"{URL}/{id}/signal", json=body)).json()
    assert again == {"Duplicate": {"existing_signal_id": first["signal_id"]}}


async def test_effects_of_a_composite(http: httpx.AsyncClient, lab: Lab) -> None:
    id = await create(http)
    both = AllTrue((named("a"), named("b", "other")))
    answer = await suspend(lab, await lab.claim_one(), wait_on(lab, both))
    first, second = answer.waitpoints

    async def effect(ticket: Ticket, name: str) -> str:
        body = signal(ticket, signal_name=name)
        reply = await http.post(f"{URL}/{id}/signal", json=body)
        found: str = reply.json()["Accepted"]["effect"]
        return found

    assert await effect(first, "wrong") == "signal_ignored_matcher_failed"
    assert await effect(first, "a") == "appended_to_waitpoint"
    assert await effect(second, "b") == "resume_condition_satisfied"


async def test_a_signal_to_a_pending_waitpoint_is_kept(http: httpx.AsyncClient, lab: Lab) -> None:
    id = await create(http)
    ticket = await create_waitpoint(lab, await lab.claim_one(), "later")
    reply = await http.post(f"{URL}/{id}/signal", json=signal(ticket))
    assert reply.json()["Accepted"]["effect"] == "buffered_for_pending_waitpoint"


async def test_a_closed_waitpoint_is_a_conflict(http: httpx.AsyncClient, lab: Lab) -> None:
    id, ticket = await suspended(http, lab)
    await http.post(f"{URL}/{id}/signal", json=signal(ticket))
    body = error_of(await http.post(f"{URL}/{id}/signal", json=signal(ticket)), 409)
    assert (body["kind"], body["code"]) == ("state_conflict", "waitpoint_closed")
    await http.post(f"{URL}/{id}/cancel", json={"reason": "over"})
    ended = error_of(await http.post(f"{URL}/{id}/signal", json=signal(ticket)), 409)
    assert ended["code"] == "target_not_signalable"


async def test_too_many_signals_are_400(http: httpx.AsyncClient, lab: Lab) -> None:
    id, ticket = await suspended(http, lab, policy={"max_signals_per_execution": 1})
    await http.post(f"{URL}/{id}/signal", json=signal(ticket, signal_name="other"))
    body = error_of(await http.post(f"{URL}/{id}/signal", json=signal(ticket)), 400)
    assert body["code"] == "signal_limit_exceeded"


TAMPERED = [
    lambda token: token[:-1] + ("0" if token[-1] != "0" else "1"),
    lambda token: "unknown:" + token.partition(":")[2],
    lambda token: token.partition(":")[2],
    lambda token: token + "00",
    lambda token: "nonsense",
    lambda token: "a:b",
    lambda token: "x" * 5000,
]


@pytest.mark.parametrize("tamper", TAMPERED)
async def test_a_tampered_token_is_invalid(http: httpx.AsyncClient, lab: Lab, tamper: Any) -> None:
    """E-T252"""
    id, ticket = await suspended(http, lab)
    body = signal(ticket)
    body["waitpoint_token"] = tamper(body["waitpoint_token"])
    refused = error_of(await http.post(f"{URL}/{id}/signal", json=body), 400)
    assert "invalid_token" in refused["error"]
    assert refused["code"] == "invalid_token"
    assert body["waitpoint_token"] not in str(refused)


async def test_an_unknown_waitpoint_is_answered_like_a_wrong_token(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    id, ticket = await suspended(http, lab)
    other = await create(http)
    unknown = signal(ticket, waitpoint_id=NOBODY)
    first = await http.post(f"{URL}/{id}/signal", json=unknown)
    foreign = await http.post(f"{URL}/{other}/signal", json=signal(ticket))
    wrong = await http.post(f"{URL}/{id}/signal", json=signal(ticket, waitpoint_token="a:b"))
    assert first.json() == foreign.json() == wrong.json()
    assert {first.status_code, foreign.status_code, wrong.status_code} == {400}


async def test_an_empty_token_is_missing(http: httpx.AsyncClient, lab: Lab) -> None:
    """E-T251; unlike §3.34 also for an unknown waitpoint: the order of its checks 2 and 3 would
    tell a caller without a token which waitpoints exist"""
    id, ticket = await suspended(http, lab)
    reply = await http.post(f"{URL}/{id}/signal", json=signal(ticket, waitpoint_token=""))
    assert error_of(reply, 400)["code"] == "missing_token"
    unknown = signal(ticket, waitpoint_token="", waitpoint_id=NOBODY)
    assert (await http.post(f"{URL}/{id}/signal", json=unknown)).json() == reply.json()


@pytest.mark.parametrize("members", [{}, {"waitpoint_token": ""}, {"waitpoint_token": "a:b"}])
async def test_an_unknown_execution_is_404_for_a_caller_that_may_read(
    http: httpx.AsyncClient, lab: Lab, members: dict[str, Any]
) -> None:
    """§3.34: before the token is looked at"""
    _, ticket = await suspended(http, lab)
    for run in (NOBODY, tagged(NOBODY)):
        reply = await http.post(f"{URL}/{run}/signal", json=signal(ticket, **members))
        assert error_of(reply, 404)["error"] == f"execution not found: {run}"


async def test_strangers_without_a_token_do_not_learn_which_executions_exist(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    """INV-21; server-sdk.md 1.6: every request needs a credential, that of the waitpoint at
    least."""
    id, ticket = await suspended(http, lab)
    async with client_as(lab.engine, None) as outside:
        for run in (id, NOBODY, "nonsense"):
            for token in ("", "nonsense", "k:" + "0" * 64):
                body = signal(ticket, waitpoint_token=token)
                reply = await outside.post(f"{URL}/{run}/signal", json=body)
                refused = error_of(reply, 401)
                assert refused["error"] == "missing or invalid Authorization header"
                assert refused["code"] == "missing_credentials"


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b" " * 300_000])
async def test_a_stranger_needs_a_token_whatever_the_body(
    http: httpx.AsyncClient, lab: Lab, content: bytes
) -> None:
    """server-sdk.md 1.6"""
    id, _ = await suspended(http, lab)
    headers = {"Content-Type": "application/json"}
    async with client_as(lab.engine, None) as outside:
        reply = await outside.post(f"{URL}/{id}/signal", content=content, headers=headers)
        assert error_of(reply, 401)["error"] == "missing or invalid Authorization header"
        assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "change", [{"payload": "%"}, {"signal_name": ""}, {"execution_id": NOBODY}], ids=str
)
async def test_a_stranger_learns_what_is_wrong_with_a_valid_token_only(
    http: httpx.AsyncClient, lab: Lab, change: dict[str, Any]
) -> None:
    """server-sdk.md 1.6"""
    id, ticket = await suspended(http, lab)
    wrong = {"waitpoint_token": "k:" + "0" * 64}
    async with client_as(lab.engine, None) as outside:
        url = f"{URL}/{id}/signal"
        error_of(await outside.post(url, json=signal(ticket, **change, **wrong)), 401)
        error_of(await outside.post(url, json=signal(ticket, **change)), 400)
    assert (await http.get(f"{URL}/{id}/state")).json() == "suspended"


REQUIRED = [
    "waitpoint_id",
    "signal_name",
    "signal_category",
    "source_type",
    "source_identity",
    "target_scope",
    "waitpoint_token",
]


@pytest.mark.parametrize("name", REQUIRED)
async def test_a_missing_field_is_422(http: httpx.AsyncClient, lab: Lab, name: str) -> None:
    id, ticket = await suspended(http, lab)
    error_of(await http.post(f"{URL}/{id}/signal", json=without(signal(ticket), name)), 422)
    error_of(await http.post(f"{URL}/{id}/signal", json=signal(ticket, **{name: None})), 422)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"payload": [300]}, 422),
        ({"payload": "%"}, 400),
        ({"waitpoint_id": "nonsense"}, 400),
        ({"signal_id": "nonsense"}, 400),
        ({"dedup_ttl_ms": -1}, 422),
        ({"resume_delay_ms": 1.0}, 422),
        ({"execution_id": NOBODY}, 400),
        ({"signal_name": ""}, 400),
    ],
)
async def test_a_wrong_signal_changes_nothing(
    http: httpx.AsyncClient, lab: Lab, change: dict[str, Any], status: int
) -> None:
    id, ticket = await suspended(http, lab)
    error_of(await http.post(f"{URL}/{id}/signal", json=signal(ticket, **change)), status)
    assert (await http.get(f"{URL}/{id}/state")).json() == "suspended"


async def test_the_limit_of_a_signal(http: httpx.AsyncClient, lab: Lab) -> None:
    """E-T275"""
    id, ticket = await suspended(http, lab)
    limit, headers = 256 * 1024, {"Content-Type": "application/json"}
    url = f"{URL}/{id}/signal"
    large = await http.post(url, content=padded(signal(ticket), limit + 1), headers=headers)
    assert large.status_code == 413
    assert (large.json()["limit_bytes"], large.json()["route"]) == (
        limit,
        "/v1/executions/{id}/signal",
    )
    fits = await http.post(url, content=padded(signal(ticket), limit), headers=headers)
    assert fits.status_code == 200


# -- callers without a token of the server


@pytest.mark.parametrize("caller", [None, tenant()])
async def test_the_token_alone_is_enough_and_nothing_is_revealed(
    http: httpx.AsyncClient, lab: Lab, caller: Identity | None
) -> None:
    id, ticket = await suspended(http, lab)
    async with client_as(lab.engine, caller) as outside:
        assert ticket.token is not None
        wrong = signal(ticket, waitpoint_token=f"{ticket.token.kid}:{'0' * 64}")
        unknown = await outside.post(f"{URL}/{NOBODY}/signal", json=signal(ticket))
        known = await outside.post(f"{URL}/{id}/signal", json=wrong)
        assert unknown.json() == known.json()
        assert unknown.status_code == known.status_code == (401 if caller is None else 400)
        reply = await outside.post(f"{URL}/{id}/signal", json=signal(ticket))
        assert reply.status_code == 200, reply.text
        path = f"{URL}/{id}/pending-waitpoints"
        assert (await outside.get(path)).status_code == (401 if caller is None else 404)


async def test_an_expired_key_is_answered_the_same_for_unknown_executions(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    id, ticket = await suspended(http, lab)
    await lab.engine.keys.rotate("next", "ab" * 32, grace=0)
    lab.clock.advance(2_000)
    async with client_as(lab.engine, None) as outside:
        replies = [
            await outside.post(f"{URL}/{run}/signal", json=signal(ticket)) for run in (id, NOBODY)
        ]
    assert [error_of(reply, 400)["code"] for reply in replies] == ["token_expired"] * 2


# -- many


async def test_signal_many_answers_each_on_its_own(http: httpx.AsyncClient, lab: Lab) -> None:
    """server-sdk.md 10.1, flaw 14: a batch of signals beside those of create and cancel."""
    first, ticket = await suspended(http, lab)
    second, other = await suspended(http, lab)
    signals = [
        signal(ticket, execution_id=first, signal_name="early", idempotency_key="k"),
        signal(ticket, execution_id=first, signal_name="early", idempotency_key="k"),
        signal(ticket, execution_id=first),
        signal(other, execution_id=second, waitpoint_token="k1:" + "0" * 64),
        signal(other, execution_id="nonsense"),
        signal(other, execution_id=str(uuid_of(second))),
    ]
    reply = await http.post("/v1/executions/signal", json={"signals": signals})
    assert reply.status_code == 200, reply.text
    early, repeated, done, forged, nonsense, last = reply.json()["results"]
    assert early["Accepted"]["effect"] == "no_op"
    assert repeated == {"Duplicate": {"existing_signal_id": early["Accepted"]["signal_id"]}}
    assert done["Accepted"]["effect"] == "resume_condition_satisfied"
    assert forged["Refused"]["code"] == "invalid_token"
    assert nonsense["Refused"]["code"] == "invalid_id"
    assert last["Accepted"]["effect"] == "resume_condition_satisfied"


async def test_one_wrong_signal_of_a_batch_is_refused_on_its_own(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    (run, ticket), (other, second) = await suspended(http, lab), await suspended(http, lab)
    large = signal(second, execution_id=other, dedup_ttl_ms=1 << 64)
    signals = [signal(ticket, execution_id=run), large]
    reply = await http.post("/v1/executions/signal", json={"signals": signals})
    good, wrong = reply.json()["results"]
    assert "Accepted" in good
    assert wrong["Refused"]["code"] == "invalid_body"
    misspelled = [signal(ticket, execution_id=run, idempotencykey="k")]
    refused = await http.post("/v1/executions/signal", json={"signals": misspelled})
    assert refused.status_code == 422


async def test_a_batch_of_signals_is_bounded(http: httpx.AsyncClient, lab: Lab) -> None:
    _, ticket = await suspended(http, lab)
    one = signal(ticket, execution_id=NOBODY)
    too_many = await http.post("/v1/executions/signal", json={"signals": [one] * 1001})
    assert error_of(too_many, 400)["code"] == "invalid_input"
    unnamed = await http.post("/v1/executions/signal", json={"signals": [signal(ticket)]})
    error_of(unnamed, 422)

"""Appending to output streams over HTTP (coordination.md 5; server-sdk.md 3.3)."""

from typing import Any

import pytest

from flowfabric.store.clock import ManualClock
from tests.kit.http_work import HttpWorker, error_of


async def _read(worker: HttpWorker, claim: dict[str, Any]) -> list[tuple[str, bytes, str]]:
    page = await worker.engine.streams.read(claim["execution_id"], claim["attempt_index"])
    return [(frame.type, frame.payload, frame.mode.word) for frame in page.frames]


async def test_frames_of_every_form(worker: HttpWorker) -> None:
    claim = await worker.take()
    answer = await worker.do(
        claim,
        "frames",
        frames=[
            {"frame_type": "log", "text": "hello"},
            {"payload_json": {"a": 1}, "correlation_id": "c"},
            {"payload": "AP8=", "mode": "best_effort", "ttl_ms": 1_000},
            {"payload": [1, 2]},
        ],
    )
    assert answer["outcome"] == "appended"
    assert (len(answer["ids"]), answer["frame_count"]) == (4, 4)
    assert [payload for _, payload, _ in await _read(worker, claim)] == [
        b"hello",
        b'{"a":1}',
        b"\x00\xff",
        b"\x01\x02",
    ]
    assert await worker.do(claim, "frames", frames=[]) == {"outcome": "appended", "ids": []}


async def test_summaries_are_merged(worker: HttpWorker) -> None:
    claim = await worker.take()
    for patch in ({"a": 1, "b": 1}, {"b": None}):
        frame = {"mode": "summary", "payload_json": patch}
        answer = await worker.do(claim, "frames", frames=[frame])
    assert answer["summary_version"] == 2
    frames = [{"mode": "summary", "payload_json": {"c": 1}}, {"text": "and a durable one"}]
    assert (await worker.do(claim, "frames", frames=frames))["summary_version"] == 3


async def test_a_frame_without_a_type_has_the_name_of_its_kind(worker: HttpWorker) -> None:
    """C 5.1"""
    claim = await worker.take()
    kinds = ["stdout", "stderr", "event", "blob"]
    frames = [{"text": "x", "kind": kind} for kind in kinds]
    frames += [{"text": "x", "kind": "stdout", "frame_type": "log"}, {"text": "x"}]
    await worker.do(claim, "frames", frames=frames)
    assert [type for type, _, _ in await _read(worker, claim)] == [*kinds, "log", "event"]


async def test_how_many_best_effort_frames_are_kept(worker: HttpWorker) -> None:
    """C 5.1, C-T123: between the floor and the ceiling that the frames name"""
    claim = await worker.take()
    live = {"text": "x", "mode": "best_effort", "ema_alpha": 1.0, "maxlen_floor": 2}
    await worker.do(claim, "frames", frames=[{**live, "maxlen_ceiling": 3}] * 9)
    assert len(await _read(worker, claim)) == 3


async def test_a_repeated_append_appends_once(worker: HttpWorker) -> None:
    claim = await worker.take()
    body = {"frames": [{"text": "once"}], "append_id": 7}
    first = await worker.do(claim, "frames", **body)
    assert await worker.do(claim, "frames", **body) == first
    (result,) = await worker.batch({"op": "frames", "handle": claim["handle"], **body})
    assert result["answer"] == first
    assert len(await _read(worker, claim)) == 1


async def test_frames_of_a_lost_lease(worker: HttpWorker, clock: ManualClock) -> None:
    claim = await worker.take()
    clock.advance(30_000)
    await worker.engine.sweep.once()
    (taken,) = await HttpWorker(worker.engine, worker.http, "w2").claim()
    reply = await worker.post(claim, "frames", frames=[{"text": "late"}])
    assert reply.status_code == 409
    await worker.do(taken, "complete")
    reply = await worker.post(taken, "frames", frames=[{"text": "later"}])
    assert reply.status_code == 409


@pytest.mark.rules
@pytest.mark.parametrize(
    ("frames", "status"),
    [
        ([{}], 400),
        ([{"text": "a", "payload": "AA=="}], 400),
        ([{"payload": "?"}], 400),
        ([{"text": "a", "mode": "loud"}], 422),
        ([{"mode": "summary", "payload_json": [1]}], 400),
        ([{"mode": "summary", "payload_json": {}, "patch_kind": "json-patch"}], 400),
        ([{"text": "a", "kind": "smoke"}], 422),
        ([{"text": "a", "mode": "best_effort", "ttl_ms": 0}], 400),
        ([{"text": "a", "mode": "best_effort", "ema_alpha": 0}], 400),
        ([{"text": "a", "mode": "best_effort", "maxlen_floor": 9, "maxlen_ceiling": 8}], 400),
        ([{"text": "x" * 70_000}], 400),
        ([{"text": "a"}] * 1_001, 422),
        ({}, 422),
        ("a", 422),
    ],
)
async def test_bad_frames_append_nothing(worker: HttpWorker, frames: Any, status: int) -> None:
    claim = await worker.take()
    good: list[Any] = [{"text": "fine"}]
    given = good + frames if isinstance(frames, list) else frames
    assert (await worker.post(claim, "frames", frames=given)).status_code == status
    assert await _read(worker, claim) == []


@pytest.mark.rules
async def test_frames_have_a_limit(worker: HttpWorker) -> None:
    claim = await worker.take()
    frames = [{"text": "x" * 60_000}] * 80
    assert error_of(await worker.post(claim, "frames", frames=frames)) == (413, "payload_too_large")

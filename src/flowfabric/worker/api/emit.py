"""`ctx.emit`: how a handler writes output, which `run.stream()` follows."""

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.text import MAX_NAME, check_text
from flowfabric.core.base.time import parse_span
from flowfabric.core.execution.frame import DEFAULT_TTL, MODES, Encoding, NewFrame, StreamMode
from flowfabric.core.execution.stream import EmitPlace
from flowfabric.worker.api.output import Mode
from flowfabric.worker.api.span import Span
from flowfabric.worker.codec import encode
from flowfabric.worker.run.branches import BranchSpot, inside_step
from flowfabric.worker.run.scope import CallScope


class OutputApi:
    """What `Context` offers for output."""

    def __init__(self, scope: CallScope) -> None:
        self._scope = scope
        self._places: dict[str, EmitPlace] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    def emit(
        self,
        value: object,
        *,
        type: str = "event",
        mode: Mode = "durable",
        ttl: Span | None = None,
        correlation: str | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Appends a frame to the output of this attempt, for `run.stream()`. Text and bytes are
        kept as they are, other values are encoded as results are. The frame is durable when the
        call returns.

        `summary` frames are JSON objects that are merged into the summary of the attempt
        (`run.summary()`): a member that is None is deleted, "__ff_null__" stores a null.
        `best_effort` frames are for watching only: a limited number of the newest ones is kept, and
        all of them expire some time (twice the `ttl`) after the last, unless there are durable
        frames too.

        A handler that runs again after a wait does not repeat itself: what it has emitted in this
        attempt is not emitted again. A new attempt emits only what comes after the last recorded
        call.
        """
        frame = _new_frame(value, type, mode, ttl, correlation)
        if inside_step.get() is not None:  # which is never called again once it is recorded
            return self._append(frame)
        return self._emit(self._scope.branches.spot("emit"), frame)

    async def _emit(self, spot: BranchSpot, frame: NewFrame) -> None:
        scope = self._scope
        # One after the other in a branch: what is emitted later must not be stored earlier.
        turn = self._turns.setdefault(spot.path, asyncio.Lock())
        with scope.branches.under_way():
            async with turn:
                place = self._next_place(spot)
                if not await scope.journal.is_past(spot):
                    await self._append(frame, place)

    async def _append(self, frame: NewFrame, place: EmitPlace | None = None) -> None:
        scope, write = self._scope, secrets.randbits(48)
        scope.check_running()
        await scope.until_available(
            lambda: scope.engine.streams.append(scope.claim, frame, write=write, place=place)
        )

    def _next_place(self, spot: BranchSpot) -> EmitPlace:
        """Never before the last one, also for a coroutine that is awaited late."""
        last = self._places.get(spot.path, EmitPlace(spot.path, 0, 0))
        later = spot.position > last.calls
        place = EmitPlace(spot.path, spot.position, 1) if later else _after(last)
        self._places[spot.path] = place
        return place


def _after(place: EmitPlace) -> EmitPlace:
    return EmitPlace(place.branch, place.calls, place.number + 1)


def _new_frame(
    value: object, type: str, mode: object, ttl: Span | None, correlation: str | None
) -> NewFrame:
    known = MODES.get(mode) if isinstance(mode, str) else None
    if known is None:
        raise Invalid(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if ttl is not None and known is not StreamMode.BEST_EFFORT:
        raise Invalid("only best_effort frames have a ttl")
    payload, encoding = _payload(value)
    return NewFrame(
        payload=payload,
        type=check_text(type, "type", limit=MAX_NAME),
        mode=known,
        encoding=None if known is StreamMode.SUMMARY else encoding,
        correlation=correlation,
        ttl=DEFAULT_TTL if ttl is None else parse_span(ttl, "ttl"),
    )


def _payload(value: object) -> tuple[bytes, Encoding]:
    match value:
        case bytes() | bytearray() | memoryview():
            return bytes(value), Encoding.BINARY
        case str():
            try:
                return value.encode(), Encoding.UTF8
            except UnicodeEncodeError:
                raise Invalid("ctx.emit cannot emit text with a lone surrogate") from None
        case _:
            return _json(value), Encoding.JSON


def _json(value: object) -> bytes:
    try:
        return encode(value)
    except Invalid as error:
        raise Invalid(f"ctx.emit cannot emit this value: {error.detail}") from None

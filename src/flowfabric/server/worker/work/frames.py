"""Output streams: frames that the owner of an attempt appends."""

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.frame import DEFAULT_TTL, MODES, Encoding, NewFrame
from flowfabric.server.http.wire import json_text, read_bytes
from flowfabric.server.worker.work.answers import FramesAppended
from flowfabric.server.worker.work.bodies import AppendFrames, WorkFrame
from flowfabric.server.worker.work.lease import PresentedLease


async def append_frames(lease: PresentedLease, data: AppendFrames) -> FramesAppended:
    frames = [_frame(frame) for frame in data.frames]
    added = await lease.engine.streams.append(lease.fastest, frames, write=data.append_id)
    versions = [each.summary_version for each in added if each.summary_version is not None]
    return FramesAppended(
        outcome="appended",
        ids=[str(each.id) for each in added],
        frame_count=added[-1].frame_count if added else None,
        summary_version=versions[-1] if versions else None,
    )


def _frame(frame: WorkFrame) -> NewFrame:
    payload, encoding = _payload(frame)
    return NewFrame(
        payload=payload,
        type=frame.frame_type,
        kind=frame.kind,
        mode=MODES[frame.mode],
        correlation=frame.correlation_id,
        encoding=encoding,
        at=None if frame.at is None else Millis(frame.at),
        patch=frame.patch_kind,
        ttl=DEFAULT_TTL if frame.ttl_ms is None else Millis(frame.ttl_ms),
        alpha=frame.ema_alpha,
        floor=frame.maxlen_floor,
        ceiling=frame.maxlen_ceiling,
    )


def _payload(frame: WorkFrame) -> tuple[bytes, Encoding | None]:
    """The bytes of a frame in the one form in which they were sent."""
    document = json_text(frame.payload_json)
    match (frame.text, document, frame.payload):
        case (str() as text, None, None):
            return text.encode("utf-8", "surrogatepass"), None
        case (None, bytes(), None):
            return document, Encoding.JSON
        case (None, None, list() | str() as encoded):
            return read_bytes(encoded, "payload"), None
        case _:
            raise Invalid("a frame has one of text, payload_json and payload")

"""What is known about a run whose handler no longer asks for what it has recorded."""

from msgspec import Struct

from flowfabric.core.base.document import Document
from flowfabric.core.base.numbers import check_kind_of
from flowfabric.core.base.text import MAX_NAME, check_text
from flowfabric.core.base.time import Millis

MAX_TRIED = 64
"""How many fingerprints a run remembers; the oldest is forgotten first."""
MAX_MISMATCH = 4_096


class Mismatch(Struct, frozen=True, kw_only=True):
    """What a worker found: the step that is recorded (`expected`) and the one that its code asked
    for (`asked`; empty if it asked for none). `fingerprint` identifies that code, `version` is the
    declared version of the task."""

    message: str
    fingerprint: str
    expected: str = ""
    asked: str = ""
    version: str = ""


class CodeBlock(Document, frozen=True, kw_only=True, omit_defaults=True):
    """The last mismatch of a run and the worker that found it. `tried` are the fingerprints of all
    code that did not fit: workers with such code do not run it again. `returned` counts how often
    such workers have claimed it one after the other, the last time at `epoch`; it is not released
    before `until` because of that."""

    message: str = ""
    expected: str = ""
    asked: str = ""
    version: str = ""
    worker: str = ""
    instance: str = ""
    at: Millis = Millis(0)
    tried: tuple[str, ...] = ()
    returned: int = 0
    epoch: int = 0
    until: Millis | None = None


def check_fingerprint(fingerprint: object) -> str:
    return check_text(fingerprint, "fingerprint", limit=MAX_NAME)


def check_mismatch(mismatch: object) -> Mismatch:
    """The argument if its texts can be stored; Invalid otherwise."""
    checked = check_kind_of(mismatch, Mismatch, "mismatch")
    for what in ("message", "expected", "asked", "version"):
        check_text(getattr(checked, what), what, limit=MAX_MISMATCH)
    check_fingerprint(checked.fingerprint)
    return checked

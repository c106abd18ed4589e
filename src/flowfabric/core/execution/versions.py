"""Versions of a task: a run is pinned to one by a capability that only workers with it offer."""

import re
from urllib.parse import quote

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.text import check_text
from flowfabric.core.execution.model import Route

MAX_VERSION = 64
_PREFIX = "v:"
_VERSION = re.compile(r"[^\s,\x00-\x20\x7f]+")
_PARTS = re.compile(r"\d+|\D+")


def check_version(version: object) -> str:
    """The version of a task: 1 to 64 characters without white space and commas."""
    text = check_text(version, "version", limit=MAX_VERSION)
    if not _VERSION.fullmatch(text):
        raise Invalid(f"{text!r} cannot be a version: no white space, no commas, not empty")
    return text


def version_token(kind: str, version: str) -> str:
    """The capability that pins a run of this task to this version."""
    return f"{_of_task(kind)}{version}"


def version_of(route: Route) -> str | None:
    """The version that a run is pinned to, None if it is pinned to none."""
    if not route.capabilities:  # most have none, and this is asked for every claim
        return None
    prefix = _of_task(route.kind)
    pins = (token for token in route.capabilities if token.startswith(prefix))
    return next((token.removeprefix(prefix) for token in pins), None)


def code_key(route: Route) -> str:
    """The name under which a worker registers the fingerprint of its code for this route."""
    version = version_of(route)
    return route.kind if version is None else version_token(route.kind, version)


def versions_in(capabilities: tuple[str, ...], kind: str) -> list[str]:
    """The versions of a task that a worker with these capabilities offers, oldest first."""
    prefix = _of_task(kind)
    found = [each.removeprefix(prefix) for each in capabilities if each.startswith(prefix)]
    return sorted(found, key=age_of)


def without_versions(capabilities: tuple[str, ...]) -> tuple[str, ...]:
    """The capabilities that people have named."""
    return tuple(token for token in capabilities if not token.startswith(_PREFIX))


def age_of(version: str | None) -> tuple[tuple[bool, int, str], ...]:
    """Sorts versions as people do: none, 1, 2, 10, 10.1, 2024-05-01."""
    parts = _PARTS.findall(version or "")
    return tuple(
        (not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts
    )


def _of_task(kind: str) -> str:
    return f"{_PREFIX}{quote(kind, safe=':.-_/')}@"

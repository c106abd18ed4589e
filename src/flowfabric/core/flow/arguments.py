"""Results of upstreams as arguments: a path says where in the payload each one goes."""

from collections.abc import Mapping

import msgspec


def fill_in(payload: bytes, inputs: Mapping[str, bytes | None]) -> bytes:
    """The payload with the results of upstreams in their places. An upstream without a result
    leaves the payload as it is. A client may name an input freely: if the payload has no such
    place, the last result replaces it."""
    given = {paths: result for paths, result in inputs.items() if result is not None}
    if not given:
        return payload
    try:
        return _filled(payload, given)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, RecursionError):
        return next(reversed(given.values()))


def _filled(payload: bytes, given: Mapping[str, bytes]) -> bytes:
    document = msgspec.json.decode(payload or b"{}")
    for paths, result in given.items():
        value = msgspec.json.decode(result)
        for path in paths.split("\n"):
            *way, last = [_unescaped(part) for part in path.split("/")]
            place = document
            for part in way:
                place = place[int(part)] if isinstance(place, list) else place[part]
            if isinstance(place, list):
                place[int(last)] = value
            else:
                place[last] = value
    return msgspec.json.encode(document)


def escaped(part: object) -> str:
    """As a part of a JSON pointer, on one line."""
    return str(part).replace("~", "~0").replace("/", "~1").replace("\n", "~2")


def _unescaped(part: str) -> str:
    return part.replace("~2", "\n").replace("~1", "/").replace("~0", "~")

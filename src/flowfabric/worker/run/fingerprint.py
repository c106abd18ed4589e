"""The fingerprint of a task's code: equal in all processes that have loaded the same code.

It covers the source of the module that defines the function, the code of the function itself
(modules made at run time have no source), and the declared version.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import blake2b
from types import CodeType
from typing import Any


def fingerprint(function: Callable[..., Any], version: str | None = None) -> str:
    """A digest of the code that a handler was loaded from."""
    inner = inspect.unwrap(function)
    digest = blake2b(digest_size=12)
    for part in (version or "", _module_source(getattr(inner, "__module__", "") or "")):
        digest.update(part.encode("utf-8", "replace") + b"\0")
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    if code is not None:
        for element in _parts(code):
            digest.update(element + b"\0")
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def _module_source(name: str) -> str:
    """Read once, so that a file that a deploy replaces later does not count."""
    module = sys.modules.get(name)
    try:
        return "" if module is None else inspect.getsource(module)
    except (OSError, TypeError):  # made at run time, or compiled
        return ""


def _parts(code: CodeType) -> Iterator[bytes]:
    """What a code object does, without where its file is or which line it is on."""
    yield code.co_name.encode("utf-8", "replace")
    yield code.co_code
    yield " ".join((*code.co_names, *code.co_varnames, *code.co_freevars)).encode(
        "utf-8", "replace"
    )
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        elif isinstance(constant, frozenset):  # its order differs between processes
            yield repr(sorted(map(repr, constant))).encode("utf-8", "replace")
        else:
            yield repr(constant).encode("utf-8", "replace")

"""From a URL to a store."""

from urllib.parse import unquote, urlsplit

from flowfabric.core.base.errors import Invalid, Unavailable
from flowfabric.core.base.text import check_text
from flowfabric.store.clock import Clock
from flowfabric.store.contract import Store

FORMS = "sqlite:///path/to/file.db, sqlite://:memory: or postgresql://user@host/database"


async def open_store(
    url: str, *, clock: Clock | None = None, connections: int | None = None
) -> Store:
    """The store a URL names, with at most so many `connections` where it has any.

    Raises Invalid for a URL that names none and Unavailable when the store cannot be reached;
    neither text ever contains a password."""
    if not isinstance(url, str):
        raise Invalid(f"a store's URL must be text such as {FORMS}")
    check_text(url, "a store's URL")
    scheme, colon, _ = url.partition("://")
    if not colon:
        # Not shown: what is no URL may well be a password.
        raise Invalid(f"that is not a URL; a store's is {FORMS}")
    match scheme:
        case "sqlite":
            from flowfabric.store.sqlite.store import open_sqlite

            return await open_sqlite(sqlite_path(url), clock=clock)
        case "postgresql" | "postgres":
            return await _open_postgres(url, clock, connections)
        case _:
            raise Invalid(f"{scheme[:20]!r} is not a store this engine knows; use {FORMS}")


async def _open_postgres(url: str, clock: Clock | None, connections: int | None) -> Store:
    try:
        from flowfabric.store.postgres.store import open_postgres
        from flowfabric.store.postgres.wires import SIZE
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise Unavailable(
            "the Postgres store needs asyncpg: pip install 'flowfabric[postgres]'"
        ) from None
    return await open_postgres(url, clock=clock, connections=connections or SIZE)


def sqlite_path(url: str) -> str:
    """The file a `sqlite://` URL names, or `:memory:`."""
    rest = url.removeprefix("sqlite://")
    if rest in (":memory:", "/:memory:", ""):
        return ":memory:"
    if not rest.startswith("/"):
        raise Invalid(f"three slashes lead to a file: sqlite:///{rest}")
    path = unquote(urlsplit(url).path.removeprefix("/"))
    if not path or "\0" in path:
        raise Invalid(f"{path[:80]!r} is not the path of a file; use {FORMS}")
    return path

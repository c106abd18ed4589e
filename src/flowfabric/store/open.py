"""Opens the store that a URL names."""

from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flowfabric.core.base.errors import Invalid, Unavailable
from flowfabric.core.base.redact import redact
from flowfabric.core.base.text import check_text
from flowfabric.store.clock import Clock
from flowfabric.store.contract import Store

FORMS = "sqlite:///path/to/file.db, sqlite://:memory: or postgresql://user@host/database"


async def open_store(
    url: str, *, clock: Clock | None = None, connections: int | None = None
) -> Store:
    """The store that a URL names, with at most `connections` connections if it uses any.

    Raises `Invalid` for a URL that names no store, and `Unavailable` if the store cannot be
    reached; neither text ever contains a password."""
    if dialect_of(url) == "sqlite":
        from flowfabric.store.sqlite.store import open_sqlite

        return await open_sqlite(sqlite_path(url), clock=clock)
    from flowfabric.store.postgres.store import open_postgres
    from flowfabric.store.postgres.wires import SIZE

    return await open_postgres(url, clock=clock, connections=connections or SIZE)


def dialect_of(url: str) -> str:
    """`sqlite` or `postgres`, whose package can then be imported."""
    if not isinstance(url, str):
        raise Invalid(f"a store's URL must be text such as {FORMS}")
    check_text(url, "a store's URL")
    scheme, colon, _ = url.partition("://")
    if not colon:
        # The text is not shown, because it may be a password.
        raise Invalid(f"that is not the URL of a store; use {FORMS}")
    match scheme:
        case "sqlite":
            return "sqlite"
        case "postgresql" | "postgres":
            if find_spec("asyncpg") is None:
                raise Unavailable(
                    "the Postgres store needs asyncpg: pip install 'flowfabric[postgres]'"
                )
            return "postgres"
        case "http" | "https":
            raise Invalid(f"this needs the database itself and not a server; use {FORMS}")
        case _:
            raise Invalid(f"{scheme[:20]!r} is not a known store; use {FORMS}")


def sqlite_path(url: str) -> str:
    """The file that a `sqlite://` URL names, or `:memory:`."""
    rest = url.removeprefix("sqlite://")
    if rest in (":memory:", "/:memory:", ""):
        return ":memory:"
    if not rest.startswith("/"):
        raise Invalid(f"a file needs three slashes: sqlite:///{rest}")
    path = unquote(urlsplit(url).path.removeprefix("/"))
    if not path or "\0" in path:
        raise Invalid(f"{path[:80]!r} is not the path of a file; use {FORMS}")
    return path


def shown_url(url: str) -> str:
    """The URL for people: without a password, and of a SQLite file with the whole path, because a
    relative one is another file in another directory."""
    if url.startswith("sqlite://") and (path := sqlite_path(url)) != ":memory:":
        return f"sqlite:///{Path(path).absolute()}"
    return redact(url)

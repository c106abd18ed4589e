"""`flowfabric audit`"""

from typing import Annotated

import msgspec
from typer import Option

from flowfabric.cli.command import Limit
from flowfabric.cli.format import local
from flowfabric.cli.json import Document, document
from flowfabric.cli.output import Cells, Screen
from flowfabric.cli.parse import read_since
from flowfabric.cli.table import Table, pages
from flowfabric.core.access.audit import AuditRecord
from flowfabric.engine.engine import Engine

Since = Annotated[str | None, Option(help="Not before: 2h, 7d, or a moment.")]


def _row(record: AuditRecord) -> Cells:
    detail = {name: value for name, value in record.detail.items() if value is not None}
    return [
        ("at", local(record.at)),
        ("action", record.action),
        ("subject", record.subject),
        ("by", record.by),
        ("detail", msgspec.json.encode(detail).decode() if detail else ""),
    ]


def _json(record: AuditRecord) -> Document:
    found = document(record)
    found.pop("version")
    return found


ACT = Table[AuditRecord](row=_row, json=_json, empty="no audit records")


async def audit(engine: Engine, screen: Screen, since: Since = None, limit: Limit = 1000) -> None:
    """List what was done to tokens and keys, and by whom, oldest first."""
    begin = read_since(since, engine.now())

    async def fetch(after: str | None, most: int) -> list[AuditRecord]:
        return await engine.audit.list(after=after, since=begin, limit=most)

    await ACT.list(screen, pages(fetch, lambda record: record.id, limit))

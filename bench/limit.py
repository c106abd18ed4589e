"""The limit: the store's own statements in batches of a hundred, no engine, no batching, one
caller. The distance to this figure is what the engine adds."""

import secrets
import time

from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.execution.attempt import complete
from flowfabric.core.execution.lease import DEFAULT_TTL, Owner
from flowfabric.core.execution.model import Source, WorkerIdentity
from flowfabric.core.execution.submission import Submission, create
from flowfabric.store.open import open_store
from flowfabric.store.queries import ClaimCall

BATCH = 100
PAYLOAD = b'{"article":"' + b"x" * 436 + b'"}'
RESULT = b'{"ok":true,"rows":"' + b"y" * 70 + b'"}'
_SELF = Owner(source=Source.OPERATOR)


async def run(url: str, seconds: float) -> float:
    """Executions per second, submitted, claimed and completed."""
    store = await open_store(url)
    await store.migrate()
    worker = WorkerIdentity("limit", "limit")
    submission = Submission(kind="noop", payload=PAYLOAD, lane="limit")
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        now = store.clock.now()
        creations = [
            create(submission, new_uuid7(now, secrets.randbits(74)), now) for _ in range(BATCH)
        ]
        await store.submit(creations, now)
        call = ClaimCall(
            id=new_uuid7(now, secrets.randbits(74)),
            worker=worker,
            capabilities=frozenset(),
            lanes=("limit",),
            namespace=None,
            limit=BATCH,
            ttl=DEFAULT_TTL,
        )
        taken = await store.claim(call, store.clock.now())
        now = store.clock.now()
        endings = [complete(item.snapshot, now, _SELF, RESULT) for item in taken]
        done += len(await store.end(endings, now))
    elapsed = time.perf_counter() - began
    await store.close()
    return done / elapsed

"""Submitting when Django's transaction has committed."""

from functools import partial
from typing import ParamSpec, TypeVar

from django.db import transaction

from flowfabric.core.base.errors import Invalid
from flowfabric.worker.api.task import Call, Task, check_task

P = ParamSpec("P")
R = TypeVar("R")


def submit_on_commit(task: Task[P, R] | Call[P, R], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Submits a run once Django's transaction has committed, or at once outside of one. Arguments
    are checked at once.

    If the process dies right after the commit, the run is lost. Where the runs are in the same
    database as the data, submit in the transaction itself instead:
    `task.with_options(connection=connection).submit_sync(…)`.
    """
    check_task(task)
    call = task if isinstance(task, Call) else task.with_options()
    if call.options.connection is not None:
        raise Invalid("a run is submitted in a transaction (connection=) or after it, not both")
    call.check(*args, **kwargs)
    transaction.on_commit(partial(task.submit_sync, *args, **kwargs))

"""Fixtures for tests of applications. They are found by pytest without an import.

They are plain fixtures, so that it does not matter which plugin runs asynchronous tests. Give
`fabric` a value of your own in `conftest.py` to have your application's Fabric on the bench.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from flowfabric import Fabric
    from flowfabric.testing import Bench


@pytest.fixture
def fabric_bench() -> "Iterator[Callable[[Fabric], Bench]]":
    """`fabric_bench(fabric)` puts a Fabric on a bench until the test is over."""
    from flowfabric.testing import Bench

    with ExitStack() as stack:

        def put(fabric: "Fabric") -> Bench:
            made = Bench(fabric)
            stack.enter_context(made.lent())
            return made

        yield put


@pytest.fixture
def fabric(fabric_bench: "Callable[[Fabric], Bench]") -> "Fabric":
    """A fresh Fabric on a store in memory, for tests that define their own tasks."""
    from flowfabric import Fabric

    return fabric_bench(Fabric("sqlite://:memory:")).fabric


@pytest.fixture
def bench(fabric: "Fabric", fabric_bench: "Callable[[Fabric], Bench]") -> "Bench":
    """The bench that `fabric` is on."""
    return fabric_bench(fabric)

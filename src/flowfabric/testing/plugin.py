"""Fixtures for tests of applications. They are found by pytest without an import.

They are plain fixtures, so that it does not matter which plugin runs asynchronous tests. Give
`fabric` a value of your own in `conftest.py` to have your application's Fabric in the harness.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from flowfabric import Fabric
    from flowfabric.testing import Harness


@pytest.fixture
def fabric_harness() -> "Iterator[Callable[[Fabric], Harness]]":
    """`fabric_harness(fabric)` puts a Fabric in a harness until the test is over."""
    from flowfabric.testing import Harness

    with ExitStack() as stack:

        def put(fabric: "Fabric") -> Harness:
            made = Harness(fabric)
            stack.enter_context(made.lent())
            return made

        yield put


@pytest.fixture
def fabric(fabric_harness: "Callable[[Fabric], Harness]") -> "Fabric":
    """A fresh Fabric on a store in memory, for tests that define their own tasks."""
    from flowfabric import Fabric

    return fabric_harness(Fabric("sqlite://:memory:")).fabric


@pytest.fixture
def harness(fabric: "Fabric", fabric_harness: "Callable[[Fabric], Harness]") -> "Harness":
    """The harness that `fabric` is in."""
    return fabric_harness(fabric)

"""Tests of what every store keeps get the same stores as the conformance suite."""

from collections.abc import Callable

import pytest

from tests.conformance.conftest import clock, store

__all__ = ["clock", "store"]


@pytest.fixture
def database(empty_store: Callable[[str], str]) -> str:
    """The URL of an empty Postgres store. Earlier tests may have used it, and connections to it may
    be open: what asks for plans or sessions needs `new_database`."""
    return empty_store("postgres")


@pytest.fixture
def new_database(fresh_database: Callable[..., str], migrated_template: str) -> str:
    """The URL of a Postgres store that no other test has used."""
    return fresh_database(template=migrated_template)

"""The fixtures of the tests of workers: every test gets an empty store of each kind."""

from tests.worker.conftest import behind, bench, clock, place, store_url, wire

__all__ = ["behind", "bench", "clock", "place", "store_url", "wire"]

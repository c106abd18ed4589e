"""The fixtures of the tests of workers: every test gets an empty store of each kind."""

from tests.worker.conftest import bench, wire

__all__ = ["bench", "wire"]

"""Tests of what every store keeps get the same stores as the conformance suite."""

from tests.conformance.conftest import clock, store

__all__ = ["clock", "store"]

"""Tests of what every store keeps get the same fresh stores as the conformance suite."""

from tests.conformance.conftest import clock, migrated_template, store, store_url

__all__ = ["clock", "migrated_template", "store", "store_url"]

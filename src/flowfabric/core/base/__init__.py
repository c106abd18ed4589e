"""Identifiers, time, validation, documents and errors: what every rule is written with."""

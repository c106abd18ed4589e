"""Identifiers, time, validation, documents and errors: the vocabulary of every rule."""

"""A short tour: real worker processes on an embedded store, one of them killed in the middle."""

"""The one way to write: group commit, decide and retry, work after the commit."""

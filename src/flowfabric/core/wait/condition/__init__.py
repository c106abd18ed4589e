"""What has to be heard before a suspended execution goes on.

A condition is a tree. Its truth is a pure function of the tree and of the set of signals heard so
far; order plays no part. So that hearing one more signal never costs more than the tree, what was
heard is kept as one `Tally` per leaf, leaves in pre-order, and each leaf counts only for itself:
two equal leaves never share a count.

A condition that a newer release wrote is read as `Unknown` where this one does not understand it,
and `Unknown` is never true: waiting too long can be mended, going on too early cannot.
"""

from flowfabric.core.wait.condition.check import (
    MAX_DEPTH,
    MAX_LEAVES,
    check_condition,
    check_references,
)
from flowfabric.core.wait.condition.match import Hearing, Sound, blank, hear, possible, satisfied
from flowfabric.core.wait.condition.members import MAX_NESTING, read_condition, write_condition
from flowfabric.core.wait.condition.tree import (
    AllOf,
    AnyOf,
    ByName,
    Condition,
    Count,
    CountKind,
    Matcher,
    OperatorOnly,
    Single,
    TimeoutOnly,
    Unknown,
    Wildcard,
    all_waitpoints,
    any_waitpoint,
    keys_of,
    names_for,
)

__all__ = [
    "MAX_DEPTH",
    "MAX_LEAVES",
    "MAX_NESTING",
    "AllOf",
    "AnyOf",
    "ByName",
    "Condition",
    "Count",
    "CountKind",
    "Hearing",
    "Matcher",
    "OperatorOnly",
    "Single",
    "Sound",
    "TimeoutOnly",
    "Unknown",
    "Wildcard",
    "all_waitpoints",
    "any_waitpoint",
    "blank",
    "check_condition",
    "check_references",
    "hear",
    "keys_of",
    "names_for",
    "possible",
    "read_condition",
    "satisfied",
    "write_condition",
]

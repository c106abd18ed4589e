"""Which signals end a wait.

A condition is a tree. Its truth is a pure function of the tree and of the set of signals that were
received; their order plays no part. So that one more signal never costs more than the tree, what
was received is kept as one `Tally` per leaf, leaves in pre-order, and each leaf counts only for
itself: two equal leaves never share a count.

A condition that a newer release wrote is read as `Unknown` where this one does not understand it,
and `Unknown` is never true: waiting too long can be mended, going on too early cannot.
"""

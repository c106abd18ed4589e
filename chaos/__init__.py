"""Real processes, a real database and real faults, judged by a ledger outside the engine.

`make chaos` runs it: workers are killed, frozen and drained, the network lies, the database
crashes, and one poisoned run kills every worker that takes it. Afterwards four promises are
checked: every acknowledged run ended once, no recorded step ran again, no stale write changed
anything, and nothing is stuck.
"""

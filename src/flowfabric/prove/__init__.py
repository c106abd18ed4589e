"""`flowfabric prove`: the promises of the engine, tried on the user's own database.

A check is a small coroutine that works through the engine as an application does, in a namespace
of its own, and says what it counted and what did not hold.
"""

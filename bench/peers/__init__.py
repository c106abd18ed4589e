"""FlowFabric and other Python systems, measured with the same job in one run.

`make bench-peers` runs it.
"""

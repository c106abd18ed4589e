"""What FlowFabric costs and how fast it is: scenarios on both stores, each figure beside the
reference of the same run. `python -m bench --help`; results in docs/performance.md."""

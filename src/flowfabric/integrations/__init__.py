"""FlowFabric in web frameworks. Each module needs its framework and is imported by name."""

"""No models: FlowFabric's tables are its own. Django sends `post_migrate` to apps that have this
module, and that makes the tables."""

"""Why an execution, or the work of a lane, does not run."""

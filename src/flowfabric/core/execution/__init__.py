"""The life of one execution: submitted, leased, attempted, ended, steered."""

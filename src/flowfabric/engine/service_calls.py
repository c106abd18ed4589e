"""Service calls: which operations there are, and what a database needs before it is used."""

from importlib.metadata import version

from msgspec import Struct

CAPABILITIES = (
    "cancel_execution",
    "change_priority",
    "replay_execution",
    "revoke_lease",
    "read_execution_state",
    "read_execution_info",
    "get_execution_result",
    "budget_admin",
    "quota_admin",
    "rotate_waitpoint_hmac_secret_all",
    "seed_waitpoint_hmac_secret",
    "list_pending_waitpoints",
    "cancel_flow_header",
    "cancel_flow_wait_timeout",
    "cancel_flow_wait_indefinite",
    "ack_cancel_member",
    "claim_for_worker",
    "issue_reclaim_grant",
    "prepare",
    "subscribe_lease_history",
    "subscribe_completion",
    "subscribe_signal_delivery",
    "stream_durable_summary",
    "stream_best_effort_live",
    "register_worker",
    "heartbeat_worker",
    "mark_worker_dead",
    "list_expired_leases",
    "list_workers",
    "release_admission",
    "read_quota_policy_limits",
    "block_execution_for_admission",
    "read_budget_usage_and_limits",
)
"""What the record of the original names and every store of ours does."""


class Capabilities(Struct):
    """Who answers, and which operations exist."""

    family: str
    version: str
    stage: str
    capabilities: dict[str, bool]


class PrepareApplied(Struct, frozen=True, tag=True):
    """This call made the database ready. `description` says what it has seen to: the schema, by an
    engine that was opened without migrating, or the first key."""

    description: str


class PrepareNoOp(Struct, frozen=True, tag=True):
    """The database was ready, and this engine knew it or has found it so."""


def capabilities_of(store: str) -> Capabilities:
    """The record of an engine on a store of this name."""
    known = {**dict.fromkeys(CAPABILITIES, True), "subscribe_instance_tags": False}
    return Capabilities(store, version("flowfabric"), "production", known)

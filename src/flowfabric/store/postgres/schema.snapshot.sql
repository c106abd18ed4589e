table access_token.name text not null
table access_token.version integer not null
table access_token.doc bytea not null
table admission.at bigint not null
table admission.count integer not null
table admission.quota text not null
table admission.key text not null
table attempt.id uuid not null
table attempt.index integer not null
table attempt.doc bytea not null
table audit.id text not null
table audit.version integer not null
table audit.kept_until bigint not null
table audit.doc bytea not null
table budget.version bigint not null
table budget.next_reset_at bigint
table budget.name text not null
table budget.parent text
table budget.scope text
table budget.scope_id text
table budget.doc bytea not null
table charge.until bigint not null
table charge.budget text not null
table charge.key text not null
table charge.doc bytea not null
table deadline.at bigint not null
table deadline.id uuid not null
table dedup.until bigint not null
table dedup.id uuid not null
table dedup.namespace text not null
table dedup.key text not null
table dedup_record.until bigint
table dedup_record.id uuid not null
table dedup_record.key bytea not null
table dedup_record.doc bytea not null
table done.rank bigint not null
table done.ended_at bigint not null
table done.started_at bigint
table done.trim_at bigint
table done.id uuid not null
table done.claim uuid
table done.worker integer
table done.version integer not null
table done.epoch integer not null
table done.attempt integer
table done.flags smallint not null
table done.start smallint not null
table done.outcome smallint not null
table done.pending smallint
table done.life bytea
table done.result bytea
table duty.until bigint not null
table duty.name text not null
table duty.holder text not null
table edge.flow uuid not null
table edge.id uuid not null
table edge.upstream uuid not null
table edge.downstream uuid not null
table edge.outcome smallint
table edge.doc bytea not null
table event.seq bigint not null identity
table event.at bigint not null
table event.id uuid not null
table event.epoch integer not null
table event.worker integer
table event.attempt integer
table event.kind smallint not null
table event.detail bytea
table event.namespace text
table execution.created_at bigint not null
table execution.id uuid not null
table execution.flow uuid
table execution.route integer not null
table execution.policy bytea
table execution.facts bytea
table execution.payload bytea not null
table flow.created_at bigint not null
table flow.ended_at bigint
table flow.id uuid not null
table flow.stamp uuid not null
table flow.version integer not null
table flow.namespace text not null
table flow.kind text not null
table flow.state text not null
table flow.doc bytea not null
table flow_outbox.flow uuid not null
table flow_outbox.id uuid not null
table flow_outbox.number integer not null
table flow_outbox.kind smallint not null
table flow_outbox.outcome smallint
table flow_outbox.spared boolean not null
table flow_tag.id uuid not null
table flow_tag.key text not null
table flow_tag.value text not null
table forgotten.seq bigint not null
table forgotten.one smallint not null
table frame.ms bigint not null
table frame.seq bigint not null
table frame.number bigint not null
table frame.id uuid not null
table frame.attempt integer not null
table frame.mode smallint not null
table frame.head bytea not null
table frame.payload bytea not null
table frame_gap.ms bigint not null
table frame_gap.seq bigint not null
table frame_gap.id uuid not null
table frame_gap.attempt integer not null
table frame_gap.mode smallint not null
table keyring.one smallint not null
table keyring.version integer not null
table keyring.doc bytea not null
table lane.name text not null
table lane.version bigint not null
table lane.state smallint not null
table lane.concurrency integer
table lane.doc bytea
table lease.rank bigint not null
table lease.started_at bigint not null
table lease.expires_at bigint not null
table lease.times_out_at bigint
table lease.renewed_at bigint
table lease.id uuid not null
table lease.claim uuid not null
table lease.worker integer not null
table lease.version integer not null
table lease.epoch integer not null
table lease.attempt integer not null
table lease.flags smallint not null
table lease.start smallint not null
table lease.life bytea
table lease.queue bigint
table lease.route integer not null
table ledger.execution uuid not null
table ledger.budget text not null
table ledger.doc bytea not null
table meta.key text not null
table meta.value bytea not null
table parked.rank bigint not null
table parked.timeout bigint
table parked.due_at bigint
table parked.since bigint
table parked.id uuid not null
table parked.version integer not null
table parked.epoch integer not null
table parked.attempt integer not null
table parked.flags smallint not null
table parked.start smallint not null
table parked.gate smallint not null
table parked.life bytea
table parked.note bytea
table parked.queue bigint
table presence.namespace text not null
table presence.instance text not null
table presence.expires_at bigint not null
table presence.doc bytea not null
table presence.version bigint not null
table progress.at bigint not null
table progress.id uuid not null
table progress.percent integer
table progress.message text
table progress.attempt integer not null
table progress.state_value bytea
table queue.id bigint not null
table queue.turn bigint not null
table queue.quota text not null
table queue.key text not null
table queue.uses bytea not null
table quota.version bigint not null
table quota.name text not null
table quota.doc bytea not null
table ready.rank bigint not null
table ready.timeout bigint
table ready.held_until bigint not null
table ready.id uuid not null
table ready.route integer not null
table ready.version integer not null
table ready.epoch integer not null
table ready.attempt integer not null
table ready.flags smallint not null
table ready.start smallint not null
table ready.lost smallint
table ready.life bytea
table ready.held_for text
table ready.queue bigint
table reservation.id uuid not null
table reservation.execution uuid not null
table reservation.epoch integer not null
table reservation.doc bytea not null
table route.number integer not null
table route.namespace text not null
table route.lane text not null
table route.kind text not null
table route.capabilities text not null
table schedule.name text not null
table schedule.version integer not null
table schedule.next_at bigint
table schedule.doc bytea not null
table signal.id uuid not null
table signal.waitpoint uuid not null
table signal.suspension uuid
table signal.number integer not null
table signal.doc bytea not null
view snapshot.id uuid
view snapshot.created_at bigint
view snapshot.exec_route integer
view snapshot.policy bytea
view snapshot.facts bytea
view snapshot.flow uuid
view snapshot.place text
view snapshot.version integer
view snapshot.epoch integer
view snapshot.rank bigint
view snapshot.flags smallint
view snapshot.attempt integer
view snapshot.start smallint
view snapshot.life bytea
view snapshot.timeout bigint
view snapshot.held_until bigint
view snapshot.held_for text
view snapshot.lost smallint
view snapshot.claim uuid
view snapshot.worker integer
view snapshot.started_at bigint
view snapshot.expires_at bigint
view snapshot.times_out_at bigint
view snapshot.renewed_at bigint
view snapshot.gate smallint
view snapshot.due_at bigint
view snapshot.since bigint
view snapshot.note bytea
view snapshot.outcome smallint
view snapshot.ended_at bigint
view snapshot.pending smallint
view snapshot.result bytea
table step.id uuid not null
table step.generation integer not null
table step.occurrence integer not null
table step.position integer not null
table step.name text not null
table step.doc bytea not null
table stream.expires_at bigint
table stream.id uuid not null
table stream.attempt integer not null
table stream.version integer not null
table stream.doc bytea not null
table stream.summary bytea
table submission_inbox.id uuid not null
table submission_inbox.at bigint not null
table submission_inbox.kind text not null
table submission_inbox.namespace text not null
table submission_inbox.lane text not null
table submission_inbox.options bytea not null
table submission_inbox.payload bytea not null
table subscription.version bigint not null
table subscription.name text not null
table subscription.namespace text
table subscription.doc bytea not null
table tag.at bigint not null
table tag.id uuid not null
table tag.key text not null
table tag.value text not null
table waitpoint.id uuid not null
table waitpoint.waitpoint uuid not null
table waitpoint.doc bytea not null
table waitpoint.attempt integer
table webhook.version bigint not null
table webhook.name text not null
table webhook.namespace text
table webhook.doc bytea not null
table worker.number integer not null
table worker.id text not null
table worker.instance text not null
table admission with (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_cost_delay=0)
table budget with (fillfactor=50)
table deadline with (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_cost_delay=0)
table edge with (fillfactor=70)
table flow with (fillfactor=50)
table flow_outbox with (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_cost_delay=0)
table lease with (fillfactor=70, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_cost_delay=0)
table parked with (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_cost_delay=0)
table presence with (fillfactor=50)
table quota with (fillfactor=50)
table ready with (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_cost_delay=0)
table stream with (fillfactor=70)
table submission_inbox with (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_cost_delay=0)
constraint access_token_pkey PRIMARY KEY (name)
constraint access_token_version CHECK ((version >= 1))
constraint admission_count CHECK ((count > 0))
constraint admission_pkey PRIMARY KEY (quota, key, at)
constraint attempt_index CHECK ((index >= 0))
constraint attempt_pkey PRIMARY KEY (id, index)
constraint audit_pkey PRIMARY KEY (id)
constraint audit_version CHECK ((version >= 1))
constraint budget_pkey PRIMARY KEY (name)
constraint budget_scope CHECK (((scope IS NULL) = (scope_id IS NULL)))
constraint budget_version CHECK ((version >= 1))
constraint charge_pkey PRIMARY KEY (budget, key)
constraint deadline_pkey PRIMARY KEY (id)
constraint dedup_pkey PRIMARY KEY (namespace, key)
constraint dedup_record_pkey PRIMARY KEY (id, key)
constraint done_attempt CHECK ((attempt >= 0))
constraint done_epoch CHECK ((epoch >= 0))
constraint done_lease CHECK ((((claim IS NULL) = (worker IS NULL)) AND ((claim IS NULL) = (started_at IS NULL))))
constraint done_outcome CHECK (((outcome >= 0) AND (outcome <= 4)))
constraint done_pending CHECK (((pending >= 0) AND (pending <= 4)))
constraint done_pkey PRIMARY KEY (id)
constraint done_start CHECK (((start >= 0) AND (start <= 4)))
constraint done_version CHECK ((version >= 1))
constraint duty_pkey PRIMARY KEY (name)
constraint edge_outcome CHECK (((outcome >= 0) AND (outcome <= 4)))
constraint edge_pkey PRIMARY KEY (flow, id)
constraint event_epoch CHECK ((epoch >= 0))
constraint event_kind CHECK ((kind > 0))
constraint event_pkey PRIMARY KEY (seq)
constraint execution_pkey PRIMARY KEY (id)
constraint flow_pkey PRIMARY KEY (id)
constraint flow_version CHECK ((version >= 1))
constraint chore_kind CHECK ((kind > 0))
constraint chore_outcome CHECK (((outcome >= 0) AND (outcome <= 4)))
constraint flow_outbox_pkey PRIMARY KEY (flow, id, number, kind)
constraint flow_tag_pkey PRIMARY KEY (id, key)
constraint forgotten_one CHECK ((one = 1))
constraint forgotten_pkey PRIMARY KEY (one)
constraint frame_mode CHECK (((mode >= 0) AND (mode <= 2)))
constraint frame_pkey PRIMARY KEY (id, attempt, ms, seq)
constraint frame_seq CHECK ((seq >= 1))
constraint frame_gap_mode CHECK (((mode >= 0) AND (mode <= 2)))
constraint frame_gap_pkey PRIMARY KEY (id, attempt, mode)
constraint keyring_one CHECK ((one = 1))
constraint keyring_pkey PRIMARY KEY (one)
constraint keyring_version CHECK ((version >= 1))
constraint lane_concurrency CHECK ((concurrency >= 1))
constraint lane_pkey PRIMARY KEY (name)
constraint lane_state CHECK (((state >= 0) AND (state <= 2)))
constraint lane_version CHECK ((version >= 0))
constraint lease_attempt CHECK ((attempt >= 0))
constraint lease_epoch CHECK ((epoch >= 1))
constraint lease_expires_at CHECK ((expires_at >= started_at))
constraint lease_pkey PRIMARY KEY (id)
constraint lease_start CHECK (((start >= 0) AND (start <= 4)))
constraint lease_version CHECK ((version >= 1))
constraint ledger_pkey PRIMARY KEY (execution, budget)
constraint meta_pkey PRIMARY KEY (key)
constraint parked_attempt CHECK ((attempt >= 0))
constraint parked_epoch CHECK ((epoch >= 0))
constraint parked_gate CHECK ((((gate >= 0) AND (gate <= 9)) OR (gate = 20)))
constraint parked_pkey PRIMARY KEY (id)
constraint parked_start CHECK (((start >= 0) AND (start <= 4)))
constraint parked_suspended CHECK ((((gate = 20) = (note IS NOT NULL)) AND ((gate = 20) = (since IS NOT NULL))))
constraint parked_version CHECK ((version >= 1))
constraint presence_pkey PRIMARY KEY (namespace, instance)
constraint presence_version CHECK ((version >= 1))
constraint progress_pkey PRIMARY KEY (id, attempt)
constraint queue_id CHECK ((id >= 0))
constraint queue_pkey PRIMARY KEY (quota, id)
constraint quota_pkey PRIMARY KEY (name)
constraint quota_version CHECK ((version >= 1))
constraint ready_attempt CHECK ((attempt >= 0))
constraint ready_epoch CHECK ((epoch >= 0))
constraint ready_hold CHECK (((held_until > 0) OR (held_for IS NULL)))
constraint ready_lost CHECK (((lost IS NULL) OR ((lost = ANY (ARRAY[0, 1])) AND (start = 3))))
constraint ready_start CHECK (((start >= 0) AND (start <= 4)))
constraint ready_version CHECK ((version >= 1))
constraint reservation_pkey PRIMARY KEY (id)
constraint route_pkey PRIMARY KEY (number)
constraint schedule_pkey PRIMARY KEY (name)
constraint schedule_version_check CHECK ((version >= 1))
constraint signal_number CHECK ((number >= 1))
constraint signal_pkey PRIMARY KEY (id, number)
constraint step_generation CHECK ((generation >= 0))
constraint step_occurrence CHECK ((occurrence >= 0))
constraint step_pkey PRIMARY KEY (id, generation, name, occurrence)
constraint stream_attempt CHECK ((attempt >= 0))
constraint stream_pkey PRIMARY KEY (id, attempt)
constraint stream_version CHECK ((version >= 1))
constraint submission_inbox_kind_check CHECK (((octet_length(kind) >= 1) AND (octet_length(kind) <= 256)))
constraint submission_inbox_lane_check CHECK ((lane ~ '^[ -~]{1,64}$'::text))
constraint submission_inbox_namespace_check CHECK (((octet_length(namespace) >= 1) AND (octet_length(namespace) <= 256)))
constraint submission_inbox_pkey PRIMARY KEY (id)
constraint subscription_pkey PRIMARY KEY (name)
constraint subscription_version CHECK ((version >= 1))
constraint tag_pkey PRIMARY KEY (id, key)
constraint waitpoint_pkey PRIMARY KEY (id, waitpoint)
constraint webhook_pkey PRIMARY KEY (name)
constraint webhook_version CHECK ((version >= 1))
constraint worker_pkey PRIMARY KEY (number)
CREATE UNIQUE INDEX access_token_pkey ON flowfabric.access_token USING btree (name)
CREATE INDEX admission_at ON flowfabric.admission USING btree (quota, at)
CREATE UNIQUE INDEX admission_pkey ON flowfabric.admission USING btree (quota, key, at)
CREATE UNIQUE INDEX attempt_pkey ON flowfabric.attempt USING btree (id, index)
CREATE INDEX audit_kept ON flowfabric.audit USING btree (kept_until)
CREATE UNIQUE INDEX audit_pkey ON flowfabric.audit USING btree (id)
CREATE INDEX budget_attached ON flowfabric.budget USING btree (scope, scope_id, name) WHERE (scope IS NOT NULL)
CREATE INDEX budget_next_reset_at ON flowfabric.budget USING btree (next_reset_at, name) WHERE (next_reset_at IS NOT NULL)
CREATE UNIQUE INDEX budget_pkey ON flowfabric.budget USING btree (name)
CREATE INDEX charge_until ON flowfabric.charge USING btree (until)
CREATE UNIQUE INDEX charge_pkey ON flowfabric.charge USING btree (budget, key)
CREATE INDEX deadline_at ON flowfabric.deadline USING btree (at)
CREATE UNIQUE INDEX deadline_pkey ON flowfabric.deadline USING btree (id)
CREATE INDEX dedup_until ON flowfabric.dedup USING btree (until)
CREATE UNIQUE INDEX dedup_pkey ON flowfabric.dedup USING btree (namespace, key)
CREATE UNIQUE INDEX dedup_record_pkey ON flowfabric.dedup_record USING btree (id, key)
CREATE INDEX done_ended_at ON flowfabric.done USING brin (ended_at) WITH (autosummarize='on')
CREATE INDEX done_failed ON flowfabric.done USING btree (ended_at, id) WHERE (outcome = 1)
CREATE INDEX done_outcome ON flowfabric.done USING btree (outcome) WHERE (outcome <> 0)
CREATE INDEX done_trim_at ON flowfabric.done USING btree (trim_at) WHERE (trim_at IS NOT NULL)
CREATE UNIQUE INDEX done_pkey ON flowfabric.done USING btree (id)
CREATE UNIQUE INDEX duty_pkey ON flowfabric.duty USING btree (name)
CREATE INDEX edge_downstream ON flowfabric.edge USING btree (flow, downstream, id)
CREATE INDEX edge_upstream ON flowfabric.edge USING btree (flow, upstream, id)
CREATE UNIQUE INDEX edge_pkey ON flowfabric.edge USING btree (flow, id)
CREATE INDEX event_id ON flowfabric.event USING btree (id)
CREATE INDEX event_registry ON flowfabric.event USING btree (seq) WHERE (id = '00000000-0000-0000-0000-000000000000'::uuid)
CREATE UNIQUE INDEX event_pkey ON flowfabric.event USING btree (seq)
CREATE INDEX execution_created_at ON flowfabric.execution USING btree (created_at)
CREATE INDEX execution_flow ON flowfabric.execution USING btree (flow, id) WHERE (flow IS NOT NULL)
CREATE UNIQUE INDEX execution_pkey ON flowfabric.execution USING btree (id)
CREATE INDEX flow_created_at ON flowfabric.flow USING btree (created_at, id)
CREATE INDEX flow_ended_at ON flowfabric.flow USING btree (ended_at) WHERE (ended_at IS NOT NULL)
CREATE UNIQUE INDEX flow_pkey ON flowfabric.flow USING btree (id)
CREATE UNIQUE INDEX flow_outbox_pkey ON flowfabric.flow_outbox USING btree (flow, id, number, kind)
CREATE INDEX flow_tag_value ON flowfabric.flow_tag USING btree (key, value, id)
CREATE UNIQUE INDEX flow_tag_pkey ON flowfabric.flow_tag USING btree (id, key)
CREATE UNIQUE INDEX forgotten_pkey ON flowfabric.forgotten USING btree (one)
CREATE UNIQUE INDEX frame_pkey ON flowfabric.frame USING btree (id, attempt, ms, seq)
CREATE UNIQUE INDEX frame_gap_pkey ON flowfabric.frame_gap USING btree (id, attempt, mode)
CREATE UNIQUE INDEX keyring_pkey ON flowfabric.keyring USING btree (one)
CREATE INDEX lane_capped ON flowfabric.lane USING btree (name) WHERE (concurrency IS NOT NULL)
CREATE UNIQUE INDEX lane_pkey ON flowfabric.lane USING btree (name)
CREATE INDEX lease_queue ON flowfabric.lease USING btree (queue) WHERE (queue IS NOT NULL)
CREATE UNIQUE INDEX lease_pkey ON flowfabric.lease USING btree (id)
CREATE INDEX ledger_budget ON flowfabric.ledger USING btree (budget)
CREATE UNIQUE INDEX ledger_pkey ON flowfabric.ledger USING btree (execution, budget)
CREATE UNIQUE INDEX meta_pkey ON flowfabric.meta USING btree (key)
CREATE INDEX parked_code ON flowfabric.parked USING btree (queue) WHERE ((gate = 2) AND (queue IS NOT NULL))
CREATE INDEX parked_continuing ON flowfabric.parked USING btree (queue, rank, id) WHERE ((queue IS NOT NULL) AND (start = 4))
CREATE INDEX parked_due_at ON flowfabric.parked USING btree (due_at) WHERE (due_at IS NOT NULL)
CREATE INDEX parked_queue ON flowfabric.parked USING btree (queue, rank, id) WHERE (queue IS NOT NULL)
CREATE INDEX parked_since ON flowfabric.parked USING btree (since, id) WHERE (gate = 20)
CREATE UNIQUE INDEX parked_pkey ON flowfabric.parked USING btree (id)
CREATE UNIQUE INDEX presence_pkey ON flowfabric.presence USING btree (namespace, instance)
CREATE UNIQUE INDEX progress_pkey ON flowfabric.progress USING btree (id, attempt)
CREATE INDEX queue_key ON flowfabric.queue USING btree (quota, key, id)
CREATE INDEX queue_number ON flowfabric.queue USING btree (id)
CREATE INDEX queue_turn ON flowfabric.queue USING btree (quota, turn, id)
CREATE UNIQUE INDEX queue_pkey ON flowfabric.queue USING btree (quota, id)
CREATE UNIQUE INDEX quota_pkey ON flowfabric.quota USING btree (name)
CREATE INDEX ready_begun ON flowfabric.ready USING btree (route, rank, id) WHERE (start <> 0)
CREATE INDEX ready_lost_id ON flowfabric.ready USING btree (id) WHERE (lost IS NOT NULL)
CREATE INDEX ready_queue ON flowfabric.ready USING btree (queue) WHERE (queue IS NOT NULL)
CREATE INDEX ready_rank ON flowfabric.ready USING btree (route, rank, id)
CREATE INDEX ready_suspect ON flowfabric.ready USING btree (route, rank, id) WHERE (((flags)::integer & 64) <> 0)
CREATE UNIQUE INDEX ready_id ON flowfabric.ready USING btree (id)
CREATE INDEX reservation_execution ON flowfabric.reservation USING btree (execution)
CREATE UNIQUE INDEX reservation_pkey ON flowfabric.reservation USING btree (id)
CREATE INDEX route_lane ON flowfabric.route USING btree (lane)
CREATE UNIQUE INDEX route_name ON flowfabric.route USING btree (namespace, lane, kind, hashtextextended(capabilities, (0)::bigint))
CREATE UNIQUE INDEX route_pkey ON flowfabric.route USING btree (number)
CREATE INDEX schedule_next ON flowfabric.schedule USING btree (next_at) WHERE (next_at IS NOT NULL)
CREATE UNIQUE INDEX schedule_pkey ON flowfabric.schedule USING btree (name)
CREATE INDEX signal_suspension ON flowfabric.signal USING btree (id, suspension, number) WHERE (suspension IS NOT NULL)
CREATE INDEX signal_waitpoint ON flowfabric.signal USING btree (id, waitpoint, number)
CREATE UNIQUE INDEX signal_pkey ON flowfabric.signal USING btree (id, number)
CREATE UNIQUE INDEX step_pkey ON flowfabric.step USING btree (id, generation, name, occurrence)
CREATE INDEX stream_expires_at ON flowfabric.stream USING btree (expires_at) WHERE (expires_at IS NOT NULL)
CREATE UNIQUE INDEX stream_pkey ON flowfabric.stream USING btree (id, attempt)
CREATE INDEX submission_inbox_order ON flowfabric.submission_inbox USING btree (at, id)
CREATE UNIQUE INDEX submission_inbox_pkey ON flowfabric.submission_inbox USING btree (id)
CREATE UNIQUE INDEX subscription_pkey ON flowfabric.subscription USING btree (name)
CREATE UNIQUE INDEX tag_pkey ON flowfabric.tag USING btree (id, key)
CREATE UNIQUE INDEX waitpoint_of_attempt ON flowfabric.waitpoint USING btree (waitpoint) WHERE (attempt IS NOT NULL)
CREATE UNIQUE INDEX waitpoint_pkey ON flowfabric.waitpoint USING btree (id, waitpoint)
CREATE UNIQUE INDEX webhook_pkey ON flowfabric.webhook USING btree (name)
CREATE INDEX worker_instance ON flowfabric.worker USING btree (instance)
CREATE UNIQUE INDEX worker_name ON flowfabric.worker USING btree (id, instance)
CREATE UNIQUE INDEX worker_pkey ON flowfabric.worker USING btree (number)

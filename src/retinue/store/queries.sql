-- name: insert_task
INSERT INTO tasks VALUES (:task_id, :title, :description, 'open', :at, :at, 0);

-- name: insert_run
INSERT INTO runs VALUES (:run_id, :task_id, 'running', 0, :at, '');

-- name: task
SELECT t.*, r.run_id, r.outcome, r.next_step
FROM tasks t JOIN runs r ON r.task_id = t.task_id
WHERE t.task_id = :task_id;

-- name: tasks_page
SELECT t.*, r.run_id, r.outcome, r.next_step
FROM tasks t JOIN runs r ON r.task_id = t.task_id
WHERE (t.state = 'open' OR NOT :open_only)
    AND (:text = '' OR instr(lower(t.title || ' ' || t.task_id), lower(:text)))
ORDER BY t.created_at DESC, t.rowid DESC LIMIT :limit;

-- name: last_seqs
SELECT task_id, last_seq FROM tasks;

-- name: bump_task
UPDATE tasks SET last_seq = :last_seq, updated_at = :at WHERE task_id = :task_id;

-- name: close_task
UPDATE tasks SET state = 'closed' WHERE task_id = :task_id;

-- name: end_run
UPDATE runs SET outcome = :outcome, ended_at = :at WHERE run_id = :run_id;

-- name: bump_run
UPDATE runs SET next_step = max(next_step, :next_step) WHERE run_id = :run_id;

-- name: insert_event
INSERT INTO events VALUES (
    :task_id, :seq, :ts, :type, :run_id, :sub_agent_id, :step_idx, :attempt, :by,
    :contract_sha256, :summary, :payload
);

-- name: events_after
SELECT * FROM events WHERE task_id = :task_id AND seq > :after ORDER BY seq LIMIT :limit;

-- name: insert_subagent
INSERT INTO sub_agents VALUES (
    :task_id, :sub_agent_id, :run_id, :step_idx, :context_json, :contract_sha256,
    'created', 0, 0, 0, 0, '', '', 0, 0, '', '', :at, '', '', 0
);

-- name: subagent
SELECT * FROM sub_agents WHERE task_id = :task_id AND sub_agent_id = :sub_agent_id;

-- name: open_subagents
SELECT * FROM sub_agents WHERE task_id = :task_id AND state <> 'closed' ORDER BY step_idx;

-- name: line
-- Successors have the name of the first as a prefix, so the primary key bounds the search.
SELECT * FROM sub_agents
WHERE task_id = :task_id AND (
    sub_agent_id = :origin
    OR (
        sub_agent_id > :prefix || '-' AND sub_agent_id < :prefix || '.'
        AND json_extract(context_json, '$.continues') = :origin
    )
)
ORDER BY step_idx;

-- name: first_open
SELECT 1 FROM sub_agents WHERE task_id = :task_id AND state <> 'closed' LIMIT :limit;

-- name: one_unsettled
SELECT 1 FROM sub_agents WHERE task_id = :task_id AND state <> 'closed'
    AND (settled_seq = 0 OR (state IN ('created', 'running') AND NOT blocked)) LIMIT 1;

-- name: waiting_subagents
SELECT sub_agent_id FROM sub_agents
WHERE task_id = :task_id AND state = 'created' AND cancel_by = ''
ORDER BY step_idx LIMIT :limit;

-- name: merging_subagents
-- Subagents that work or are about to, and whose output will be merged.
SELECT sub_agent_id, state, json_extract(context_json, '$.outputs.owns') AS owns
FROM sub_agents
WHERE task_id = :task_id AND state <> 'closed' AND state IN ('created', 'running')
    AND (state = 'running' OR cancel_by = '')
    AND json_extract(context_json, '$.outputs.integration') = 'merge'
ORDER BY step_idx;

-- name: newest_subagents
SELECT * FROM sub_agents WHERE task_id = :task_id ORDER BY step_idx DESC LIMIT :limit;

-- name: newest_closed
SELECT * FROM sub_agents WHERE task_id = :task_id AND state = 'closed'
ORDER BY step_idx DESC LIMIT :limit;

-- name: slot_holders
-- Only names that begin with 'root' can be root agents; other contracts are not parsed.
SELECT sub_agent_id FROM sub_agents
WHERE task_id = :task_id AND state <> 'closed' AND state IN ('created', 'running') AND NOT blocked
    AND (sub_agent_id NOT LIKE 'root%' OR json_extract(context_json, '$.agent') <> 'root');

-- name: update_standing
UPDATE sub_agents SET
    state = :state, attempt = :attempt, in_attempt = :in_attempt, tries = :tries,
    blocked = :blocked, cancel_by = :cancel_by, cancel_reason = :cancel_reason,
    cancelled = :cancelled, settled_seq = :settled_seq, final_status = :final_status,
    close_reason = :close_reason, started_at = :started_at, ended_at = :ended_at,
    node_losses = :node_losses
WHERE task_id = :task_id AND sub_agent_id = :sub_agent_id;

-- name: insert_attempt
INSERT INTO attempts VALUES (
    :task_id, :sub_agent_id, :number, :boot_id, :pid, :start_ticks, :started_at,
    :started_monotonic_ms, '', '', :place
);

-- name: end_attempt
INSERT INTO attempts VALUES (
    :task_id, :sub_agent_id, :number, '', 0, 0, :ended_at, 0, :ended_at, :result_json, ''
)
ON CONFLICT DO UPDATE SET ended_at = excluded.ended_at, result_json = excluded.result_json;

-- name: forget_processes
UPDATE attempts SET boot_id = '', place = '' WHERE ended_at = '';

-- name: attempts
SELECT * FROM attempts WHERE task_id = :task_id AND sub_agent_id = :sub_agent_id ORDER BY number;

-- name: put_result
INSERT OR REPLACE INTO results VALUES (
    :task_id, :sub_agent_id, :result_json, :status, :input_tokens, :output_tokens, :estimated_cost
);

-- name: result
SELECT result_json FROM results WHERE task_id = :task_id AND sub_agent_id = :sub_agent_id;

-- name: usage_totals
-- Parts to be added up: the ledger, and the claims of subagents that are not in the ledger.
WITH counted AS (
    SELECT sub_agent_id, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
        total(cost) AS cost
    FROM ledger WHERE task_id = :task_id GROUP BY sub_agent_id
)
SELECT sub_agent_id = 'root' AS is_root, count(*) AS subagents,
    sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens, total(cost) AS cost
FROM counted GROUP BY is_root
UNION ALL
SELECT 0, count(*), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0),
    total(estimated_cost)
FROM results WHERE task_id = :task_id AND sub_agent_id <> 'root'
    AND sub_agent_id NOT IN (SELECT sub_agent_id FROM counted)
UNION ALL
SELECT 1, 1, input_tokens, output_tokens, estimated_cost
FROM results WHERE task_id = :task_id AND sub_agent_id = 'root'
    AND sub_agent_id NOT IN (SELECT sub_agent_id FROM counted);

-- name: unpriced_models
-- A model's name comes from a child's request: limit their number and length.
SELECT DISTINCT sub_agent_id = 'root' AS is_root, substr(model, 1, 80) AS model
FROM ledger WHERE task_id = :task_id AND cost IS NULL ORDER BY model LIMIT 20;

-- name: next_settled
-- The index is searched from the last result delivered in order; earlier ones are skipped.
SELECT s.sub_agent_id FROM sub_agents s
WHERE s.task_id = :task_id AND s.settled_seq > coalesce((
    SELECT d.settled_seq FROM deliveries d
    WHERE d.task_id = :task_id AND d.consumer = :consumer AND d.in_order = 1
    ORDER BY d.settled_seq DESC LIMIT 1
), 0) AND s.settled_seq > 0 AND (s.blocked OR s.state NOT IN ('created', 'running')) AND NOT EXISTS (
    SELECT 1 FROM deliveries d
    WHERE d.task_id = :task_id AND d.consumer = :consumer AND d.settled_seq = s.settled_seq
) AND s.sub_agent_id NOT IN (SELECT value FROM json_each(:held))
ORDER BY s.settled_seq LIMIT 1;

-- name: insert_delivery
INSERT OR IGNORE INTO deliveries VALUES (
    :task_id, :consumer, :settled_seq, :sub_agent_id, :in_order
);

-- name: deliveries_of
SELECT * FROM deliveries WHERE task_id = :task_id;

-- name: delete_delivery
DELETE FROM deliveries
WHERE task_id = :task_id AND consumer = :consumer AND settled_seq = :settled_seq;

-- name: reopen_deliveries
UPDATE deliveries SET in_order = 0
WHERE task_id = :task_id AND consumer = :consumer AND settled_seq > :settled_seq;

-- name: insert_key
INSERT INTO spawn_keys VALUES (:task_id, :key, :request_sha256, :sub_agent_ids);

-- name: keys_of
SELECT * FROM spawn_keys WHERE task_id = :task_id;

-- name: key
SELECT * FROM spawn_keys WHERE task_id = :task_id AND key = :key;

-- name: insert_gate
INSERT INTO gates VALUES (:task_id, :gate_id, :sub_agent_id, 'open', :questions, '');

-- name: answer_gate
UPDATE gates SET state = :state, answer = :answer
WHERE task_id = :task_id AND gate_id = :gate_id AND state = 'open';

-- name: gates
SELECT * FROM gates WHERE task_id = :task_id ORDER BY gate_id;

-- name: put_booking
INSERT INTO ledger VALUES (
    :entry_id, :task_id, :sub_agent_id, :attempt, :ts, :provider, :model, :input_tokens,
    :output_tokens, :cached_tokens, :reasoning_tokens, :cost, :estimated, :status, :seconds
) ON CONFLICT (entry_id) DO UPDATE SET
    ts = excluded.ts, model = excluded.model, input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens, cached_tokens = excluded.cached_tokens,
    reasoning_tokens = excluded.reasoning_tokens, cost = excluded.cost,
    estimated = excluded.estimated, status = excluded.status, seconds = excluded.seconds;

-- name: last_booking
SELECT last_insert_rowid() AS entry_id;

-- name: strike_booking
DELETE FROM ledger WHERE entry_id = :entry_id AND status = 'open';

-- name: cut_open_bookings
UPDATE ledger SET status = 'cut' WHERE status = 'open';

-- name: bookings_of
SELECT * FROM ledger WHERE task_id = :task_id ORDER BY entry_id;

-- name: spent
SELECT count(*) AS turns, coalesce(sum(input_tokens), 0) AS input_tokens,
    coalesce(sum(output_tokens), 0) AS output_tokens,
    coalesce(sum(cached_tokens), 0) AS cached_tokens,
    coalesce(sum(reasoning_tokens), 0) AS reasoning_tokens,
    total(cost) AS cost, count(cost) AS priced, coalesce(max(estimated), 0) AS estimated
FROM ledger
WHERE task_id = :task_id AND sub_agent_id = :sub_agent_id
    AND (:attempt = 0 OR attempt = :attempt) AND status <> 'open';

-- name: delegations
-- All delegated subagents of a task, with what each one spent itself.
SELECT s.sub_agent_id, json_extract(s.context_json, '$.delegated_by') AS delegated_by, s.state,
    json_extract(s.context_json, '$.budget') AS budget,
    count(l.entry_id) AS turns, coalesce(sum(l.input_tokens), 0) AS input_tokens,
    coalesce(sum(l.output_tokens), 0) AS output_tokens,
    coalesce(sum(l.cached_tokens), 0) AS cached_tokens,
    coalesce(sum(l.reasoning_tokens), 0) AS reasoning_tokens,
    total(l.cost) AS cost, coalesce(max(l.estimated), 0) AS estimated
FROM sub_agents s LEFT JOIN ledger l
    ON l.task_id = s.task_id AND l.sub_agent_id = s.sub_agent_id AND l.status <> 'open'
WHERE s.task_id = :task_id AND json_extract(s.context_json, '$.delegated_by') <> ''
GROUP BY s.task_id, s.sub_agent_id;

-- name: count_waiting
SELECT count(*) AS waiting FROM sub_agents
WHERE task_id = :task_id AND state = 'created' AND cancel_by = ''
    AND json_extract(context_json, '$.delegated_by') = :parent;

-- name: delegates_of
SELECT * FROM sub_agents
WHERE task_id = :task_id AND json_extract(context_json, '$.delegated_by') = :sub_agent_id
ORDER BY step_idx;

-- name: lanes
SELECT s.*, json_extract(s.context_json, '$.step.title') AS title, e.ts AS settled_at
FROM sub_agents s LEFT JOIN events e ON e.task_id = s.task_id AND e.seq = s.settled_seq
WHERE s.task_id = :task_id AND s.step_idx >= :first ORDER BY s.step_idx LIMIT :limit;

-- name: lanes_open
SELECT s.*, json_extract(s.context_json, '$.step.title') AS title, e.ts AS settled_at
FROM sub_agents s LEFT JOIN events e ON e.task_id = s.task_id AND e.seq = s.settled_seq
WHERE s.task_id = :task_id AND s.state <> 'closed'
ORDER BY s.step_idx LIMIT :limit OFFSET :first;

-- name: lanes_failed
SELECT s.*, json_extract(s.context_json, '$.step.title') AS title, e.ts AS settled_at
FROM sub_agents s LEFT JOIN events e ON e.task_id = s.task_id AND e.seq = s.settled_seq
WHERE s.task_id = :task_id AND s.final_status = 'failed'
ORDER BY s.step_idx LIMIT :limit OFFSET :first;

-- name: lane
SELECT s.*, json_extract(s.context_json, '$.step.title') AS title, e.ts AS settled_at
FROM sub_agents s LEFT JOIN events e ON e.task_id = s.task_id AND e.seq = s.settled_seq
WHERE s.task_id = :task_id AND s.sub_agent_id = :sub_agent_id;

-- name: stints
SELECT sub_agent_id, number, started_at, ended_at, place,
    CASE result_json WHEN '' THEN '' ELSE json_extract(result_json, '$.status') END AS status,
    CASE result_json WHEN '' THEN NULL
        ELSE json_extract(result_json, '$.execution_time_seconds') END AS seconds
FROM attempts
WHERE task_id = :task_id AND sub_agent_id IN (SELECT value FROM json_each(:names))
ORDER BY number;

-- name: lane_details
SELECT s.sub_agent_id,
    json_extract(s.context_json, '$.agent') AS agent,
    json_extract(s.context_json, '$.delegated_by') AS parent,
    (
        SELECT group_concat(
            coalesce(json_extract(value, '$.agent.name') || ' ', '')
            || json_extract(value, '$.model'), ', '
        )
        FROM json_each(s.context_json, '$.team.members')
    ) AS models,
    substr(json_extract(r.result_json, '$.answer'), 1, 200) AS answer,
    substr(json_extract(r.result_json, '$.error'), 1, 200) AS error,
    -- Before there is a result, what passed the gateway until now.
    coalesce(r.input_tokens, l.input_tokens) AS input_tokens,
    coalesce(r.output_tokens, l.output_tokens) AS output_tokens,
    coalesce(r.estimated_cost, l.cost) AS estimated_cost,
    l.unpriced
FROM sub_agents s
LEFT JOIN results r USING (task_id, sub_agent_id)
LEFT JOIN (
    SELECT sub_agent_id, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
        sum(cost) AS cost, count(*) > count(cost) AS unpriced
    FROM ledger
    WHERE task_id = :task_id AND sub_agent_id IN (SELECT value FROM json_each(:names))
    GROUP BY sub_agent_id
) l ON l.sub_agent_id = s.sub_agent_id
WHERE s.task_id = :task_id AND s.sub_agent_id IN (SELECT value FROM json_each(:names));

-- name: plans_of_task
SELECT seq, payload FROM events
WHERE task_id = :task_id AND seq > :after AND seq <= :last AND type = 'run.integration_order'
ORDER BY seq;

-- name: standings_by_name
SELECT * FROM sub_agents
WHERE task_id = :task_id AND sub_agent_id IN (SELECT value FROM json_each(:names));

-- name: event
SELECT * FROM events WHERE task_id = :task_id AND seq = :seq;

-- name: events_matching
SELECT * FROM events
WHERE task_id = :task_id AND seq < :before AND seq >= :floor
    AND (:sub_agent_id = '' OR sub_agent_id = :sub_agent_id COLLATE NOCASE)
    AND (:kinds = '[]' OR EXISTS (SELECT 1 FROM json_each(:kinds) k WHERE events.type GLOB k.value))
    AND (:text = '' OR instr(lower(summary), lower(:text)) OR instr(type, lower(:text)))
ORDER BY seq DESC LIMIT :limit;

-- name: standings
SELECT state, blocked, cancelled, settled_seq > 0 AS settled, count(*) AS number FROM sub_agents
WHERE task_id = :task_id AND state <> 'closed' GROUP BY 1, 2, 3, 4;

-- name: ended_badly
SELECT count(*) AS failed, coalesce(sum(cancelled), 0) AS cancelled FROM sub_agents
WHERE task_id = :task_id AND final_status = 'failed';

-- name: count_subagents
SELECT count(*) AS number, max(rowid) AS last FROM sub_agents WHERE task_id = :task_id;

-- name: count_later_subagents
-- By rowid: only new rows are read, however long the history is.
SELECT count(CASE WHEN task_id = :task_id THEN 1 END) AS number, max(rowid) AS last
FROM sub_agents WHERE rowid > :last;

-- name: open_gates
SELECT * FROM gates WHERE task_id = :task_id AND state = 'open' ORDER BY gate_id LIMIT :limit;

-- name: open_gates_of_root
SELECT g.* FROM gates g JOIN tasks t ON t.task_id = g.task_id
WHERE g.state = 'open' AND t.state = 'open' ORDER BY t.created_at, g.gate_id;

-- name: newest_bookings
SELECT * FROM ledger WHERE task_id = :task_id AND sub_agent_id = :sub_agent_id
ORDER BY entry_id DESC LIMIT :limit;

-- name: extent_of_costs
SELECT (julianday(max(ts)) - julianday(min(ts))) * 86400 AS seconds FROM ledger
WHERE (:task_id = '' OR task_id = :task_id) AND status <> 'open';

-- name: costs
-- As in usage_totals: the ledger, and the claims of subagents that are not in the ledger.
WITH spent AS (
    SELECT task_id, sub_agent_id, provider || '/' || substr(model, 1, 80) AS model,
        substr(ts, 1, :length) AS period, count(*) AS requests, sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens, total(cost) AS cost,
        count(*) - count(cost) AS unpriced
    FROM ledger WHERE (:task_id = '' OR task_id = :task_id) AND status <> 'open'
    GROUP BY task_id, sub_agent_id, model, period
    UNION ALL
    SELECT r.task_id, r.sub_agent_id, 'as reported',
        substr(coalesce(nullif(s.ended_at, ''), s.created_at), 1, :length), 0, r.input_tokens,
        r.output_tokens, coalesce(r.estimated_cost, 0), 0
    FROM results r JOIN sub_agents s USING (task_id, sub_agent_id)
    WHERE (:task_id = '' OR r.task_id = :task_id)
        AND (r.input_tokens OR r.output_tokens OR r.estimated_cost) AND NOT EXISTS (
            SELECT 1 FROM ledger l
            WHERE l.task_id = r.task_id AND l.sub_agent_id = r.sub_agent_id
        )
)
SELECT spent.*, t.title, coalesce(
    (
        SELECT group_concat(DISTINCT json_extract(value, '$.agent.name'))
        FROM json_each(s.context_json, '$.team.members')
    ),
    json_extract(s.context_json, '$.agent'), ''
) AS agent
FROM spent JOIN sub_agents s USING (task_id, sub_agent_id) JOIN tasks t USING (task_id);

-- name: requests_after
SELECT * FROM ledger
WHERE (:task_id = '' OR task_id = :task_id) AND entry_id > :after AND status <> 'open'
ORDER BY entry_id LIMIT :limit;

-- name: insert_deletion
INSERT INTO deleted_tasks VALUES (
    :task_id, :title, :created_at, :deleted_at, :by, :subagents, :events,
    :input_tokens, :output_tokens, :estimated_cost, 1
);

-- name: complete_deletion
UPDATE deleted_tasks SET purging = 0 WHERE task_id = :task_id AND purging;

-- name: last_deletion
SELECT * FROM deleted_tasks WHERE task_id = :task_id ORDER BY deleted_at DESC LIMIT 1;

-- name: deleted_without_task
-- An id can be used again after its deletion.
SELECT DISTINCT task_id FROM deleted_tasks
WHERE task_id NOT IN (SELECT task_id FROM tasks);

-- name: purge_ledger
DELETE FROM ledger WHERE task_id = :task_id;

-- name: purge_results
DELETE FROM results WHERE task_id = :task_id;

-- name: purge_attempts
DELETE FROM attempts WHERE task_id = :task_id;

-- name: purge_gates
DELETE FROM gates WHERE task_id = :task_id;

-- name: purge_deliveries
DELETE FROM deliveries WHERE task_id = :task_id;

-- name: purge_spawn_keys
DELETE FROM spawn_keys WHERE task_id = :task_id;

-- name: purge_events
DELETE FROM events WHERE task_id = :task_id;

-- name: purge_subagents
DELETE FROM sub_agents WHERE task_id = :task_id;

-- name: purge_runs
DELETE FROM runs WHERE task_id = :task_id;

-- name: purge_task
DELETE FROM tasks WHERE task_id = :task_id;

-- name: task_ids
SELECT task_id FROM tasks
WHERE lower(substr(task_id, 1, length(:prefix))) = lower(:prefix)
ORDER BY created_at DESC, rowid DESC LIMIT :limit;

-- name: subagent_ids
SELECT sub_agent_id FROM sub_agents
WHERE task_id = :task_id AND lower(substr(sub_agent_id, 1, length(:prefix))) = lower(:prefix)
ORDER BY step_idx DESC LIMIT :limit;

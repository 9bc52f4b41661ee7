-- Database of a root. One process writes it. Events are the history, and all other rows except
-- deliveries, spawn_keys and the ledger can be derived from them.

CREATE TABLE tasks (
    task_id TEXT PRIMARY KEY COLLATE NOCASE,
    title TEXT NOT NULL,
    description TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'closed')),
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    last_seq INTEGER NOT NULL
);

CREATE INDEX tasks_newest ON tasks (created_at);

CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    task_id TEXT NOT NULL REFERENCES tasks COLLATE NOCASE,
    outcome TEXT NOT NULL CHECK (outcome IN ('running', 'succeeded', 'failed')),
    next_step INTEGER NOT NULL,
    started_at TEXT NOT NULL,
    ended_at TEXT NOT NULL
);

CREATE INDEX runs_of_task ON runs (task_id);

CREATE TABLE sub_agents (
    task_id TEXT NOT NULL REFERENCES tasks COLLATE NOCASE,
    sub_agent_id TEXT NOT NULL COLLATE NOCASE,
    run_id TEXT NOT NULL REFERENCES runs,
    step_idx INTEGER NOT NULL,
    context_json TEXT NOT NULL,
    contract_sha256 TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    in_attempt INTEGER NOT NULL,
    tries INTEGER NOT NULL,
    blocked INTEGER NOT NULL,
    cancel_by TEXT NOT NULL,
    cancel_reason TEXT NOT NULL,
    cancelled INTEGER NOT NULL,
    settled_seq INTEGER NOT NULL,
    final_status TEXT NOT NULL,
    close_reason TEXT NOT NULL,
    created_at TEXT NOT NULL,
    started_at TEXT NOT NULL,
    ended_at TEXT NOT NULL,
    node_losses INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (task_id, sub_agent_id)
);

CREATE UNIQUE INDEX sub_agents_in_order ON sub_agents (task_id, step_idx);
CREATE INDEX sub_agents_open ON sub_agents (task_id, step_idx) WHERE state <> 'closed';
CREATE INDEX sub_agents_waiting ON sub_agents (task_id, step_idx) WHERE state = 'created';
CREATE INDEX sub_agents_settled ON sub_agents (task_id, settled_seq) WHERE settled_seq > 0;
CREATE INDEX sub_agents_failed ON sub_agents (task_id) WHERE final_status = 'failed';

CREATE TRIGGER contracts_are_immutable
BEFORE UPDATE OF context_json, contract_sha256, step_idx, run_id ON sub_agents
BEGIN
    SELECT RAISE(ABORT, 'a contract is never changed');
END;

-- Record of each deleted task. Rows of a task can be deleted only in the transaction that records
-- the deletion: `purging` is 1 while it runs, and 0 when it commits.
CREATE TABLE deleted_tasks (
    task_id TEXT NOT NULL COLLATE NOCASE,
    title TEXT NOT NULL,
    created_at TEXT NOT NULL,
    deleted_at TEXT NOT NULL,
    by TEXT NOT NULL,
    subagents INTEGER NOT NULL,
    events INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    estimated_cost REAL NOT NULL,
    purging INTEGER NOT NULL,
    PRIMARY KEY (task_id, deleted_at)
);

CREATE TRIGGER deletions_are_kept BEFORE DELETE ON deleted_tasks
BEGIN
    SELECT RAISE(ABORT, 'the record of a deletion is never deleted');
END;

CREATE TRIGGER subagents_are_kept
BEFORE DELETE ON sub_agents
WHEN NOT EXISTS (SELECT 1 FROM deleted_tasks d WHERE d.task_id = OLD.task_id AND d.purging)
BEGIN
    SELECT RAISE(ABORT, 'a subagent is never deleted');
END;

CREATE TABLE attempts (
    task_id TEXT NOT NULL COLLATE NOCASE,
    sub_agent_id TEXT NOT NULL COLLATE NOCASE,
    number INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    pid INTEGER NOT NULL,
    start_ticks INTEGER NOT NULL,
    started_at TEXT NOT NULL,
    started_monotonic_ms INTEGER NOT NULL,
    ended_at TEXT NOT NULL,
    result_json TEXT NOT NULL,
    place TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (task_id, sub_agent_id, number),
    FOREIGN KEY (task_id, sub_agent_id) REFERENCES sub_agents
) WITHOUT ROWID;

CREATE TABLE results (
    task_id TEXT NOT NULL COLLATE NOCASE,
    sub_agent_id TEXT NOT NULL COLLATE NOCASE,
    result_json TEXT NOT NULL,
    status TEXT NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    estimated_cost REAL NOT NULL,
    PRIMARY KEY (task_id, sub_agent_id),
    FOREIGN KEY (task_id, sub_agent_id) REFERENCES sub_agents
);

-- Covers the totals of a task: the texts of thousands of results are megabytes.
CREATE INDEX results_usage
ON results (task_id, sub_agent_id, input_tokens, output_tokens, estimated_cost);

CREATE TABLE events (
    task_id TEXT NOT NULL COLLATE NOCASE,
    seq INTEGER NOT NULL,
    ts TEXT NOT NULL,
    type TEXT NOT NULL,
    run_id TEXT NOT NULL,
    sub_agent_id TEXT,
    step_idx INTEGER,
    attempt INTEGER NOT NULL,
    by TEXT NOT NULL,
    contract_sha256 TEXT,
    summary TEXT NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (task_id, seq)
) WITHOUT ROWID;

CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON events
BEGIN
    SELECT RAISE(ABORT, 'an event is never changed');
END;

CREATE TRIGGER events_are_not_deleted BEFORE DELETE ON events
WHEN NOT EXISTS (SELECT 1 FROM deleted_tasks d WHERE d.task_id = OLD.task_id AND d.purging)
BEGIN
    SELECT RAISE(ABORT, 'an event is never deleted');
END;

CREATE TABLE deliveries (
    task_id TEXT NOT NULL COLLATE NOCASE,
    consumer TEXT NOT NULL,
    settled_seq INTEGER NOT NULL,
    sub_agent_id TEXT NOT NULL COLLATE NOCASE,
    in_order INTEGER NOT NULL, -- 0: delivered out of order
    PRIMARY KEY (task_id, consumer, settled_seq)
) WITHOUT ROWID;

CREATE TABLE spawn_keys (
    task_id TEXT NOT NULL COLLATE NOCASE,
    key TEXT NOT NULL,
    request_sha256 TEXT NOT NULL,
    sub_agent_ids TEXT NOT NULL,
    PRIMARY KEY (task_id, key)
) WITHOUT ROWID;

CREATE TABLE gates (
    task_id TEXT NOT NULL COLLATE NOCASE,
    gate_id TEXT NOT NULL,
    sub_agent_id TEXT NOT NULL COLLATE NOCASE,
    state TEXT NOT NULL CHECK (state IN ('open', 'approved', 'rejected')),
    questions TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (task_id, gate_id)
) WITHOUT ROWID;

-- Model requests that were let through, one row each. No event contains them.
CREATE TABLE ledger (
    entry_id INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL COLLATE NOCASE,
    sub_agent_id TEXT NOT NULL COLLATE NOCASE,
    attempt INTEGER NOT NULL,
    ts TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL, -- part of the input
    reasoning_tokens INTEGER NOT NULL, -- part of the output
    cost REAL, -- NULL: the price is unknown
    estimated INTEGER NOT NULL, -- 1: tokens are estimated, because the provider did not report them
    status TEXT NOT NULL, -- completed, cut, replayed; open: in progress
    seconds REAL, -- from asking the provider to the end of its answer; NULL: not measured
    FOREIGN KEY (task_id, sub_agent_id) REFERENCES sub_agents
);

CREATE INDEX ledger_of_subagent ON ledger (task_id, sub_agent_id, attempt);

-- Format 2: the audit log is a hash chain (`chain.rs`).
-- A row without a hash was written by a program of format 1; the next writer chains it.
ALTER TABLE outbox ADD COLUMN hash TEXT;
CREATE INDEX outbox_time ON outbox (happened_at);

-- The last row that has a hash, and the last that was pruned. All zeros before the first.
ALTER TABLE ledger ADD COLUMN chained INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN head TEXT NOT NULL
    DEFAULT '0000000000000000000000000000000000000000000000000000000000000000';
ALTER TABLE ledger ADD COLUMN anchor INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN anchor_hash TEXT NOT NULL
    DEFAULT '0000000000000000000000000000000000000000000000000000000000000000';

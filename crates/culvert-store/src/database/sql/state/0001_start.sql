-- Format 1 of the state: documents with what is enforced about them, and the audit outbox.
-- Written in SQLite's words; `dialect.rs` says them in PostgreSQL's.

CREATE TABLE document (
    id TEXT NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    account TEXT NOT NULL,
    revision INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    -- Keys, references and topics as JSON, so that one row is the whole document.
    links TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX document_page ON document (kind, account, id);

CREATE TABLE document_key (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    id TEXT NOT NULL REFERENCES document (id) ON DELETE CASCADE,
    PRIMARY KEY (kind, name, value)
) STRICT;
CREATE INDEX document_key_id ON document_key (id);

-- Deferred, because one write may remove a document before what points at it. Commit looks by
-- itself before the end, so that one refused write does not fail those committed with it.
CREATE TABLE document_ref (
    from_id TEXT NOT NULL REFERENCES document (id) ON DELETE CASCADE,
    field TEXT NOT NULL,
    to_id TEXT NOT NULL REFERENCES document (id) DEFERRABLE INITIALLY DEFERRED,
    blocks INTEGER NOT NULL,
    PRIMARY KEY (from_id, field, to_id)
) STRICT;
CREATE INDEX document_ref_to ON document_ref (to_id, blocks);

CREATE TABLE document_topic (
    account TEXT NOT NULL,
    kind TEXT NOT NULL,
    id TEXT NOT NULL REFERENCES document (id) ON DELETE CASCADE,
    destination TEXT NOT NULL,
    PRIMARY KEY (account, kind, id, destination)
) STRICT;
CREATE INDEX document_topic_id ON document_topic (id);

CREATE TABLE outbox (
    seq INTEGER NOT NULL PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    account TEXT NOT NULL,
    kind TEXT NOT NULL,
    happened_at INTEGER NOT NULL,
    -- JSON: pairs of subscription and destination.
    audience TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT;

-- One row. Every commit locks it first, so commits happen one after the other on every node.
CREATE TABLE ledger (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    revision INTEGER NOT NULL,
    outbox INTEGER NOT NULL
) STRICT;
INSERT INTO ledger (one, revision, outbox) VALUES (1, 0, 0);

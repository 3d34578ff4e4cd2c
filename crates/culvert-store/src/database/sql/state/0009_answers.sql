-- Format 9: the answer to each request with an idempotency key (`answers.rs`), until a sweep removes them.
CREATE TABLE answer (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    kept_at INTEGER NOT NULL,
    -- The commit that wrote it, which is that of the object.
    revision INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    body TEXT NOT NULL,
    -- Encrypted, and removed long before the rest.
    secret TEXT
) STRICT;
CREATE INDEX answer_owner ON answer (owner, bytes);
CREATE INDEX answer_age ON answer (kept_at);
CREATE INDEX answer_secret ON answer (kept_at) WHERE secret IS NOT NULL;

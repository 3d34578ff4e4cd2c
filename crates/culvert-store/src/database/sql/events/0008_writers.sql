-- Format 8: the latest transaction of each process that writes to the queue, so that it can ask whether one
-- was committed. PostgreSQL only; empty in a file.
CREATE TABLE writer (
    id TEXT NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL,
    opened_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

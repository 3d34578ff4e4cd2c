-- Format 6 of the queue: statistics (`queue/statistics.rs`). Times are seconds since 1970.

-- What a node counted in one step, of all subjects.
CREATE TABLE statistic_frame (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    step INTEGER NOT NULL,
    at INTEGER NOT NULL,
    node TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX statistic_frame_place ON statistic_frame (step, at, node);

-- What a node counted of one subject in several steps.
CREATE TABLE statistic_chunk (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    step INTEGER NOT NULL,
    subject TEXT NOT NULL,
    at INTEGER NOT NULL,
    node TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX statistic_chunk_place ON statistic_chunk (subject, step, at, node);
CREATE INDEX statistic_chunk_time ON statistic_chunk (step, at, bytes);

-- What each node last said of itself.
CREATE TABLE node_note (
    node TEXT NOT NULL PRIMARY KEY,
    noted_at INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

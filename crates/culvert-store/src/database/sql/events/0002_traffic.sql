-- Format 2 of the queue: traffic events that are kept for replays.
-- Written in SQLite's words; `dialect.rs` says them in PostgreSQL's.

CREATE TABLE traffic (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Of the events in it, nanoseconds since 1970.
    first_at INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX traffic_first ON traffic (first_at);
CREATE INDEX traffic_last ON traffic (last_at);
-- Their sum is read without the bodies.
CREATE INDEX traffic_size ON traffic (id, last_at, bytes);

-- Format 1 of the queue: batches, cursors, dead letters.
-- Written in SQLite's words; `dialect.rs` says them in PostgreSQL's.

CREATE TABLE batch (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    destination TEXT NOT NULL,
    -- 0 audit, 1 traffic.
    class INTEGER NOT NULL,
    -- Where it stands in its line. The pieces of a replaced batch share its place.
    place INTEGER NOT NULL,
    part INTEGER NOT NULL,
    events INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    first_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    -- Both null unless leased.
    owner TEXT,
    lease_until INTEGER,
    why TEXT,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX batch_line ON batch (destination, class, place, part, id);

CREATE TABLE cursor (
    name TEXT NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT;

CREATE TABLE dead_letter (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    destination TEXT NOT NULL,
    class INTEGER NOT NULL,
    events INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    first_at INTEGER NOT NULL,
    buried_at INTEGER NOT NULL,
    burial_class TEXT NOT NULL,
    burial_code TEXT NOT NULL,
    burial_text TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX dead_letter_destination ON dead_letter (destination, id);
CREATE INDEX dead_letter_age ON dead_letter (buried_at);

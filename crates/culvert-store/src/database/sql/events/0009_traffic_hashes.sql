-- Format 9 of the queue: hashes of the pieces of the traffic log, which outlive them. A program of an older
-- format writes and removes none.

CREATE TABLE traffic_hash (
    piece INTEGER NOT NULL PRIMARY KEY,
    -- Of the events in it, nanoseconds since 1970.
    last_at INTEGER NOT NULL,
    -- In base64, SHA-256 of a zero byte, the times of the first and the last event (nanoseconds since 1970, 8 bytes each,
    -- big-endian), and the stored body.
    hash TEXT NOT NULL
) STRICT;

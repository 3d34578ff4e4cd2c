-- Format 9 of the queue: hashes of the pieces of the traffic log, which outlive them by two hours. A program of an older
-- format writes and removes none.

CREATE TABLE traffic_hash (
    piece INTEGER NOT NULL PRIMARY KEY,
    -- Of the events in it, nanoseconds since 1970.
    last_at INTEGER NOT NULL,
    -- SHA-256 of a zero byte and the stored body, in base64.
    hash TEXT NOT NULL
) STRICT;

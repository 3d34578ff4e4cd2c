-- Format 6 of the queue: messages captured beside traffic events. A program of an older format neither reads nor
-- removes them; the next one removes those that are too old.

CREATE TABLE traffic_body (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    event TEXT NOT NULL,
    -- Of the event, nanoseconds since 1970.
    happened_at INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX traffic_body_event ON traffic_body (event);
-- Their sum is read without the bodies.
CREATE INDEX traffic_body_size ON traffic_body (id, happened_at, bytes);

-- Format 3 of the queue: bodies apart from what changes with every lease, so that a lease does not write
-- them again. A program of an older format does not find them, and does not start.

CREATE TABLE body (
    id INTEGER PRIMARY KEY REFERENCES batch (id) ON DELETE CASCADE,
    stored BLOB NOT NULL
) STRICT;
INSERT INTO body (id, stored) SELECT id, body FROM batch;
ALTER TABLE batch DROP COLUMN body;

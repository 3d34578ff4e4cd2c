-- Format 10 of the queue: which values the events of a piece of the traffic log have, so that searches do not read pieces
-- without the wanted ones. A program of an older format writes none; then the piece is read.

CREATE TABLE traffic_summary (
    piece INTEGER NOT NULL PRIMARY KEY REFERENCES traffic (id) ON DELETE CASCADE,
    body BLOB NOT NULL
) STRICT;

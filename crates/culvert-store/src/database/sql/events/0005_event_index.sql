-- Format 5 of the queue: which endpoints the events of a piece of the traffic log are of
-- (`event_index.rs`). Of a piece that is not indexed nothing is known: a program of an older format wrote it.
ALTER TABLE traffic ADD COLUMN is_indexed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX traffic_unindexed ON traffic (id) WHERE is_indexed = 0;

CREATE TABLE traffic_endpoint (
    endpoint TEXT NOT NULL,
    piece INTEGER NOT NULL REFERENCES traffic (id) ON DELETE CASCADE,
    PRIMARY KEY (endpoint, piece)
) STRICT, WITHOUT ROWID;
CREATE INDEX traffic_endpoint_piece ON traffic_endpoint (piece);

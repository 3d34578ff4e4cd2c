-- Format 5: audit events are found by the object that they are about, by who acted, and by kind
-- (`event_index.rs`). Texts are empty where an event has no object or nobody acted. A row without them was
-- written by a program of an older format; a background task adds them.
ALTER TABLE outbox ADD COLUMN object_id TEXT;
ALTER TABLE outbox ADD COLUMN actor_id TEXT;
CREATE INDEX outbox_object ON outbox (object_id, seq);
CREATE INDEX outbox_actor ON outbox (actor_id, seq);
CREATE INDEX outbox_kind ON outbox (kind, seq);

-- Format 4 of the queue: how many dead letters each destination has of each class, so that one that is
-- buried makes room among its own, at the same cost however many there are; and what nodes tell each other
-- of destinations and live tails.
-- Written in SQLite's words; `dialect.rs` says them in PostgreSQL's.

CREATE TABLE dead_line (
    destination TEXT NOT NULL,
    class INTEGER NOT NULL,
    letters INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    -- Events that made room for others since the line began.
    forgotten INTEGER NOT NULL,
    PRIMARY KEY (destination, class)
) STRICT, WITHOUT ROWID;
CREATE INDEX dead_letter_line ON dead_letter (destination, class, id);
INSERT INTO dead_line (destination, class, letters, bytes, forgotten)
    SELECT destination, class, count(*), sum(bytes), 0 FROM dead_letter GROUP BY destination, class;

-- What a node has seen of a destination.
CREATE TABLE destination_health (
    destination TEXT NOT NULL,
    node TEXT NOT NULL,
    noted_at INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (destination, node)
) STRICT, WITHOUT ROWID;

-- Live tails that want the traffic of other nodes.
CREATE TABLE tail (
    id TEXT NOT NULL PRIMARY KEY,
    node TEXT NOT NULL,
    spec TEXT NOT NULL,
    -- The tail is forgotten then, unless its node says again that it is open.
    open_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What other nodes have for a tail, until its own node reads it.
CREATE TABLE tail_line (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tail TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX tail_line_tail ON tail_line (tail, id);

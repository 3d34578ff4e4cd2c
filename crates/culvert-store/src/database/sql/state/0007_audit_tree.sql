-- Format 7: the tree over the audit log (`tree.rs`). Its leaves are kept when their rows are pruned.
CREATE TABLE audit_tile (
    level INTEGER NOT NULL,
    n INTEGER NOT NULL,
    -- 1 to 256 hashes of 32 bytes. More are appended, and none is changed.
    hashes BLOB NOT NULL,
    PRIMARY KEY (level, n)
) STRICT;

-- One row. The first leaf is the row after `base`; rows up to there were pruned before there was a tree.
CREATE TABLE audit_tree (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    base INTEGER NOT NULL,
    size INTEGER NOT NULL,
    -- The node that adds leaves, and until when the others wait.
    holder TEXT NOT NULL,
    held_until INTEGER NOT NULL,
    -- The latest signed head, a note; empty before the first one. `signed` is its size.
    signed INTEGER NOT NULL,
    signed_at INTEGER NOT NULL,
    checkpoint TEXT NOT NULL
) STRICT;
INSERT INTO audit_tree (one, base, size, holder, held_until, signed, signed_at, checkpoint)
SELECT 1, anchor, 0, '', 0, 0, 0, '' FROM ledger;

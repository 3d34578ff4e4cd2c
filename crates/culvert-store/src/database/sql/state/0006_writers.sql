-- Format 6: who made the latest commit, and the latest commit of each writer (`history.rs`). A process
-- that finds less than it knew of has a database that lost commits, as after a fail-over.
CREATE TABLE writer (
    id TEXT NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The latest commit of a program that names itself. One of an older format leaves them behind `revision`.
ALTER TABLE ledger ADD COLUMN writer TEXT NOT NULL DEFAULT '';
ALTER TABLE ledger ADD COLUMN written INTEGER NOT NULL DEFAULT 0;

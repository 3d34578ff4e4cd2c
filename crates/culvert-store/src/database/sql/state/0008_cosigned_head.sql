-- Format 8: the newest head of the audit log that enough witnesses signed, a note; empty before the first one.
ALTER TABLE audit_tree ADD COLUMN cosigned TEXT NOT NULL DEFAULT '';

-- Format 4: texts that lists are filtered by, found without reading the documents (`texts.rs`).
CREATE TABLE document_text (
    id TEXT NOT NULL REFERENCES document (id) ON DELETE CASCADE,
    field TEXT NOT NULL,
    kind TEXT NOT NULL,
    account TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (id, field)
) STRICT, WITHOUT ROWID;
CREATE INDEX document_text_value ON document_text (kind, account, field, value, id);

-- Documents up to this revision have their rows, for the fields that `texts_of` stands for.
ALTER TABLE ledger ADD COLUMN texts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN texts_of TEXT NOT NULL DEFAULT '';

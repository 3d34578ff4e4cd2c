-- Format 3: what is read often and of little is found without reading the rest.
-- The documents that refer to one, a page at a time.
CREATE INDEX document_ref_page ON document_ref (to_id, from_id);
-- The documents of a kind that changed since a revision, and how many there are.
CREATE INDEX document_change ON document (kind, revision);

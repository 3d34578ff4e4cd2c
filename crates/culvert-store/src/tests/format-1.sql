-- The state as a program of format 1 leaves it: a document and three events, none with a hash.
INSERT INTO document (id, kind, account, revision, created_at, updated_at, links, body) VALUES
    ('usr_1', 'user', 'ac_1', 2, 1800000000000000000, 1800000000000000000,
     '{"keys":[],"refs":[],"topics":[]}', '{"n":"usr_1"}');
INSERT INTO outbox (seq, id, account, kind, happened_at, audience, body) VALUES
    (1, 'ev_1', 'ac_1', 'api_key_created.v0', 1800000000123456789, '[["esb_1","ed_1"]]', '{"event_id":"ev_1"}'),
    (2, 'ev_2', 'ac_1', 'api_key_updated.v0', 1800000001000000000, '[]', '{"event_id":"ev_2","text":"ünï ☃"}'),
    (3, 'ev_3', 'ac_2', 'api_key_deleted.v0', 1800000002000000000, '[]', '{"event_id":"ev_3"}');
UPDATE ledger SET revision = 3, outbox = 3;

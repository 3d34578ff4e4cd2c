//! Every SQL statement, in one place. One text serves both engines, except for the pairs at the
//! end.
//!
//! The conformance suite prepares each of them on both engines, so a wrong column fails a test.

/// Selects a document's columns, in the order that `Document::read` expects.
macro_rules! document {
    ($rest:literal) => {
        concat!(
            "SELECT d.id, d.kind, d.account, d.revision, d.created_at, d.updated_at, d.links, d.body \
             FROM document d ",
            $rest
        )
    };
}

/// The columns of a batch's body.
macro_rules! stored {
    () => {
        "(SELECT stored FROM body WHERE body.id = batch.id)"
    };
}

/// The condition for settling a batch: it has the lease's fence, and was not settled yet.
macro_rules! held {
    () => {
        " WHERE id = $1 AND fence = $2 AND lease_until IS NOT NULL"
    };
}

/// The latest commit of a writer.
macro_rules! reached {
    ($writer:literal) => {
        concat!(
            "COALESCE((SELECT w.revision FROM writer w WHERE w.id = ",
            $writer,
            "), 0)"
        )
    };
}

macro_rules! lease_listed {
    ($ids:literal) => {
        concat!(
            "UPDATE batch \
             SET owner = $1, lease_until = $2, fence = fence + 1, attempt = attempt + 1 \
             WHERE id IN ",
            $ids,
            " AND due_at <= $4 AND (lease_until IS NULL OR lease_until <= $4) \
             RETURNING id, events, crc, attempt, first_at, fence, why"
        )
    };
}

pub(crate) mod transaction {
    pub(crate) const BEGIN: &str = "BEGIN";
    /// SQLite takes the write lock at the start, so a transaction cannot fail halfway because of
    /// it.
    pub(crate) const BEGIN_IMMEDIATE: &str = "BEGIN IMMEDIATE";
    pub(crate) const COMMIT: &str = "COMMIT";
    pub(crate) const ROLLBACK: &str = "ROLLBACK";
    pub(crate) const SAVEPOINT: &str = "SAVEPOINT one";
    pub(crate) const RELEASE: &str = "RELEASE SAVEPOINT one";
    pub(crate) const ROLLBACK_TO: &str = "ROLLBACK TO SAVEPOINT one";
}

pub(crate) mod meta {
    pub(crate) const GET: &str = "SELECT value FROM meta WHERE name = $1";
    pub(crate) const SET: &str = "INSERT INTO meta (name, value) VALUES ($1, $2) \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    pub(crate) const REMOVE: &str = "DELETE FROM meta WHERE name = $1";
    /// A random value that is generated once. PostgreSQL only.
    pub(crate) const MAKE_RANDOM: &str = "INSERT INTO meta (name, value) \
         VALUES ($1, replace(CAST(gen_random_uuid() AS TEXT), '-', '')) \
         ON CONFLICT (name) DO UPDATE SET value = meta.value RETURNING value";
    #[cfg(test)]
    pub(crate) const ALL: &[&str] = &[GET, SET, REMOVE];
}

/// A page of the audit log, each row with the hash of the row before.
macro_rules! audit_page {
    ($rest:expr) => {
        concat!(
            "SELECT o.seq, o.id, o.account, o.kind, o.happened_at, o.audience, o.body, o.hash, \
             (SELECT p.hash FROM outbox p WHERE p.seq = o.seq - 1) FROM outbox o WHERE ",
            $rest,
            " LIMIT $3"
        )
    };
}

/// The rest of a page of rows whose `$name` is `$4`, at positions from `$1` to `$2`. On PostgreSQL
/// it sorts by both columns, which only one index has, so the planner uses that index regardless of
/// its statistics. SQLite seeks only by equality.
macro_rules! newest_of {
    (sqlite, $name:literal, $position:literal) => {
        concat!(
            $name,
            " = $4 AND ",
            $position,
            " >= $1 AND ",
            $position,
            " <= $2 ORDER BY ",
            $position,
            " DESC"
        )
    };
    (postgres, $name:literal, $position:literal) => {
        concat!(
            $name,
            " >= $4 AND (",
            $name,
            ", ",
            $position,
            ") <= ($4, $2) AND ",
            $position,
            " >= $1 ORDER BY ",
            $name,
            " DESC, ",
            $position,
            " DESC"
        )
    };
}
macro_rules! oldest_of {
    (sqlite, $name:literal, $position:literal) => {
        concat!(
            $name,
            " = $4 AND ",
            $position,
            " >= $1 AND ",
            $position,
            " <= $2 ORDER BY ",
            $position
        )
    };
    (postgres, $name:literal, $position:literal) => {
        concat!(
            $name,
            " <= $4 AND (",
            $name,
            ", ",
            $position,
            ") >= ($4, $1) AND ",
            $position,
            " <= $2 ORDER BY ",
            $name,
            ", ",
            $position
        )
    };
}

/// The upper bits of the keys of advisory locks that mark pieces being written.
macro_rules! keeping {
    () => {
        "6518124"
    };
}

/// Pages like these, of the audit log and of the pieces of an endpoint.
macro_rules! audit_pages {
    ($of:ident, $name:literal) => {
        Pair {
            sqlite: audit_page!($of!(sqlite, $name, "o.seq")),
            postgres: audit_page!($of!(postgres, $name, "o.seq")),
        }
    };
}
macro_rules! summaries {
    ($from:literal) => {
        concat!(
            "SELECT t.id, t.last_at, s.body FROM ",
            $from,
            " LEFT JOIN traffic_summary s ON s.piece = t.id WHERE "
        )
    };
}
macro_rules! summary_pages {
    ($of:ident) => {
        Pair {
            sqlite: concat!(
                summaries!("traffic_endpoint e JOIN traffic t ON t.id = e.piece"),
                $of!(sqlite, "e.endpoint", "e.piece"),
                " LIMIT $3"
            ),
            postgres: concat!(
                summaries!("traffic_endpoint e JOIN traffic t ON t.id = e.piece"),
                $of!(postgres, "e.endpoint", "e.piece"),
                " LIMIT $3"
            ),
        }
    };
}

pub(crate) mod state {
    pub(crate) const GET: &str = document!("WHERE d.id = $1");
    pub(crate) const FIND: &str = document!(
        "JOIN document_key k ON k.id = d.id WHERE k.kind = $1 AND k.name = $2 AND k.value = $3"
    );
    pub(crate) const FIND_ENDING: &str = document!(
        "JOIN document_key k ON k.id = d.id WHERE k.kind = $1 AND k.name = $2 \
         AND length(k.value) >= length($3) \
         AND substr(k.value, length(k.value) - length($3) + 1) = $3 ORDER BY d.id"
    );
    pub(crate) const PAGE: &str =
        document!("WHERE d.kind = $1 AND d.account = $2 AND d.id < $3 ORDER BY d.id DESC LIMIT $4");
    /// A document with two references is read at the first field.
    pub(crate) const PAGE_OF_REFERRERS: &str = document!(
        "JOIN document_ref r ON r.from_id = d.id \
         WHERE d.kind = $1 AND d.account = $2 AND r.to_id = $5 AND r.from_id < $3 \
         AND NOT EXISTS (SELECT 1 FROM document_ref other WHERE other.from_id = r.from_id \
           AND other.to_id = r.to_id AND other.field < r.field) \
         ORDER BY r.from_id DESC LIMIT $4"
    );
    pub(crate) const COUNT_REFERRERS: &str = "SELECT count(*) FROM document_ref WHERE to_id = $1";
    pub(crate) const CHANGED: &str =
        document!("WHERE d.kind = $1 AND d.revision > $2 ORDER BY d.revision");
    /// The next documents behind a revision and an ID.
    pub(crate) const NEXT_CHANGED: &str = document!(
        "WHERE d.kind = $1 AND (d.revision, d.id) > ($2, $3) \
         ORDER BY d.revision, d.id LIMIT $4"
    );
    pub(crate) const SOME_CHANGED: &str = "SELECT revision, id, account, body FROM document \
         WHERE kind = $1 AND revision > $2 ORDER BY revision LIMIT $3";
    pub(crate) const CHANGED_AT: &str = "SELECT revision, id, account, body FROM document \
         WHERE kind = $1 AND revision = $2";
    pub(crate) const PAGE_BY_TEXT: &str = document!(
        "JOIN document_text t ON t.id = d.id WHERE t.kind = $1 AND t.account = $2 \
         AND t.field = $5 AND t.value >= $6 AND (t.value, t.id) < ($6, $3) \
         ORDER BY t.value DESC, t.id DESC LIMIT $4"
    );
    /// In the order of the index, so reading stops at the limit.
    pub(crate) const TEXTS_BETWEEN: &str = "SELECT id FROM document_text \
         WHERE kind = $1 AND account = $2 AND field = $3 AND value >= $5 AND value < $6 \
         ORDER BY value, id LIMIT $4";
    pub(crate) const COUNT: &str = "SELECT count(*) FROM document WHERE kind = $1";
    pub(crate) const COUNT_UNTIL: &str =
        "SELECT count(*) FROM document WHERE kind = $1 AND revision <= $2";
    pub(crate) const IDS: &str = "SELECT id FROM document WHERE kind = $1";
    pub(crate) const BODIES: &str =
        "SELECT id, account, body FROM document WHERE kind = $1 ORDER BY id";

    pub(crate) const ALL_AFTER: &str = document!("WHERE d.id > $1 ORDER BY d.id LIMIT $2");

    pub(crate) const REVISION: &str = concat!(
        "SELECT revision, texts, texts_of, writer, written, ",
        reached!("$1"),
        " FROM ledger"
    );
    pub(crate) const LOCK: &str = concat!(
        "UPDATE ledger SET revision = revision \
         RETURNING revision, outbox, chained, head, texts, texts_of, writer, written, ",
        reached!("$1"),
        ", ",
        reached!("$2")
    );
    pub(crate) const ADVANCE: &str = "UPDATE ledger SET revision = $1, outbox = $2, chained = $3, head = $4, texts = $5, \
         writer = COALESCE($6, writer), written = COALESCE($7, written)";
    pub(crate) const NOTE_WRITER: &str = "INSERT INTO writer (id, revision) VALUES ($1, $2) \
         ON CONFLICT (id) DO UPDATE SET revision = excluded.revision";
    /// Keeps those with the latest commits.
    pub(crate) const PRUNE_WRITERS: &str = "DELETE FROM writer WHERE id NOT IN \
         (SELECT w.id FROM writer w ORDER BY w.revision DESC, w.id LIMIT $1)";
    pub(crate) const CLAIM_TEXTS: &str = "UPDATE ledger SET texts_of = $1";
    pub(crate) const EXTENT: &str = "SELECT outbox, chained, head, anchor, anchor_hash FROM ledger";

    pub(crate) const INSERT: &str = "INSERT INTO document \
         (id, kind, account, revision, created_at, updated_at, links, body) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
    pub(crate) const BEFORE: &str =
        "SELECT links, body FROM document WHERE id = $1 AND kind = $2 AND revision = $3";
    pub(crate) const REPLACE: &str = "UPDATE document \
         SET revision = $3, updated_at = $4, links = $5, body = $6 WHERE id = $1 AND kind = $2";
    pub(crate) const TOUCH: &str =
        "UPDATE document SET updated_at = $3 WHERE kind = $1 AND id = $2";
    pub(crate) const REMOVE: &str =
        "DELETE FROM document WHERE id = $1 AND kind = $2 AND revision = $3";
    pub(crate) const INSERT_KEY: &str = "INSERT INTO document_key (kind, name, value, id) \
         VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
    pub(crate) const REMOVE_KEYS: &str = "DELETE FROM document_key WHERE id = $1";
    pub(crate) const INSERT_REF: &str = "INSERT INTO document_ref (from_id, field, to_id, blocks) \
         VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
    pub(crate) const REMOVE_REFS: &str = "DELETE FROM document_ref WHERE from_id = $1";
    pub(crate) const INSERT_TOPIC: &str = "INSERT INTO document_topic \
         (account, kind, id, destination) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
    pub(crate) const REMOVE_TOPICS: &str = "DELETE FROM document_topic WHERE id = $1";

    /// A reference of `$1` whose target does not exist.
    pub(crate) const MISSING: &str = "SELECT r.field, r.to_id FROM document_ref r \
         WHERE r.from_id = $1 AND NOT EXISTS (SELECT 1 FROM document d WHERE d.id = r.to_id) \
         ORDER BY r.field, r.to_id LIMIT 1";
    /// The documents that still reference `$1`, blocking references first.
    pub(crate) const REFERRER: &str = "SELECT r.from_id, d.kind, r.blocks FROM document_ref r \
         JOIN document d ON d.id = r.from_id WHERE r.to_id = $1 \
         ORDER BY r.blocks DESC, r.from_id LIMIT 1";

    /// Each subscription and destination once; `$3` is [`Topic::EVERY`](crate::Topic::EVERY), and `$4`
    /// [`Topic::about`](crate::Topic::about) its object.
    pub(crate) const AUDIENCE: &str = "SELECT DISTINCT id, destination FROM document_topic \
         WHERE account = $1 AND kind IN ($2, $3, $4) ORDER BY id, destination";
    pub(crate) const TELL: &str = "INSERT INTO outbox \
         (seq, id, account, kind, happened_at, audience, body, hash, object_id, actor_id) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING";
    pub(crate) const OUTBOX_AFTER: &str = "SELECT seq, id, account, kind, happened_at, audience, \
         body FROM outbox WHERE seq > $1 ORDER BY seq LIMIT $2";
    pub(crate) const AUDIT: &str = "SELECT seq, id, account, kind, happened_at, audience, body, \
         hash FROM outbox WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3";
    pub(crate) const AUDIT_TIMES: &str =
        "SELECT seq, happened_at FROM outbox WHERE seq <= $1 ORDER BY seq LIMIT $2";
    pub(crate) const AUDIT_HASH: &str = "SELECT hash FROM outbox WHERE seq = $1";
    pub(crate) const AUDIT_SINCE: &str = "SELECT min(seq) FROM outbox WHERE happened_at >= $1";
    pub(crate) const AUDIT_UNTIL: &str = "SELECT max(seq) FROM outbox WHERE happened_at <= $1";
    pub(crate) const AUDIT_EVENT: &str = "SELECT seq, account FROM outbox WHERE id = $1";
    pub(crate) const OF_KIND: &str =
        "SELECT seq, body FROM outbox WHERE kind = $1 AND seq > $2 ORDER BY seq LIMIT $3";
    pub(crate) const LATEST_OF_KIND: &str =
        "SELECT seq, body FROM outbox WHERE kind = $1 ORDER BY seq DESC LIMIT 1";
    pub(crate) const AUDIT_NEWEST: &str =
        audit_page!("o.seq >= $1 AND o.seq <= $2 ORDER BY o.seq DESC");
    pub(crate) const AUDIT_OLDEST: &str = audit_page!("o.seq >= $1 AND o.seq <= $2 ORDER BY o.seq");
    pub(crate) const UNINDEXED_ONE: &str = "SELECT seq FROM outbox WHERE object_id IS NULL LIMIT 1";
    pub(crate) const UNINDEXED: &str =
        "SELECT seq, body FROM outbox WHERE object_id IS NULL LIMIT $1";
    pub(crate) const INDEX_EVENT: &str =
        "UPDATE outbox SET object_id = $2, actor_id = $3 WHERE seq = $1";
    pub(crate) const SET_HASH: &str = "UPDATE outbox SET hash = $2 WHERE seq = $1";
    pub(crate) const LAST_UP_TO: &str =
        "SELECT seq, hash FROM outbox WHERE seq <= $1 ORDER BY seq DESC LIMIT 1";
    pub(crate) const PRUNE_OUTBOX: &str = "DELETE FROM outbox WHERE seq <= $1";
    pub(crate) const ANCHOR: &str = "UPDATE ledger SET anchor = $1, anchor_hash = $2";

    pub(crate) const TREE: &str = "SELECT base, size, holder, held_until, signed, signed_at, checkpoint, \
         cosigned FROM audit_tree";
    pub(crate) const TREE_GREW: &str = "UPDATE audit_tree \
         SET base = $1, size = $2, holder = $3, held_until = $4";
    /// Only if the head before is still the latest.
    pub(crate) const TREE_SIGNED: &str = "UPDATE audit_tree \
         SET signed = $1, signed_at = $2, checkpoint = $3, \
             cosigned = CASE WHEN $5 = '' THEN cosigned ELSE $5 END \
         WHERE checkpoint = $4 AND size >= $1";
    pub(crate) const TILE: &str = "SELECT hashes FROM audit_tile WHERE level = $1 AND n = $2";
    pub(crate) const COUNT_TILES: &str = "SELECT count(*) FROM audit_tile";
    pub(crate) const PUT_TILE: &str = "INSERT INTO audit_tile (level, n, hashes) VALUES ($1, $2, $3) \
         ON CONFLICT (level, n) DO UPDATE SET hashes = excluded.hashes";

    pub(crate) const ANSWER: &str =
        "SELECT id, owner, kept_at, revision, body, secret FROM answer WHERE id = $1";
    pub(crate) const ANSWERS_OF: &str = "SELECT count(*), CAST(COALESCE(sum(bytes), 0) AS BIGINT) \
         FROM answer WHERE owner = $1";
    pub(crate) const KEEP_ANSWER: &str = "INSERT INTO answer \
         (id, owner, kept_at, revision, bytes, body, secret) \
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING";
    pub(crate) const COMPLETE_ANSWER: &str = "UPDATE answer SET bytes = $3, body = $4 \
         WHERE id = $1 AND kept_at = $2";
    pub(crate) const FORGET_ANSWER: &str = "DELETE FROM answer WHERE id = $1 AND kept_at = $2";
    pub(crate) const FORGET_OLD_ANSWER: &str = "DELETE FROM answer WHERE id = $1 AND kept_at <= $2";
    pub(crate) const ANSWERS_DUE: &str = "SELECT id FROM answer \
         WHERE kept_at <= $1 OR (secret IS NOT NULL AND kept_at <= $2) LIMIT 1";
    pub(crate) const PRUNE_ANSWERS: &str = "DELETE FROM answer WHERE id IN \
         (SELECT a.id FROM answer a WHERE a.kept_at <= $1 ORDER BY a.kept_at LIMIT $2)";
    pub(crate) const PRUNE_SECRETS: &str =
        "UPDATE answer SET secret = NULL WHERE secret IS NOT NULL AND kept_at <= $1";

    /// Documents and events beyond the ledger's counters; there must be none.
    pub(crate) const BEYOND_THE_LEDGER: &str = "SELECT \
         (SELECT count(*) FROM document WHERE revision > (SELECT revision FROM ledger)) \
         + (SELECT count(*) FROM outbox WHERE seq > (SELECT outbox FROM ledger))";
    /// Documents whose columns contradict the rows that enforce them; there must be none.
    pub(crate) const DANGLING: &str = "SELECT count(*) FROM document_ref r \
         WHERE NOT EXISTS (SELECT 1 FROM document d WHERE d.id = r.to_id)";

    #[cfg(test)]
    pub(crate) const ALL: &[&str] = &[
        GET,
        FIND,
        FIND_ENDING,
        PAGE,
        PAGE_OF_REFERRERS,
        COUNT_REFERRERS,
        CHANGED,
        NEXT_CHANGED,
        COUNT,
        COUNT_UNTIL,
        IDS,
        BODIES,
        ALL_AFTER,
        REVISION,
        LOCK,
        ADVANCE,
        NOTE_WRITER,
        PRUNE_WRITERS,
        INSERT,
        BEFORE,
        CLAIM_TEXTS,
        SOME_CHANGED,
        CHANGED_AT,
        PAGE_BY_TEXT,
        TEXTS_BETWEEN,
        REPLACE,
        REMOVE,
        INSERT_KEY,
        REMOVE_KEYS,
        INSERT_REF,
        REMOVE_REFS,
        INSERT_TOPIC,
        REMOVE_TOPICS,
        MISSING,
        REFERRER,
        AUDIENCE,
        TELL,
        EXTENT,
        OUTBOX_AFTER,
        AUDIT,
        AUDIT_TIMES,
        AUDIT_HASH,
        AUDIT_SINCE,
        AUDIT_UNTIL,
        AUDIT_EVENT,
        OF_KIND,
        LATEST_OF_KIND,
        AUDIT_NEWEST,
        AUDIT_OLDEST,
        UNINDEXED_ONE,
        UNINDEXED,
        INDEX_EVENT,
        SET_HASH,
        LAST_UP_TO,
        PRUNE_OUTBOX,
        ANCHOR,
        TREE,
        TREE_GREW,
        TREE_SIGNED,
        TILE,
        COUNT_TILES,
        PUT_TILE,
        ANSWER,
        ANSWERS_OF,
        KEEP_ANSWER,
        COMPLETE_ANSWER,
        FORGET_ANSWER,
        FORGET_OLD_ANSWER,
        ANSWERS_DUE,
        PRUNE_ANSWERS,
        PRUNE_SECRETS,
        BEYOND_THE_LEDGER,
        DANGLING,
    ];
}

pub(crate) mod events {
    pub(crate) const APPEND: &str = "INSERT INTO batch (destination, class, place, part, events, \
         bytes, crc, attempt, first_at, due_at, fence) \
         SELECT $1, $2, COALESCE(MAX(place), 0) + 1, 0, $3, $4, $5, 0, $6, $6, 0 \
         FROM batch WHERE destination = $1 AND class = $2 RETURNING id";
    /// Appends a batch that is already being sent.
    pub(crate) const APPEND_LEASED: &str = "INSERT INTO batch (destination, class, place, part, \
         events, bytes, crc, attempt, first_at, due_at, fence, owner, lease_until) \
         SELECT $1, $2, COALESCE(MAX(place), 0) + 1, 0, $3, $4, $5, 1, $6, $6, 1, $7, $8 \
         FROM batch WHERE destination = $1 AND class = $2 RETURNING id, fence";
    pub(crate) const PUT_BODY: &str = "INSERT INTO body (id, stored) VALUES ($1, $2)";
    pub(crate) const CURSOR: &str = "SELECT value FROM cursor WHERE name = $1";
    pub(crate) const CURSORS: &str =
        "SELECT name FROM cursor WHERE name >= $1 AND name < $2 ORDER BY name LIMIT $3";
    pub(crate) const DROP_CURSOR: &str = "DELETE FROM cursor WHERE name = $1";
    pub(crate) const START_CURSOR: &str =
        "INSERT INTO cursor (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    pub(crate) const MOVE_CURSOR: &str =
        "UPDATE cursor SET value = $3 WHERE name = $1 AND value = $2";

    /// The conditions occur twice. In the subquery they ensure that only the head of the queue is
    /// leased. In the outer query they are checked again in case another node was faster.
    pub(crate) const LEASE: &str = concat!(
        "UPDATE batch \
         SET owner = $1, lease_until = $2, fence = fence + 1, attempt = attempt + 1 \
         WHERE id = (SELECT head.id FROM (SELECT id, due_at FROM batch \
           WHERE destination = $3 AND class = $4 ORDER BY place, part, id LIMIT 1) head \
           WHERE head.due_at <= $5) \
         AND due_at <= $5 AND (lease_until IS NULL OR lease_until <= $5) \
         RETURNING id, events, crc, attempt, first_at, fence, why, ",
        stored!()
    );
    /// The batches of a class, starting at its head.
    pub(crate) const LINE: &str = "SELECT id, bytes, attempt, first_at, due_at, lease_until \
         FROM batch WHERE destination = $1 AND class = $2 ORDER BY place, part, id LIMIT $3";
    pub(crate) const BODY: &str = concat!("SELECT crc, ", stored!(), " FROM batch", held!());
    pub(crate) const ACK: &str = concat!("DELETE FROM batch", held!());
    pub(crate) const RETRY: &str = concat!(
        "UPDATE batch SET owner = NULL, lease_until = NULL, due_at = $3, why = $4",
        held!()
    );
    pub(crate) const TAKE: &str = concat!(
        "DELETE FROM batch",
        held!(),
        " RETURNING destination, class, place, part, attempt, first_at, why"
    );
    pub(crate) const MAKE_ROOM: &str = "UPDATE batch SET part = part + $5 \
         WHERE destination = $1 AND class = $2 AND place = $3 AND part > $4";
    pub(crate) const PUT_PIECE: &str = "INSERT INTO batch (destination, class, place, part, \
         events, bytes, crc, attempt, first_at, due_at, fence, why) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 0, $11) RETURNING id";
    /// `$7` replaces a missing body.
    pub(crate) const INSERT_DEAD_LETTER: &str = concat!(
        "INSERT INTO dead_letter (destination, class, events, bytes, crc, attempt, first_at, \
         buried_at, burial_class, burial_code, burial_text, body) \
         SELECT destination, class, events, bytes, crc, attempt, first_at, $3, $4, $5, $6, \
         COALESCE(",
        stored!(),
        ", $7) FROM batch",
        held!(),
        " RETURNING id, destination, class, bytes"
    );
    pub(crate) const PUT_DEAD: &str = "INSERT INTO dead_letter (destination, class, events, bytes, \
         crc, attempt, first_at, buried_at, burial_class, burial_code, burial_text, body) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) RETURNING id";
    pub(crate) const RELEASE_OWNER: &str = "UPDATE batch \
         SET owner = NULL, lease_until = NULL, fence = fence + 1 WHERE owner = $1";
    pub(crate) const HEADS: &str = "SELECT due_at, lease_until FROM (SELECT due_at, lease_until \
           FROM batch WHERE destination = $1 AND class = 0 ORDER BY place, part, id LIMIT 1) audit \
         UNION ALL SELECT due_at, lease_until FROM (SELECT due_at, lease_until \
           FROM batch WHERE destination = $1 AND class = 1 ORDER BY place, part, id LIMIT 1) traffic";
    pub(crate) const BACKLOG: &str = "SELECT destination, class, count(*), \
         CAST(sum(events) AS BIGINT), CAST(sum(bytes) AS BIGINT), min(first_at) \
         FROM batch GROUP BY destination, class";
    /// All deliveries that wait.
    pub(crate) const WAITING: &str = "SELECT CAST(COALESCE(sum(events), 0) AS BIGINT) FROM batch";
    pub(crate) const COUNT_DEAD_LETTERS: &str = "SELECT destination, CAST(sum(letters) AS BIGINT) \
         FROM dead_line WHERE letters > 0 GROUP BY destination";
    /// Counts a new dead letter.
    pub(crate) const DEAD_LINE_GROWS: &str = "INSERT INTO dead_line \
         (destination, class, letters, bytes, forgotten) VALUES ($1, $2, 1, $3, 0) \
         ON CONFLICT (destination, class) DO UPDATE SET letters = dead_line.letters + 1, \
         bytes = dead_line.bytes + excluded.bytes RETURNING letters, bytes, forgotten";
    /// Counts a removed dead letter, and adds `$4` events to those forgotten.
    pub(crate) const DEAD_LINE_SHRINKS: &str = "UPDATE dead_line SET letters = letters - 1, \
         bytes = bytes - $3, forgotten = forgotten + $4 WHERE destination = $1 AND class = $2";
    pub(crate) const OLDEST_DEAD: &str = "SELECT id, bytes, events FROM dead_letter \
         WHERE destination = $1 AND class = $2 ORDER BY id LIMIT 1";
    pub(crate) const DEAD_LINES: &str =
        "SELECT destination, class, letters, bytes, forgotten FROM dead_line";
    /// Recounts dead letters, including those that were stored without being counted.
    pub(crate) const RECOUNT_DEAD: &str = "INSERT INTO dead_line \
         (destination, class, letters, bytes, forgotten) \
         SELECT destination, class, count(*), CAST(sum(bytes) AS BIGINT), 0 FROM dead_letter \
         WHERE true GROUP BY destination, class ORDER BY destination, class \
         ON CONFLICT (destination, class) DO UPDATE \
         SET letters = excluded.letters, bytes = excluded.bytes";
    pub(crate) const DROP_EMPTY_DEAD_LINES: &str = "DELETE FROM dead_line WHERE NOT EXISTS \
         (SELECT 1 FROM dead_letter l WHERE l.destination = dead_line.destination \
         AND l.class = dead_line.class)";
    pub(crate) const NOTE_HEALTH: &str = "INSERT INTO destination_health \
         (destination, node, noted_at, body) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (destination, node) DO UPDATE \
         SET noted_at = excluded.noted_at, body = excluded.body";
    pub(crate) const HEALTHS: &str =
        "SELECT node, body FROM destination_health WHERE destination = $1 ORDER BY node LIMIT 1000";
    pub(crate) const ALL_HEALTHS: &str = "SELECT destination, node, body FROM destination_health \
         ORDER BY destination, node LIMIT 100000";
    pub(crate) const DROP_HEALTHS: &str = "DELETE FROM destination_health WHERE destination = $1";
    pub(crate) const PRUNE_HEALTHS: &str = "DELETE FROM destination_health WHERE noted_at < $1";
    pub(crate) const OPEN_TAIL: &str = "INSERT INTO tail (id, node, spec, open_until) \
         VALUES ($1, $2, $3, $4) ON CONFLICT (id) DO UPDATE SET open_until = excluded.open_until";
    pub(crate) const TAILS: &str = "SELECT id, spec FROM tail \
         WHERE node <> $1 AND open_until > $2 ORDER BY id LIMIT $3";
    pub(crate) const CLOSE_TAIL: &str = "DELETE FROM tail WHERE id = $1";
    pub(crate) const DROP_TAIL_LINES: &str = "DELETE FROM tail_line WHERE tail = $1 AND id <= $2";
    /// Only while the tail is open and its node keeps up.
    pub(crate) const TELL_TAIL: &str = "INSERT INTO tail_line (tail, body) SELECT id, $2 FROM tail \
         WHERE id = $1 AND (SELECT count(*) FROM tail_line WHERE tail = $1) < $3";
    pub(crate) const TAIL_LINES: &str =
        "SELECT id, body FROM tail_line WHERE tail = $1 AND id > $2 ORDER BY id LIMIT $3";
    pub(crate) const PRUNE_TAILS: &str = "DELETE FROM tail WHERE open_until < $1";
    pub(crate) const PRUNE_TAIL_LINES: &str =
        "DELETE FROM tail_line WHERE NOT EXISTS (SELECT 1 FROM tail t WHERE t.id = tail_line.tail)";
    pub(crate) const DROP_DEAD_LINES: &str = "DELETE FROM dead_line WHERE destination = $1";
    pub(crate) const DEAD_LETTERS: &str = "SELECT id, destination, class, events, attempt, \
         first_at, buried_at, burial_class, burial_code, burial_text, body FROM dead_letter \
         WHERE destination = $1 AND (CAST($2 AS BIGINT) IS NULL OR id < $2) ORDER BY id DESC LIMIT $3";
    pub(crate) const REDRIVE: &str = "INSERT INTO batch (destination, class, place, part, events, \
         bytes, crc, attempt, first_at, due_at, fence) \
         SELECT destination, class, (SELECT COALESCE(MAX(b.place), 0) + 1 FROM batch b \
           WHERE b.destination = l.destination AND b.class = l.class), \
         0, events, bytes, crc, 0, $2, $2, 0 FROM dead_letter l WHERE id = $1 RETURNING id";
    pub(crate) const REDRIVE_BODY: &str =
        "INSERT INTO body (id, stored) SELECT $2, body FROM dead_letter WHERE id = $1";
    pub(crate) const UNBURY: &str = "DELETE FROM dead_letter WHERE id = $1 \
         RETURNING destination, class, bytes";
    pub(crate) const HASTEN: &str =
        "UPDATE batch SET due_at = $2 WHERE destination = $1 AND due_at > $2";
    pub(crate) const BOUND_LEASES: &str =
        "UPDATE batch SET lease_until = $1 WHERE lease_until > $1";
    pub(crate) const DROP_BATCHES: &str = "DELETE FROM batch WHERE destination = $1";
    pub(crate) const DROP_DEAD_LETTERS: &str = "DELETE FROM dead_letter WHERE destination = $1";
    pub(crate) const PRUNE_OLD: &str = "DELETE FROM dead_letter WHERE buried_at < $1";
    pub(crate) const CHECK_BODIES: &str = concat!(
        "SELECT id, crc, ",
        stored!(),
        " FROM batch WHERE id > $1 ORDER BY id LIMIT 32"
    );
    pub(crate) const USABLE: &str = "SELECT count(*) FROM cursor";
    pub(crate) const PRUNE_WRITERS: &str = "DELETE FROM writer WHERE opened_at < $1";
    pub(crate) const KEEP_TRAFFIC: &str = "INSERT INTO traffic (first_at, last_at, bytes, crc, body, is_indexed) \
         VALUES ($1, $2, $3, $4, $5, 1) RETURNING id";
    pub(crate) const HASH_TRAFFIC: &str =
        "INSERT INTO traffic_hash (piece, last_at, hash) VALUES ($1, $2, $3)";
    pub(crate) const TRAFFIC_HASH: &str = "SELECT hash FROM traffic_hash WHERE piece = $1";
    pub(crate) const TRAFFIC_HASHES: &str =
        "SELECT hash FROM traffic_hash WHERE piece >= $1 AND piece < $2 ORDER BY piece";
    /// Of a removed piece, the time of its last event is known.
    pub(crate) const TRAFFIC_HASHED: &str = "SELECT h.piece, COALESCE(t.first_at, h.last_at), h.last_at, h.hash \
         FROM traffic_hash h LEFT JOIN traffic t ON t.id = h.piece WHERE h.piece > $1 AND h.piece <= $2 \
         UNION ALL SELECT t.id, t.first_at, t.last_at, NULL FROM traffic t WHERE t.id > $1 AND t.id <= $2 \
         AND NOT EXISTS (SELECT 1 FROM traffic_hash h WHERE h.piece = t.id) ORDER BY 1 LIMIT $3";
    pub(crate) const HASH_TRAFFIC_LATER: &str = "INSERT INTO traffic_hash (piece, last_at, hash) \
         VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    pub(crate) const TRAFFIC_BEGINS_AT: &str = "SELECT MIN(e.at) FROM \
         (SELECT MIN(last_at) AS at FROM traffic WHERE id > $1 \
         UNION ALL SELECT MIN(last_at) AS at FROM traffic_hash WHERE piece > $1) e";
    pub(crate) const TRAFFIC_HASHED_ENDS: &str = "SELECT COALESCE(MIN(e.first), 1), COALESCE(MAX(e.last), 0) FROM \
         (SELECT MIN(id) AS first, MAX(id) AS last FROM traffic \
         UNION ALL SELECT MIN(piece) AS first, MAX(piece) AS last FROM traffic_hash) e";
    /// Each piece with its own hash beside the stored one, also those that have only one of both.
    pub(crate) const TRAFFIC_WITH_HASHES: &str = "SELECT t.id, t.first_at, t.last_at, t.body, h.hash \
         FROM traffic t LEFT JOIN traffic_hash h ON h.piece = t.id \
         WHERE t.id > $1 AND t.id <= $2 ORDER BY t.id LIMIT $3";
    /// The first hash of a piece that is missing, although an earlier one is there.
    pub(crate) const TRAFFIC_MISSING: &str = "SELECT MIN(h.piece) FROM traffic_hash h \
         WHERE h.piece > $1 AND h.piece > (SELECT MIN(id) FROM traffic) \
         AND NOT EXISTS (SELECT 1 FROM traffic t WHERE t.id = h.piece)";
    /// By the stored bodies: no hash covers the column with their size.
    pub(crate) const TRAFFIC_SIZE: &str = "SELECT CAST(COALESCE(SUM(LENGTH(body)), 0) AS BIGINT), \
         CAST(COALESCE(MAX(LENGTH(body)), 0) AS BIGINT) FROM traffic";
    pub(crate) const TRAFFIC_BODY_SIZE: &str =
        "SELECT CAST(COALESCE(SUM(LENGTH(body)), 0) AS BIGINT) FROM traffic_body";
    pub(crate) const TRAFFIC_WHOLE: &str = "SELECT id, first_at, last_at, body FROM traffic \
         WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3";
    /// Of removed pieces, without the last `$2`.
    pub(crate) const PRUNE_TRAFFIC_HASHES: &str = "DELETE FROM traffic_hash WHERE piece <= $1 AND piece <= \
         (SELECT h.piece FROM traffic_hash h WHERE h.piece < \
         COALESCE((SELECT MIN(id) FROM traffic), 9223372036854775807) ORDER BY h.piece DESC LIMIT 1 OFFSET $2)";
    pub(crate) const TRAFFIC_EXTENT: &str = "SELECT COALESCE(MIN(id), 1), COALESCE(MAX(id), 0), \
         CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM traffic";
    pub(crate) const TRAFFIC_PIECES: &str = "SELECT id, crc, body FROM traffic \
         WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3";
    pub(crate) const TRAFFIC_SINCE: &str = "SELECT MIN(id) FROM traffic WHERE last_at >= $1";
    pub(crate) const TRAFFIC_UNTIL: &str = "SELECT MAX(id) FROM traffic WHERE first_at <= $1";
    pub(crate) const TRAFFIC_OLDEST: &str =
        "SELECT id, last_at, bytes FROM traffic ORDER BY id LIMIT $1";
    pub(crate) const TRAFFIC_ENDS: &str = "SELECT COALESCE((SELECT MIN(id) FROM traffic), 1), \
         COALESCE((SELECT MAX(id) FROM traffic), 0)";
    pub(crate) const SUMMARIZE_TRAFFIC: &str =
        "INSERT INTO traffic_summary (piece, body) VALUES ($1, $2)";
    /// Reads no bodies: an index has the times.
    pub(crate) const SUMMARIES_NEWEST: &str = concat!(
        summaries!("traffic t"),
        "t.id >= $1 AND t.id <= $2 ORDER BY t.id DESC LIMIT $3"
    );
    pub(crate) const SUMMARIES_OLDEST: &str = concat!(
        summaries!("traffic t"),
        "t.id >= $1 AND t.id <= $2 ORDER BY t.id LIMIT $3"
    );
    pub(crate) const TRAFFIC_UNINDEXED: &str =
        "SELECT id FROM traffic WHERE is_indexed = 0 LIMIT 1";
    pub(crate) const PRUNE_TRAFFIC: &str = "DELETE FROM traffic WHERE id <= $1";
    pub(crate) const KEEP_TRAFFIC_BODY: &str = "INSERT INTO traffic_body (event, happened_at, bytes, crc, body) \
         VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
    pub(crate) const TRAFFIC_BODY: &str = "SELECT crc, body FROM traffic_body WHERE event = $1";
    pub(crate) const TRAFFIC_BODY_BYTES: &str =
        "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM traffic_body";
    pub(crate) const TRAFFIC_BODY_OLDEST: &str =
        "SELECT id, happened_at, bytes FROM traffic_body ORDER BY id LIMIT $1";
    pub(crate) const PRUNE_TRAFFIC_BODY: &str = "DELETE FROM traffic_body WHERE id <= $1";
    pub(crate) const NOTE_NODE: &str = "INSERT INTO node_note (node, noted_at, body) \
         VALUES ($1, $2, $3) ON CONFLICT (node) DO UPDATE \
         SET noted_at = excluded.noted_at, body = excluded.body";
    pub(crate) const NODE_NOTES: &str =
        "SELECT node, noted_at, body FROM node_note ORDER BY node LIMIT 1000";
    pub(crate) const DROP_NODE_NOTES: &str =
        "DELETE FROM node_note WHERE node = $1 OR noted_at < $2";
    pub(crate) const PUT_STATISTIC_FRAME: &str = "INSERT INTO statistic_frame \
         (step, at, node, body) VALUES ($1, $2, $3, $4) ON CONFLICT (step, at, node) DO NOTHING";
    pub(crate) const PUT_STATISTIC_CHUNK: &str = "INSERT INTO statistic_chunk \
         (step, subject, at, node, bytes, body) VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (subject, step, at, node) DO NOTHING";
    pub(crate) const DROP_STATISTIC_FRAMES: &str =
        "DELETE FROM statistic_frame WHERE step = $1 AND node = $2 AND at >= $3 AND at < $4";
    pub(crate) const STATISTIC_FRAMES: &str = "SELECT at, node, body FROM statistic_frame \
         WHERE step = $1 AND at >= $2 AND at < $3 AND ($4 = '' OR node = $4) \
         ORDER BY at, node LIMIT $5";
    pub(crate) const STATISTIC_CHUNKS_OF: &str = "SELECT subject, at, node, body \
         FROM statistic_chunk WHERE subject = $1 AND step = $2 AND at >= $3 AND at < $4 \
         ORDER BY at, node LIMIT $5";
    pub(crate) const STATISTIC_CHUNKS: &str = "SELECT subject, at, node, body \
         FROM statistic_chunk WHERE step = $1 AND at >= $2 AND at < $3 \
         AND subject >= $4 AND subject < $5 ORDER BY at LIMIT $6";
    pub(crate) const STATISTIC_BYTES: &str =
        "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM statistic_chunk";
    pub(crate) const OLDEST_STATISTICS: &str =
        "SELECT at, bytes FROM statistic_chunk WHERE step = $1 ORDER BY at LIMIT $2";
    pub(crate) const PRUNE_STATISTIC_FRAMES: &str = "DELETE FROM statistic_frame WHERE id IN \
         (SELECT id FROM statistic_frame WHERE step = $1 AND at < $2 ORDER BY at LIMIT $3)";
    pub(crate) const PRUNE_STATISTIC_CHUNKS: &str = "DELETE FROM statistic_chunk WHERE id IN \
         (SELECT id FROM statistic_chunk WHERE step = $1 AND at < $2 ORDER BY at LIMIT $3)";

    #[cfg(test)]
    pub(crate) const ALL: &[&str] = &[
        APPEND,
        APPEND_LEASED,
        CURSOR,
        CURSORS,
        DROP_CURSOR,
        START_CURSOR,
        MOVE_CURSOR,
        LEASE,
        PUT_BODY,
        LINE,
        BODY,
        ACK,
        RETRY,
        TAKE,
        MAKE_ROOM,
        PUT_PIECE,
        INSERT_DEAD_LETTER,
        PUT_DEAD,
        RELEASE_OWNER,
        HEADS,
        BACKLOG,
        WAITING,
        COUNT_DEAD_LETTERS,
        DEAD_LETTERS,
        REDRIVE,
        REDRIVE_BODY,
        UNBURY,
        HASTEN,
        BOUND_LEASES,
        DROP_BATCHES,
        DROP_DEAD_LETTERS,
        NOTE_HEALTH,
        HEALTHS,
        ALL_HEALTHS,
        DROP_HEALTHS,
        PRUNE_HEALTHS,
        OPEN_TAIL,
        TAILS,
        CLOSE_TAIL,
        DROP_TAIL_LINES,
        TELL_TAIL,
        TAIL_LINES,
        PRUNE_TAILS,
        PRUNE_TAIL_LINES,
        DROP_DEAD_LINES,
        DEAD_LINE_GROWS,
        DEAD_LINE_SHRINKS,
        OLDEST_DEAD,
        DEAD_LINES,
        RECOUNT_DEAD,
        DROP_EMPTY_DEAD_LINES,
        PRUNE_OLD,
        CHECK_BODIES,
        USABLE,
        PRUNE_WRITERS,
        KEEP_TRAFFIC,
        TRAFFIC_EXTENT,
        TRAFFIC_PIECES,
        TRAFFIC_SINCE,
        TRAFFIC_UNTIL,
        TRAFFIC_OLDEST,
        TRAFFIC_ENDS,
        SUMMARIZE_TRAFFIC,
        SUMMARIES_NEWEST,
        SUMMARIES_OLDEST,
        TRAFFIC_UNINDEXED,
        PRUNE_TRAFFIC,
        HASH_TRAFFIC,
        TRAFFIC_HASH,
        TRAFFIC_HASHES,
        TRAFFIC_HASHED,
        TRAFFIC_BEGINS_AT,
        HASH_TRAFFIC_LATER,
        TRAFFIC_HASHED_ENDS,
        TRAFFIC_WITH_HASHES,
        TRAFFIC_MISSING,
        TRAFFIC_SIZE,
        TRAFFIC_BODY_SIZE,
        TRAFFIC_WHOLE,
        PRUNE_TRAFFIC_HASHES,
        KEEP_TRAFFIC_BODY,
        TRAFFIC_BODY,
        TRAFFIC_BODY_BYTES,
        TRAFFIC_BODY_OLDEST,
        PRUNE_TRAFFIC_BODY,
        NOTE_NODE,
        NODE_NOTES,
        DROP_NODE_NOTES,
        PUT_STATISTIC_FRAME,
        PUT_STATISTIC_CHUNK,
        DROP_STATISTIC_FRAMES,
        STATISTIC_FRAMES,
        STATISTIC_CHUNKS_OF,
        STATISTIC_CHUNKS,
        STATISTIC_BYTES,
        OLDEST_STATISTICS,
        PRUNE_STATISTIC_FRAMES,
        PRUNE_STATISTIC_CHUNKS,
    ];
}

/// A statement with a different text for each engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) sqlite: &'static str,
    pub(crate) postgres: &'static str,
}

/// Several documents by a JSON list of ids.
pub(crate) const GET_MANY: Pair = Pair {
    sqlite: document!("WHERE d.id IN (SELECT value FROM json_each($1))"),
    postgres: document!(
        "WHERE d.id = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST($1 AS jsonb))))"
    ),
};

/// Whether any document that holds a key from a JSON list of values was written after a revision.
pub(crate) const WRITTEN_SINCE: Pair = Pair {
    sqlite: "SELECT d.id FROM document_key k JOIN document d ON d.id = k.id \
         WHERE k.kind = $1 AND k.name = $2 AND k.value IN (SELECT value FROM json_each($3)) \
         AND d.revision > $4 LIMIT 1",
    postgres: "SELECT d.id FROM document_key k JOIN document d ON d.id = k.id \
         WHERE k.kind = $1 AND k.name = $2 \
         AND k.value = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST($3 AS jsonb)))) \
         AND d.revision > $4 LIMIT 1",
};

/// A page of the documents whose body contains a text.
pub(crate) const PAGE_CONTAINING: Pair = Pair {
    sqlite: document!(
        "WHERE d.kind = $1 AND d.account = $2 AND d.id < $3 AND instr(d.body, $5) > 0 \
         ORDER BY d.id DESC LIMIT $4"
    ),
    postgres: document!(
        "WHERE d.kind = $1 AND d.account = $2 AND d.id < $3 AND strpos(d.body, $5) > 0 \
         ORDER BY d.id DESC LIMIT $4"
    ),
};

/// Inserts text rows from a JSON list of lists: id, field, kind, account, value.
pub(crate) const INSERT_TEXTS: Pair = Pair {
    sqlite: "INSERT INTO document_text (id, field, kind, account, value) \
         SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 \
         FROM json_each($1) WHERE true ON CONFLICT DO NOTHING",
    postgres: "INSERT INTO document_text (id, field, kind, account, value) \
         SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 \
         FROM jsonb_array_elements(CAST($1 AS jsonb)) ON CONFLICT DO NOTHING",
};

/// Removes the rows of a JSON list of ids.
pub(crate) const REMOVE_TEXTS: Pair = Pair {
    sqlite: "DELETE FROM document_text WHERE id IN (SELECT value FROM json_each($1))",
    postgres: "DELETE FROM document_text \
         WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST($1 AS jsonb))))",
};

/// Selects ids by a JSON list of values.
pub(crate) const TEXTS_ONE_OF: Pair = Pair {
    sqlite: "SELECT id FROM document_text WHERE kind = $1 AND account = $2 AND field = $3 \
         AND value IN (SELECT value FROM json_each($5)) LIMIT $4",
    // One range query in the order of the index for each value. For a list, the planner
    // overestimates the number of rows; for an equality, it may scan all ids.
    postgres: "SELECT t.id FROM \
         (SELECT DISTINCT jsonb_array_elements_text(CAST($5 AS jsonb)) AS value) v \
         CROSS JOIN LATERAL (SELECT id FROM document_text \
           WHERE kind = $1 AND account = $2 AND field = $3 \
           AND value >= v.value AND value <= v.value ORDER BY value, id LIMIT $4) t LIMIT $4",
};

/// Selects ids by a part of a value. If the row has only the beginning of a value
/// (`text_index.rs`), the document's body is searched.
pub(crate) const TEXTS_CONTAINING: Pair = Pair {
    sqlite: "SELECT t.id FROM document_text t \
         WHERE t.kind = $1 AND t.account = $2 AND t.field = $3 AND (instr(t.value, $5) > 0 \
           OR (length(CAST(t.value AS BLOB)) > 256 AND EXISTS (SELECT 1 FROM document d \
             WHERE d.id = t.id AND instr(d.body, $6) > 0))) LIMIT $4",
    postgres: "SELECT t.id FROM document_text t \
         WHERE t.kind = $1 AND t.account = $2 AND t.field = $3 AND (strpos(t.value, $5) > 0 \
           OR (octet_length(t.value) > 256 AND EXISTS (SELECT 1 FROM document d \
             WHERE d.id = t.id AND strpos(d.body, $6) > 0))) LIMIT $4",
};

/// Locks a batch that is held with a fence. PostgreSQL only.
pub(crate) const LOCK_HELD: &str = "SELECT id FROM batch \
     WHERE id = $1 AND fence = $2 AND lease_until IS NOT NULL FOR UPDATE";

/// Locks the row of a process that writes to the queue. PostgreSQL only.
pub(crate) const LOCK_WRITER: &str = "SELECT number FROM writer WHERE id = $1 FOR UPDATE";

/// Leases batches by a JSON list of ids. They were found free in their queue; those that another
/// node has leased since are skipped.
pub(crate) const LEASE_LISTED: Pair = Pair {
    sqlite: lease_listed!("(SELECT value FROM json_each($3))"),
    postgres: lease_listed!(
        "(SELECT CAST(jsonb_array_elements_text(CAST($3 AS jsonb)) AS BIGINT))"
    ),
};

/// Selects the bodies of batches by a JSON list of ids.
pub(crate) const BODIES: Pair = Pair {
    sqlite: "SELECT id, stored FROM body WHERE id IN (SELECT value FROM json_each($1))",
    postgres: "SELECT id, stored FROM body WHERE id = \
         ANY (ARRAY(SELECT CAST(jsonb_array_elements_text(CAST($1 AS jsonb)) AS BIGINT)))",
};

/// 1 once the first migration has run.
pub(crate) const HAS_META: Pair = Pair {
    sqlite: "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'meta'",
    postgres: "SELECT count(*) FROM information_schema.tables \
         WHERE table_schema = current_schema() AND table_name = 'meta'",
};

/// The process and the role that hold the lock of migrations of a schema. PostgreSQL only.
pub(crate) const MIGRATION_LOCK_HOLDER: &str = "SELECT 'process ' || CAST(a.pid AS TEXT) || ' of role ' || a.usename \
     FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid \
     WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted \
     AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
     AND (CAST(l.classid AS BIGINT) << 32) + CAST(l.objid AS BIGINT) = CAST(hashtext($1) AS BIGINT) LIMIT 1";

/// A machine that disappears without closing its connection is noticed after half a minute, not
/// after hours.
pub(crate) const KEEP_ALIVE: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
     SET tcp_keepalives_count = 4";

/// Sends several messages to the listeners of a channel. PostgreSQL only.
pub(crate) const TELL: &str =
    "SELECT pg_notify($1, message) FROM unnest($2::text[]) AS sent(message)";

/// [`state::NOTE_WRITER`] and [`state::ADVANCE`], which also sends each text of a JSON list to a channel when the transaction
/// commits. PostgreSQL only.
pub(crate) const ADVANCE_AND_NOTIFY: &str = "WITH noted AS (INSERT INTO writer (id, revision) \
       VALUES ($6, $1) ON CONFLICT (id) DO UPDATE SET revision = excluded.revision) \
     UPDATE ledger SET revision = $1, outbox = $2, chained = $3, head = $4, texts = $5, \
       writer = $6, written = $1 \
     RETURNING (SELECT count(pg_notify($7, message)) \
       FROM jsonb_array_elements_text(CAST($8 AS jsonb)) AS sent(message))";

/// Claims a node's name for this connection. Returns 1 if it succeeds, 0 if another connection has
/// the name. A SQLite file has one process.
pub(crate) const CLAIM: Pair = Pair {
    sqlite: "SELECT 1 WHERE $1 IS NOT NULL",
    postgres: "SELECT CAST(CAST(pg_try_advisory_lock(hashtextextended('culvert node ' || $1, 0)) \
         AS INTEGER) AS BIGINT)",
};

/// The current time, in microseconds since the Unix epoch.
pub(crate) const NOW: Pair = Pair {
    sqlite: "SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
    postgres: "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)",
};

/// Pages of the events of an object, an actor or a kind.
pub(crate) const AUDIT_NEWEST_OF: [Pair; 3] = [
    audit_pages!(newest_of, "o.object_id"),
    audit_pages!(newest_of, "o.actor_id"),
    audit_pages!(newest_of, "o.kind"),
];
pub(crate) const AUDIT_OLDEST_OF: [Pair; 3] = [
    audit_pages!(oldest_of, "o.object_id"),
    audit_pages!(oldest_of, "o.actor_id"),
    audit_pages!(oldest_of, "o.kind"),
];
/// Summaries of the pieces of an endpoint.
pub(crate) const SUMMARIES_OF_NEWEST: Pair = summary_pages!(newest_of);
pub(crate) const SUMMARIES_OF_OLDEST: Pair = summary_pages!(oldest_of);

/// Indexes a piece by the endpoints in a JSON list.
pub(crate) const INDEX_PIECE: Pair = Pair {
    sqlite: "INSERT INTO traffic_endpoint (endpoint, piece) \
         SELECT value, $1 FROM json_each($2) WHERE true ON CONFLICT DO NOTHING",
    postgres: "INSERT INTO traffic_endpoint (endpoint, piece) \
         SELECT value, CAST($1 AS BIGINT) FROM jsonb_array_elements_text(CAST($2 AS jsonb)) \
         ON CONFLICT DO NOTHING",
};

/// Marks the pieces of the traffic log that the transaction writes: a shared advisory lock until its end,
/// whose key contains the last position before them. The upper 24 bits of the key say that it is such a lock.
/// No one waits for it. A SQLite file has one writer.
pub(crate) const BEGIN_KEEPING: Pair = Pair {
    sqlite: "SELECT MAX(id) FROM traffic",
    postgres: concat!(
        "SELECT pg_advisory_xact_lock_shared((CAST(",
        keeping!(),
        " AS BIGINT) << 40) + COALESCE(MAX(id), 0)) FROM traffic"
    ),
};

/// The position behind which pieces are being written; null if none is. Every role of the database can take such a lock.
/// Those of roles that cannot write pieces do not count.
pub(crate) const UNSETTLED: Pair = Pair {
    sqlite: "SELECT CAST(NULL AS INTEGER)",
    postgres: concat!(
        "SELECT MIN(((CAST(l.classid AS BIGINT) & 255) << 32) + CAST(l.objid AS BIGINT)) FROM pg_locks l \
         JOIN pg_stat_activity a ON a.pid = l.pid JOIN pg_class c ON c.oid = to_regclass('traffic') \
         WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ShareLock' \
         AND CAST(l.classid AS BIGINT) >> 8 = ",
        keeping!(),
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND (pg_has_role(a.usesysid, c.relowner, 'MEMBER') \
         OR has_schema_privilege(a.usesysid, c.relnamespace, 'USAGE') \
         AND has_table_privilege(a.usesysid, c.oid, 'INSERT'))"
    ),
};

#[cfg(test)]
pub(crate) const PAIRS: &[Pair] = &[
    INDEX_PIECE,
    AUDIT_NEWEST_OF[0],
    AUDIT_NEWEST_OF[1],
    AUDIT_NEWEST_OF[2],
    AUDIT_OLDEST_OF[0],
    AUDIT_OLDEST_OF[1],
    AUDIT_OLDEST_OF[2],
    SUMMARIES_OF_NEWEST,
    SUMMARIES_OF_OLDEST,
    BEGIN_KEEPING,
    UNSETTLED,
    CLAIM,
    NOW,
    LEASE_LISTED,
    BODIES,
    GET_MANY,
    WRITTEN_SINCE,
    PAGE_CONTAINING,
    INSERT_TEXTS,
    REMOVE_TEXTS,
    TEXTS_ONE_OF,
    TEXTS_CONTAINING,
    HAS_META,
];

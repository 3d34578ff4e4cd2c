//! The ids by which an audit event is found: those of its object and of its principal.
//!
//! Not here: how events are read by these ids (`event_index`).

use serde::Deserialize;

use crate::database::dialect::{Arg, Connection};
use crate::database::statements::state;

/// The ids by which an event is found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    /// The id of its object or session.
    pub(crate) object: String,
    /// The id of its principal.
    pub(crate) actor: String,
}

#[derive(Deserialize)]
struct Envelope {
    principal: Option<Identified>,
    object: Option<About>,
}

#[derive(Deserialize)]
struct About {
    id: Option<String>,
    session: Option<Identified>,
}

#[derive(Deserialize)]
struct Identified {
    id: Option<String>,
}

/// The id of an event's object or session, and the id of its principal. Empty if there is none.
pub fn event_names(envelope: &str) -> (String, String) {
    let Named { object, actor } = Named::of(envelope);
    (object, actor)
}

impl Named {
    /// The ids in an envelope; empty if it cannot be read.
    pub(crate) fn of(body: &str) -> Self {
        let Ok(envelope) = serde_json::from_str::<Envelope>(body) else {
            return Self::default();
        };
        let object = envelope
            .object
            .and_then(|about| about.id.or(about.session.and_then(|session| session.id)));
        let actor = envelope.principal.and_then(|principal| principal.id);
        Self {
            object: object.unwrap_or_default(),
            actor: actor.unwrap_or_default(),
        }
    }
}

/// Indexes at most `rows_max` rows. Returns how many.
pub(crate) async fn index(connection: &mut Connection, rows_max: i64) -> Result<u64, sqlx::Error> {
    let mut n_indexed = 0;
    for row in connection
        .rows(state::UNINDEXED, &[Arg::Int(rows_max)])
        .await?
    {
        let (seq, body): (i64, String) = (row.get(0)?, row.get(1)?);
        let named = Named::of(&body);
        let arguments = [
            Arg::Int(seq),
            Arg::Text(&named.object),
            Arg::Text(&named.actor),
        ];
        n_indexed += connection.run(state::INDEX_EVENT, &arguments).await?;
    }
    Ok(n_indexed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_found_by_its_object_and_its_principal() {
        let named = |object: &str, actor: &str| Named {
            object: object.to_owned(),
            actor: actor.to_owned(),
        };
        for (body, expected) in [
            (
                r#"{"principal":{"id":"usr_1"},"object":{"id":"ak_1"}}"#,
                named("ak_1", "usr_1"),
            ),
            (
                r#"{"principal":null,"object":{"session":{"id":"ts_1"}}}"#,
                named("ts_1", ""),
            ),
            (r#"{"object":{}}"#, named("", "")),
            ("[]", named("", "")),
            ("", named("", "")),
        ] {
            assert_eq!(Named::of(body), expected, "{body}");
        }
    }
}

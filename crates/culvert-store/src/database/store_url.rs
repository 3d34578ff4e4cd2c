//! The location of the store.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use culvert_base::Fault;

use super::postgres::Schema;

/// The location of the store.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// The state file. The queue is `events.db` beside it.
    Sqlite(PathBuf),
    /// A `postgres://` URL. The schemas are `culvert` and `culvert_events`.
    Postgres(String),
}

impl FromStr for StoreUrl {
    type Err = Fault;

    /// `postgres://…`, `postgresql://…`, `sqlite:<path>` or a path.
    fn from_str(text: &str) -> Result<Self, Fault> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Self::Postgres(text.to_owned()));
        }
        let path = text
            .strip_prefix("sqlite://")
            .or_else(|| text.strip_prefix("sqlite:"))
            .unwrap_or(text);
        if path.is_empty() || path.contains("://") {
            return Err(Fault::bare(
                "reading the database URL: it is neither a path nor a postgres:// URL",
            ));
        }
        Ok(Self::Sqlite(PathBuf::from(path)))
    }
}

impl StoreUrl {
    /// Checks the options in the URL, without a connection.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn check(&self) -> Result<(), Fault> {
        match self {
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(url) => Schema::at(url, "culvert").map(drop),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => f.debug_tuple("Sqlite").field(path).finish(),
            // The URL may contain a password.
            Self::Postgres(_) => f.write_str("Postgres([secret])"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_or_a_postgres_url() {
        let sqlite = |path: &str| StoreUrl::Sqlite(PathBuf::from(path));
        for (text, url) in [
            ("data/state.db", sqlite("data/state.db")),
            ("/var/lib/state.db", sqlite("/var/lib/state.db")),
            ("sqlite:state.db", sqlite("state.db")),
            ("sqlite:///var/state.db", sqlite("/var/state.db")),
            (
                "postgres://h/d",
                StoreUrl::Postgres("postgres://h/d".to_owned()),
            ),
            (
                "postgresql://h/d",
                StoreUrl::Postgres("postgresql://h/d".to_owned()),
            ),
        ] {
            assert_eq!(text.parse::<StoreUrl>().unwrap(), url);
        }
        for text in ["", "sqlite:", "mysql://h/d"] {
            assert!(text.parse::<StoreUrl>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_url_or_refused(text: String) {
            drop(text.parse::<StoreUrl>());
        }
    }
}

//! Why a database does not accept writes, in words for everyone.

use sqlx::error::DatabaseError;

/// A problem of a database that may pass without a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    /// Its reads may be behind those of its primary, so it is not used at all.
    #[error("a standby, which is read only")]
    Standby,
    #[error("read only")]
    ReadOnly,
    #[error("no free connection")]
    NoConnection,
    #[error("not reachable")]
    Unreachable,
    /// It accepts connections and does not finish commits.
    #[error("does not respond")]
    Stalled,
}

impl Trouble {
    /// The trouble behind an error; `None` if the statement is to blame.
    pub(crate) fn of(error: &sqlx::Error) -> Option<Self> {
        match error {
            sqlx::Error::Configuration(cause) => cause.downcast_ref::<Self>().copied(),
            sqlx::Error::Database(error) => Self::of_code(error.code().as_deref()?),
            sqlx::Error::PoolTimedOut => Some(Self::Stalled),
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed => Some(Self::Unreachable),
            _ => None,
        }
    }

    /// By SQLSTATE. The codes of SQLite have no five characters.
    fn of_code(code: &str) -> Option<Self> {
        let class = code.get(..2).filter(|_| code.len() == 5)?;
        match (class, code) {
            (_, "25006") => Some(Self::ReadOnly),
            // `admin_shutdown` and its like. A cancelled statement (57014) had no response in time.
            (_, "57014") => Some(Self::Stalled),
            ("08" | "57", _) => Some(Self::Unreachable),
            // The server ended the connection in a transaction: this process was paused, or had no processor, for too long.
            (_, "25P03" | "25P04") => Some(Self::Unreachable),
            (_, "53300") => Some(Self::NoConnection),
            // A lock that another transaction does not release.
            (_, "55P03") => Some(Self::Stalled),
            _ => None,
        }
    }

    /// An error of a connection that is not used.
    pub(crate) fn into_error(self) -> sqlx::Error {
        sqlx::Error::Configuration(Box::new(self))
    }
}

/// Whether an error ends the whole transaction and not only the statement: the connection or the server is not usable,
/// or PostgreSQL asks to repeat the transaction.
pub(crate) fn ends_transaction(error: &sqlx::Error) -> bool {
    // A statement that was cancelled, or got no lock, can be undone alone.
    let is_undone_alone =
        Trouble::of(error) == Some(Trouble::Stalled) && error.as_database_error().is_some();
    is_conflict(error) || Trouble::of(error).is_some() && !is_undone_alone
}

/// Whether a repetition of the transaction may succeed: a serialization failure or a deadlock of PostgreSQL.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| ["40001", "40P01"].contains(&&*code))
}

//! Commands on the machine of the server that change the installation.

use culvert_base::{Event, Fault};
use culvert_events::{Principal, Source};
use culvert_resources::stored::reencrypt::Reencrypted;
use culvert_store::Changes;
use schemars::JsonSchema;
use serde::Serialize;

use super::ServerLog;
use super::names::{ADMIN_COMMAND, MASTER_KEY_ROTATED};

/// A command of `culvert admin`, and the user of the operating system who ran it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminCommand {
    /// Its name: `create-key`.
    pub name: String,
    /// The name of the user; empty if it is not known.
    pub user: String,
    /// The number of the user.
    pub user_id: u32,
    /// The user who became this one with `sudo`, as `sudo` says; empty for none.
    pub sudo_user: String,
    /// The terminal; empty without one.
    pub terminal: String,
}

/// The object of the event of a command.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Commanded<'a> {
    /// The command: `create-key`, `lift-api-restriction`, `rotate-master-key`, or `move` with `--undo`.
    command: &'a str,
    /// The user of the operating system; empty if the name is not known.
    user: &'a str,
    /// The number of the user.
    user_id: u32,
    /// The user who became this one with `sudo`, as `sudo` says; null for none.
    sudo_user: Option<&'a str>,
    /// The terminal: `/dev/pts/3`; null without one.
    tty: Option<&'a str>,
}

/// The object of the event of a new master key.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MasterKeyRotated {
    /// Objects whose secrets were encrypted again.
    objects: u64,
    /// Values that look like encrypted secrets but are not; they are unchanged.
    unreadable: u64,
}

/// Longest name in an event, in bytes. The operating system has shorter ones.
const NAME_BYTES_MAX: usize = 256;

fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

fn named(name: &str) -> Option<&str> {
    (!name.is_empty()).then(|| shortened(name))
}

impl AdminCommand {
    /// Who runs it, as events show it.
    pub fn principal(&self) -> Principal {
        Principal {
            id: String::new(),
            subject: shortened(&self.user).to_owned(),
            source: Source::Cli,
            credential: None,
            context: None,
        }
    }

    /// Its event.
    pub fn event(
        &self,
        by: (&dyn culvert_base::Clock, &dyn culvert_base::Entropy),
        account: &str,
    ) -> Result<Event, Fault> {
        let object = Commanded {
            command: &self.name,
            user: shortened(&self.user),
            user_id: self.user_id,
            sudo_user: named(&self.sudo_user),
            tty: named(&self.terminal),
        };
        let principal = self.principal();
        super::event(by, account, ADMIN_COMMAND, Some(&principal), &object)
    }
}

impl ServerLog {
    /// Writes the event of a command, before its changes. Returns the ID of the event, for the events that follow; `None`
    /// before the first start of a server.
    ///
    /// # Errors
    /// If the store fails. Then the command must not change anything either.
    pub async fn commanded(&self, command: &AdminCommand) -> Result<Option<String>, Fault> {
        let Some(account) = self.account().await? else {
            return Ok(None);
        };
        let event = command.event((&*self.clock, &*self.entropy), &account)?;
        let id = event.id.clone();
        let written = self.store.commit(Changes::event(event)).await;
        written.map_err(|error| Fault::new("recording the command", error))?;
        Ok(Some(id))
    }

    /// Writes the event of a new master key, which follows the event `cause`.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn master_key_rotated(
        &self,
        command: &AdminCommand,
        cause: Option<&str>,
        reencrypted: Reencrypted,
    ) -> Result<(), Fault> {
        let Some(account) = self.account().await? else {
            return Ok(());
        };
        let object = MasterKeyRotated {
            objects: reencrypted.documents,
            unreadable: reencrypted.strange,
        };
        let principal = command.principal();
        let mut event = self.event(&account, MASTER_KEY_ROTATED, Some(&principal), &object)?;
        if let Some(cause) = cause {
            event = culvert_events::caused_by(event, cause);
        }
        let written = self.store.commit(Changes::event(event)).await;
        written.map_err(|error| Fault::new("recording the new master key", error))?;
        Ok(())
    }
}

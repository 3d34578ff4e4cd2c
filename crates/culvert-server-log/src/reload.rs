//! Changed settings of a running server.

use culvert_base::Fault;
use culvert_store::Changes;
use schemars::JsonSchema;
use serde::Serialize;

use super::ServerLog;
use super::names::SETTINGS_RELOADED;

/// A reload, and the object of its event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Reloaded {
    /// Name of the node.
    pub node: String,
    /// The names of the settings that changed. Values are not shown: some are secret.
    pub changed: Vec<String>,
    /// Those of them that take effect at the next start.
    pub waiting: Vec<String>,
    /// SHA-256 of the settings file in hexadecimal; null without a file.
    pub file_sha256: Option<String>,
}

impl ServerLog {
    /// Writes the event of a reload.
    pub async fn reloaded(&self, reloaded: &Reloaded) -> Result<(), Fault> {
        let Some(account) = self.account().await? else {
            return Ok(());
        };
        let event = self.event(&account, SETTINGS_RELOADED, None, reloaded)?;
        let written = self.store.commit(Changes::event(event)).await;
        written.map_err(|error| Fault::new("recording a reload", error))?;
        Ok(())
    }
}

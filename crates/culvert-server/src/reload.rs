//! Reload: reads the settings and the files they name again, and applies those that can change at run time.

use std::sync::Arc;

use culvert_control::{Reloaded, ServerWatch};
use culvert_edge::Edge;
use culvert_policy::{IpData, IpDatabases};
use serde_json::Value;

use crate::certificates::certificate_file::{self, CertificateFiles, SECTIONS};
use crate::server::{edge_settings, ip_data_files};
use crate::telemetry;
use culvert_installation::config::{Destinations, Invalid, LIVE, Settings, keys};

/// Applies new settings to a running server.
#[derive(Debug)]
pub struct Reload {
    settings: Settings,
    /// Those of the start. The edge uses some of them too, and must not differ from destinations.
    destinations: Destinations,
    edge: Option<Edge>,
    ip_data: IpDatabases,
    certificates: CertificateFiles,
    /// Reports reloads; `None` while the database is away.
    watch: Option<Arc<ServerWatch>>,
    /// SHA-256 of the settings file of the next reload.
    file_sha256: Option<String>,
}

impl Reload {
    /// The settings that are in force.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn new(
        settings: Settings,
        edge: Option<Edge>,
        ip_data: IpDatabases,
        certificates: CertificateFiles,
        watch: Option<Arc<ServerWatch>>,
    ) -> Self {
        Self {
            destinations: settings.destinations.clone(),
            settings,
            edge,
            ip_data,
            certificates,
            watch,
            file_sha256: None,
        }
    }

    /// The next settings to apply are from the file with this digest.
    pub fn from_file(&mut self, sha256: Option<String>) {
        self.file_sha256 = sha256;
    }

    /// Applies the reloadable keys of `settings`. Returns the changed keys that need a restart.
    ///
    /// # Errors
    ///
    /// If a setting is invalid, or a file that it names cannot be read. Then nothing has changed.
    pub fn apply(&mut self, settings: Settings) -> Result<Vec<String>, Invalid> {
        let edge_settings = edge_settings(&Settings {
            destinations: self.destinations.clone(),
            ..settings.clone()
        })?;
        let certificates = certificate_file::read(&settings)?;
        let ip_data =
            IpData::read(&ip_data_files(&settings)?).map_err(|fault| Invalid(fault.chain()))?;
        telemetry::reload(&settings.log)?;
        if let Some(edge) = &self.edge {
            edge.reload(&edge_settings)
                .map_err(|fault| Invalid(fault.chain()))?;
        }
        self.ip_data.replace(ip_data);
        if let Some(edge) = &self.edge {
            edge.tell_missing_data();
        }
        let changed = changed(&self.settings, &settings);
        let mut waiting = changed.clone();
        waiting.retain(|key| !LIVE.contains(&key.as_str()));
        let files = self.certificates.iter().zip(certificates);
        for ((shown, other), section) in files.zip(SECTIONS) {
            match (shown, other) {
                (Some(shown), Some(other)) => shown.replace(other),
                (None, None) => {}
                // Changing between a configured certificate and another one needs a restart.
                (Some(_), None) | (None, Some(_)) => waiting.push(format!("{section}.cert_file")),
            }
        }
        self.settings = settings;
        if let Some(watch) = &self.watch {
            watch.reloaded(Reloaded {
                changed,
                waiting: waiting.clone(),
                file_sha256: self.file_sha256.take(),
                ..Reloaded::default()
            });
        }
        Ok(waiting)
    }
}

/// The names of changed settings.
fn changed(before: &Settings, after: &Settings) -> Vec<String> {
    let value = |settings: &Settings, key: &str| {
        let json = serde_json::to_value(settings).expect("settings are always JSON");
        json.pointer(&format!("/{}", key.replace('.', "/")))
            .cloned()
            .unwrap_or(Value::Null)
    };
    let names = keys().iter().map(|key| &key.name);
    names
        .filter(|key| value(before, key) != value(after, key))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_settings_are_found_by_name() {
        let before = Settings::default();
        let mut after = before.clone();
        after.log.level = "debug".into();
        after.edge.domain = "other.example".into();
        assert_eq!(changed(&before, &after), ["edge.domain", "log.level"]);
    }
}

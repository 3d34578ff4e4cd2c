//! Reload: reads the settings and the files they name again, and applies those that can change at run time.

use std::sync::Arc;

use culvert_edge::Edge;
use culvert_policy::{IpData, IpDatabases};
use serde_json::Value;

use crate::config::{Invalid, LIVE, Settings, keys};
use crate::ingress::{self, OwnCertificate};
use crate::server::{edge_settings, ip_data_files};
use crate::telemetry;

/// Applies new settings to a running server.
#[derive(Debug)]
pub struct Reload {
    settings: Settings,
    edge: Option<Edge>,
    ip_data: IpDatabases,
    /// The certificate of the agent listener, if the operator configured one.
    certificate: Option<Arc<OwnCertificate>>,
}

impl Reload {
    pub(crate) fn new(
        settings: Settings,
        edge: Option<Edge>,
        ip_data: IpDatabases,
        certificate: Option<Arc<OwnCertificate>>,
    ) -> Self {
        Self {
            settings,
            edge,
            ip_data,
            certificate,
        }
    }

    /// Applies the reloadable keys of `settings`. Returns the changed keys that need a restart.
    ///
    /// # Errors
    ///
    /// If a setting is invalid, or a file that it names cannot be read. Then nothing has changed.
    pub fn apply(&mut self, settings: Settings) -> Result<Vec<String>, Invalid> {
        let edge_settings = edge_settings(&settings)?;
        let certificate = ingress::certified_key(&settings)?;
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
        let mut waiting = waiting(&self.settings, &settings);
        match (&self.certificate, certificate) {
            (Some(shown), Some(other)) => shown.replace(other),
            (None, None) => {}
            // Changing between a configured certificate and the installation's own needs a restart.
            (Some(_), None) | (None, Some(_)) => waiting.push("agents.cert_file".to_owned()),
        }
        self.settings = settings;
        Ok(waiting)
    }
}

/// Changed keys that need a restart.
fn waiting(before: &Settings, after: &Settings) -> Vec<String> {
    let value = |settings: &Settings, key: &str| {
        let json = serde_json::to_value(settings).expect("settings are always JSON");
        json.pointer(&format!("/{}", key.replace('.', "/")))
            .cloned()
            .unwrap_or(Value::Null)
    };
    keys()
        .into_iter()
        .map(|key| key.name)
        .filter(|key| !LIVE.contains(&key.as_str()))
        .filter(|key| value(before, key) != value(after, key))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_and_is_not_live_waits() {
        let before = Settings::default();
        let mut after = before.clone();
        after.log.level = "debug".into();
        after.edge.domain = "other.example".into();
        assert_eq!(waiting(&before, &after), ["edge.domain"]);
    }
}

//! The `destinations.*` settings of the server.

use std::path::PathBuf;

use url::Url;

use crate::aws::settings::AwsSettings;
use crate::guard::Rules;
use crate::net::NetSettings;

/// Server configuration of targets: the `destinations.*` settings.
#[derive(Clone, Debug, Default)]
pub struct TargetSettings {
    /// What outgoing requests may reach.
    pub rules: Rules,
    /// Certificates, PEM, trusted beside the system's (`destinations.tls.extra_ca_file`).
    pub extra_ca_file: Option<PathBuf>,
    /// Folder under which `file` destinations write (`destinations.file.root`); none: they are
    /// refused.
    pub file_root: Option<PathBuf>,
    /// Public base URL of the management API without a trailing slash, for the `source` of
    /// CloudEvents.
    pub public_base: String,
    /// This node's name, for targets that keep nodes apart.
    pub node: String,
    /// Where the services of Amazon are, and who this server is to them (`destinations.aws`).
    pub aws: AwsSettings,
    /// Replaces `https://http-intake.logs.<site>` (`destinations.datadog.base_url`).
    pub datadog_base: Option<Url>,
    /// Sites of Datadog beside those that are known (`destinations.datadog.sites`).
    pub datadog_sites: Vec<String>,
    /// Replaces `https://login.microsoftonline.com` (`destinations.azure.authority_url`).
    pub azure_authority: Option<Url>,
}

impl TargetSettings {
    /// The settings of the network client.
    pub fn net(&self) -> NetSettings {
        NetSettings {
            rules: self.rules.clone(),
            extra_ca_file: self.extra_ca_file.clone(),
        }
    }
}

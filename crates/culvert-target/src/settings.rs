//! The `destinations.*` settings of the server.

pub mod aws;

use std::path::PathBuf;

use culvert_io::forward_proxy::Proxies;
use url::Url;

use self::aws::AwsSettings;
use crate::client::guard::Rules;
use crate::client::net::NetSettings;

/// Server configuration of targets: the `destinations.*` settings.
#[derive(Clone, Debug, Default)]
pub struct TargetSettings {
    /// Addresses that outgoing requests may reach.
    pub rules: Rules,
    /// PEM file of certificates that are trusted besides the system's
    /// (`destinations.tls.extra_ca_file`).
    pub extra_ca_file: Option<PathBuf>,
    /// Proxies of HTTP requests (`destinations.proxy_from_environment`).
    pub proxies: Proxies,
    /// Directory under which `file` destinations write (`destinations.file.root`). If `None`, such
    /// destinations are rejected.
    pub file_root: Option<PathBuf>,
    /// Public base URL of the management API without a trailing slash, for the `source` of
    /// CloudEvents.
    pub public_base: String,
    /// This node's name, for targets that separate data by node.
    pub node: String,
    /// Endpoints and credentials of Amazon services (`destinations.aws`).
    pub aws: AwsSettings,
    /// Replaces `https://http-intake.logs.<site>` (`destinations.datadog.base_url`).
    pub datadog_base: Option<Url>,
    /// Further Datadog sites besides the built-in ones (`destinations.datadog.sites`).
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
            proxies: self.proxies.clone(),
        }
    }
}

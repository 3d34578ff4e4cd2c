//! Everything that targets need when they are opened.

use std::sync::Arc;

use culvert_base::{Clock, Entropy};

use crate::client::net::Net;
use crate::client::rotating_file::FileRoots;
use crate::settings::TargetSettings;

/// The network client, the settings and the open files that targets use.
#[derive(Clone, Debug)]
pub struct TargetContext {
    net: Net,
    settings: Arc<TargetSettings>,
    files: Arc<FileRoots>,
}

impl TargetContext {
    /// A context whose client uses the resolver of the operating system.
    pub fn new(settings: TargetSettings, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        let net = Net::new(settings.net(), clock, entropy);
        Self::with_net(settings, net)
    }

    /// A context with a given client.
    pub fn with_net(settings: TargetSettings, net: Net) -> Self {
        Self {
            net,
            settings: Arc::new(settings),
            files: Arc::default(),
        }
    }

    /// The network client.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// The settings of targets.
    pub fn settings(&self) -> &TargetSettings {
        &self.settings
    }

    /// Open files, by path. Destinations with the same path share a file.
    pub fn files(&self) -> &FileRoots {
        &self.files
    }
}

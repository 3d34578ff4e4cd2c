//! Managed certificates: orders, challenges and renewals.

use std::sync::Arc;

use anyhow::Result;
use culvert_base::BoxFuture;
use culvert_control::Control;

use crate::server::foundation::Foundation;
use crate::server::part::{self, Name, Start};

pub(super) struct Part {
    control: Arc<Control>,
}

impl Part {
    pub(super) fn new(foundation: &Foundation) -> Self {
        Self {
            control: foundation.control.clone(),
        }
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::Certificates
    }

    /// The edge responds to challenges. If it stopped first, a certificate authority could find no response, and mark the
    /// name as invalid.
    fn depends_on(&self) -> &'static [Name] {
        &[Name::Control, Name::Edge]
    }

    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let manage = |stop| self.control.certificates.clone().manage_certificates(stop);
            start.tasks.start("certificates", manage);
            Ok(())
        })
    }
}

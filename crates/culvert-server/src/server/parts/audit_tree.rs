//! The tree over the audit log and its signed heads.

use std::sync::Arc;

use anyhow::Result;
use culvert_audit_tree::AuditTreeKeeper;
use culvert_audit_tree::witnesses::WitnessClient;
use culvert_base::BoxFuture;

use crate::server::foundation::Foundation;
use crate::server::part::{self, Name, Start};

pub(super) struct Part {
    keeper: Arc<AuditTreeKeeper>,
    witnesses: Vec<Arc<WitnessClient>>,
}

impl Part {
    pub(super) fn new(foundation: &Foundation) -> Self {
        Self {
            keeper: foundation.audit_tree.clone(),
            witnesses: foundation.witnesses.clone(),
        }
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::AuditTree
    }

    fn depends_on(&self) -> &'static [Name] {
        &[]
    }

    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            for witness in &self.witnesses {
                let (witness, signed) = (witness.clone(), self.keeper.signed());
                let ask = |stop| witness.run(signed, stop);
                start.tasks.start("audit_witness", ask);
            }
            let keeper = self.keeper.clone();
            start.tasks.start("audit_tree", |stop| keeper.run(stop));
            Ok(())
        })
    }
}

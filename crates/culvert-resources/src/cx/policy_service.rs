//! The port for what traffic policies use of the process, whose type this crate does not know.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// What traffic policies may use of this process, for the crate that knows its type.
#[derive(Clone)]
pub struct PolicyService(Arc<dyn Any + Send + Sync>);

impl PolicyService {
    /// Wraps a service.
    pub fn new<T: Any + Send + Sync>(service: T) -> Self {
        Self(Arc::new(service))
    }

    /// The service, if it has this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for PolicyService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PolicyService")
    }
}

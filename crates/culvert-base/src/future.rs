//! The boxed future of ports and erased tables.

use std::future::Future;
use std::pin::Pin;

/// A future whose type is erased. Ports between crates return it; inside a crate plain `async fn` is
/// used.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

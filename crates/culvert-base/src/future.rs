//! The boxed future that ports and tables of trait objects return.

use std::future::Future;
use std::pin::Pin;

/// A boxed future. Ports between crates return it; code inside a crate uses plain `async fn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

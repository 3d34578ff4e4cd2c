//! The proxies that the environment names.

use culvert_io::forward_proxy::Proxies;

use crate::config::{Invalid, Settings, environment};

/// The proxies of requests that a process with these settings sends.
///
/// # Errors
/// If the settings use the environment, and one of its variables names no usable proxy.
pub fn proxies(settings: &Settings) -> Result<Proxies, Invalid> {
    if !settings.destinations.proxy_from_environment {
        return Ok(Proxies::default());
    }
    let environment = environment();
    Proxies::read(|name| environment.get(name).cloned()).map_err(|why| {
        Invalid(format!(
            "`destinations.proxy_from_environment` is set, and the variable {why}"
        ))
    })
}

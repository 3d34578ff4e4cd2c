//! Lists of networks.

use std::net::IpAddr;

use culvert_command::Invalid;
use ipnet::IpNet;

/// Parses the networks and addresses of a setting.
///
/// # Errors
/// If one of them is neither.
pub fn networks(key: &str, list: &[String]) -> Result<Vec<IpNet>, Invalid> {
    list.iter()
        .map(|text| {
            let text = text.trim();
            text.parse()
                .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| {
                    Invalid(format!(
                        "`{key}` contains `{text}`, which is not a network such as `10.0.0.0/8`"
                    ))
                })
        })
        .collect()
}

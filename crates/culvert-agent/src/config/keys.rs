//! The settings of the agent in a configuration file: one table for both versions of ngrok's format. In version 2 they
//! are at the top of the file, in version 3 below `agent`.

use std::path::Path;
use std::time::Duration;

use culvert_base::Secret;
use culvert_tunnel::CongestionControl;
use culvert_tunnel::client::{Interface, Proxy};
use serde_json::Value;

use super::Inspect;
use super::definition::truth;
use super::identity::{Authorities, Identity, inspect_at};
use crate::log::{LogStyle, LogTo, parse_level};
use culvert_command::read_token;

/// A key.
pub(super) struct AgentKey {
    pub(super) name: &'static str,
    read: Read,
}

/// Applies the value of a key, which may name a file in this directory. Returns the reason if the value has no effect.
type Read = fn(&mut AgentPart, &Value, &Path) -> Result<Option<&'static str>, String>;

/// The settings that were read.
#[derive(Debug, Default)]
pub(super) struct AgentPart {
    pub(super) identity: Identity,
    /// Whether requests are not recorded for any endpoint.
    pub(super) records_nothing: bool,
    /// Whether the file names a revocation list.
    pub(super) has_revocation_list: bool,
    /// Whether the file says that revocation lists are not needed.
    pub(super) ignores_revocation: bool,
    /// Whether the agent's token came from `authtoken` or `authtoken_file`.
    has_token: bool,
}

impl AgentKey {
    /// Applies a value. `null` is like a missing key.
    pub(super) fn read(
        &self,
        part: &mut AgentPart,
        value: &Value,
        folder: &Path,
    ) -> Result<Option<&'static str>, String> {
        match value {
            Value::Null => Ok(None),
            value => (self.read)(part, value, folder),
        }
    }
}

macro_rules! keys {
    ($($name:literal => $read:expr;)*) => {
        &[$(AgentKey { name: $name, read: $read }),*]
    };
}

/// Every key, sorted by name.
pub(super) static KEYS: &[AgentKey] = keys![
    "api_key" => |_, _, _| Ok(Some("`culvert api` uses the key of `culvert login`"));
    "authtoken" => |part, value, _| {
        part.set_token(Secret::new(text(value)?.to_owned()))
    };
    "authtoken_file" => |part, value, folder| {
        let token = read_token(&folder.join(text(value)?));
        part.set_token(Secret::new(token.map_err(|error| culvert_base::chain(error.as_ref()))?))
    };
    "congestion_control" => |part, value, _| {
        part.identity.congestion_control = Some(CongestionControl::parse(text(value)?)?);
        Ok(None)
    };
    "connect_cas" => authorities;
    "connect_interface" => |part, value, _| {
        part.identity.interface = Some(Interface::parse(text(value)?)?);
        Ok(None)
    };
    "connect_timeout" => |part, value, _| {
        part.identity.connect_timeout = Some(duration(value, 1..=300)?);
        Ok(None)
    };
    "connect_url" => server;
    "console_ui" => |part, value, _| {
        part.identity.has_screen = Some(match value.as_str() {
            Some("iftty") => true,
            _ => truth(value).map_err(|_| "the value must be true, false or iftty")?,
        });
        Ok(None)
    };
    "console_ui_color" => |_, value, _| match text(value)? {
        "transparent" => Ok(None),
        _ => Ok(Some("the screen has the terminal's background")),
    };
    "crl_noverify" => |part, value, _| {
        part.ignores_revocation = truth(value)?;
        Ok((!part.ignores_revocation).then_some("the agent reads no revocation lists"))
    };
    "crl_url" => |part, value, _| {
        text(value)?;
        part.has_revocation_list = true;
        Ok(Some("the agent reads no revocation lists"))
    };
    "dns_resolver_ips" => |_, _, _| Ok(Some("the agent uses the resolver of the system"));
    "heartbeat_interval" => |part, value, _| {
        part.identity.heartbeat_interval = Some(duration(value, 1..=600)?);
        Ok(None)
    };
    "heartbeat_tolerance" => |part, value, _| {
        part.identity.heartbeat_tolerance = Some(duration(value, 1..=600)?);
        Ok(None)
    };
    "inspect_db_size" => |part, value, _| match value.as_i64() {
        Some(-1) => {
            part.records_nothing = true;
            Ok(None)
        }
        Some(0) => Ok(None),
        Some(1..) => Ok(Some("the agent records up to 500 requests of 8 MiB in total")),
        _ => Err("the value must be -1, 0 or a number of bytes".into()),
    };
    "local_storage" => |part, value, _| {
        part.records_nothing |= !truth(value)?;
        Ok(None)
    };
    "log" => |part, value, folder| {
        part.identity.log.to = match value {
            Value::Bool(false) => LogTo::Off,
            value => match LogTo::parse(text(value)?) {
                LogTo::File(path) => LogTo::File(folder.join(path)),
                to => to,
            },
        };
        Ok(None)
    };
    "log_format" => |part, value, _| {
        part.identity.log.style = Some(LogStyle::parse(text(value)?)?);
        Ok(None)
    };
    "log_level" => |part, value, _| {
        part.identity.log.level = Some(parse_level(text(value)?)?);
        Ok(None)
    };
    "metadata" => |part, value, _| {
        part.identity.metadata = Some(text(value)?.to_owned());
        Ok(None)
    };
    "proxy_url" => |part, value, _| {
        Proxy::parse(text(value)?)?;
        part.identity.proxy = Some(text(value)?.to_owned());
        Ok(None)
    };
    "region" => |_, _, _| Ok(Some("the server decides the region"));
    "remote_management" => |part, value, _| {
        part.identity.is_managed = Some(truth(value)?);
        Ok(None)
    };
    "root_cas" => authorities;
    "server_addr" => server;
    "update_channel" => |_, _, _| Ok(Some(NO_UPDATES));
    "update_check" => |_, value, _| match truth(value)? {
        true => Ok(Some(NO_UPDATES)),
        false => Ok(None),
    };
    "update_url" => |_, _, _| Ok(Some(NO_UPDATES));
    "web_addr" => |part, value, _| {
        part.identity.inspect = Some(match value {
            Value::Bool(false) => Inspect::Off,
            value => match text(value)? {
                "false" => Inspect::Off,
                address => inspect_at(address)?,
            },
        });
        Ok(None)
    };
    "web_allow_hosts" => |_, _, _| {
        Ok(Some("the inspection page accepts only host names of this machine"))
    };
];

/// Why a revocation list is refused: without it, the agent would accept certificates that the list excludes.
pub(super) const NO_REVOCATION: &str = "the agent reads no revocation lists; to exclude a server's certificate, give `connect_cas` a CA that did not sign it, and remove the key or add `crl_noverify: true`";

const NO_UPDATES: &str = "the agent does not update itself; use the package manager";

impl AgentPart {
    fn set_token(&mut self, token: Secret) -> Result<Option<&'static str>, String> {
        if std::mem::replace(&mut self.has_token, true) {
            return Err("`authtoken` and `authtoken_file` are mutually exclusive".into());
        }
        self.identity.token = Some(token).filter(|token| !token.is_empty());
        Ok(None)
    }
}

fn authorities(
    part: &mut AgentPart,
    value: &Value,
    folder: &Path,
) -> Result<Option<&'static str>, String> {
    part.identity.ca = match text(value)? {
        // ngrok's own CA; here that of a server on this machine, or the system's.
        "trusted" => None,
        "host" => Some(Authorities::System),
        path => Some(Authorities::File(folder.join(path))),
    };
    Ok(None)
}

fn server(part: &mut AgentPart, value: &Value, _: &Path) -> Result<Option<&'static str>, String> {
    let address = text(value)?;
    if address.contains("://") {
        return Err("the value must be `host:port`, without a scheme".into());
    }
    part.identity.server = Some(address.to_owned());
    Ok(None)
}

fn text(value: &Value) -> Result<&str, String> {
    value
        .as_str()
        .ok_or_else(|| "the value must be a text".into())
}

/// A duration such as `10s` or `1m30s`, within these seconds.
fn duration(value: &Value, seconds: std::ops::RangeInclusive<u64>) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "the value must be a duration from {} s to {} s, such as `10s`",
            seconds.start(),
            seconds.end()
        )
    };
    let duration: jiff::SignedDuration = text(value)
        .map_err(|_| wrong())?
        .parse()
        .map_err(|_| wrong())?;
    let duration = Duration::try_from(duration).map_err(|_| wrong())?;
    let (least, most) = (
        Duration::from_secs(*seconds.start()),
        Duration::from_secs(*seconds.end()),
    );
    match least <= duration && duration <= most {
        true => Ok(duration),
        false => Err(wrong()),
    }
}

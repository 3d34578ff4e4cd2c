//! The restrictions in a body: of a new API key, and in an update of its restrictions.

use culvert_base::{Fault, Prefix, Refusal, Timestamp, code};
use culvert_resources::Role;
use culvert_resources::access::key_restrictions::{KeyRestrictions, NETWORKS_MAX, Network};
use culvert_resources::access::right::{Scope, Scopes};
use culvert_resources::audit::trace::OperationKind;
use culvert_resources::input::end::end;
use serde_json::Value;

pub(crate) static API_KEY_RESTRICTED: OperationKind = OperationKind {
    name: "api_key_restricted.v0",
    doc: "The restrictions of an API key were changed, or an API key was created with some.",
    shows_body: false,
};

/// The restrictions that a body names. Those that it does not name stay as they are; an empty value lifts one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) role: Option<&'a str>,
    pub(crate) scopes: Option<&'a [String]>,
    pub(crate) expires_at: Option<&'a str>,
    pub(crate) networks: Option<&'a [String]>,
}

impl Wanted<'_> {
    /// The restrictions after the change. Codes 215 and 241.
    pub(crate) fn applied(
        &self,
        to: &KeyRestrictions,
        now: Timestamp,
    ) -> Result<KeyRestrictions, Refusal> {
        let mut new = to.clone();
        if let Some(role) = self.role {
            new.role = check_role(role)?;
        }
        if let Some(scopes) = self.scopes {
            new.scopes = check_scopes(scopes)?;
        }
        match self.expires_at {
            None => {}
            Some("") => new.expires_at = None,
            Some(text) => new.expires_at = Some(end("expires_at", text, now)?),
        }
        if let Some(networks) = self.networks {
            new.networks = check_networks(networks)?;
        }
        Ok(new)
    }
}

fn check_role(text: &str) -> Result<Option<Role>, Refusal> {
    match text {
        "" => Ok(None),
        name => match Role::parse(name) {
            Some(role) => Ok(Some(role)),
            None => Err(Refusal::new(
                code::BODY_FIELD_INVALID,
                "`role` must be `read_only`, `member` or `admin`.",
            )),
        },
    }
}

fn check_scopes(names: &[String]) -> Result<Scopes, Refusal> {
    let read = |(index, name): (usize, &String)| {
        Scope::parse(name).ok_or_else(|| {
            let why = format!("`scopes[{index}]` is not a scope, such as `endpoints.read`.");
            Refusal::new(code::BODY_FIELD_INVALID, why)
        })
    };
    names.iter().enumerate().map(read).collect()
}

fn check_networks(texts: &[String]) -> Result<Vec<Network>, Refusal> {
    let wrong = |why: String| Refusal::new(code::BODY_FIELD_INVALID, why);
    if texts.len() > NETWORKS_MAX {
        let why = format!("`networks` may have at most {NETWORKS_MAX} networks.");
        return Err(wrong(why));
    }
    let read = |(index, text): (usize, &String)| match Prefix::parse(text) {
        Ok(prefix) => Ok(Network(prefix)),
        Err(error) => Err(wrong(format!("`networks[{index}]` is invalid: {error}."))),
    };
    texts.iter().enumerate().map(read).collect()
}

/// Restrictions as events show them.
pub(crate) fn shown_restrictions(restrictions: &KeyRestrictions) -> Result<Value, Fault> {
    serde_json::to_value(restrictions)
        .map_err(|error| Fault::new("writing the restrictions of a key", error))
}

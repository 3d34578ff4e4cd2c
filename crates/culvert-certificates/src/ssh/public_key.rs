//! SSH public key: identifies a client of reverse SSH tunnels (contract: management API 2.13, where it is
//! called an SSH credential).
//!
//! A key belongs to one owner in the whole installation, because the key alone identifies the client. A key
//! that is registered as an authority does not sign in itself; the certificates that it signed do.

use culvert_base::{Code, Description, Fault, Ksuid, Metadata, Refusal, code};
use culvert_resources::Error;
use culvert_resources::access::acl::{self, Acl};
use culvert_resources::access::owner;
use culvert_resources::cx::Cx;
use culvert_resources::input;
use culvert_resources::list::listfilter::{self, Field, Shape, field};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::{self, Format};
use culvert_store::{Document, Head, Store};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::ssh::public_key_model::{KEY, SshPublicKey};
use crate::ssh::{Algorithm, PublicKey};

/// The row of SSH public keys in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<SshPublicKey>();

/// Prefix of an authority's key, as in an `authorized_keys` file.
const AUTHORITY: &str = "cert-authority";

/// A new SSH public key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "SshPublicKeyCreate", extend("required" = ["public_key"]), transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// One line of an OpenSSH `.pub` file with an RSA, ECDSA or Ed25519 key. With the prefix
    /// `cert-authority` and a space, the key is a CA: user certificates that it signed can
    /// authenticate, but not the key itself; it must be an ECDSA or Ed25519 key. Required.
    #[schemars(length(min = 1, max = 8192))]
    public_key: String,
    /// Addresses that endpoints may bind. Each rule is `*`, or `bind:` followed by a domain, `*.`
    /// and a domain, `host:port`, `key=value` with `*` allowed on either side, or `*`. Default:
    /// all.
    #[schemars(with = "Vec<String>", extend("maxItems" = acl::RULES_MAX, "items" = {"type": "string", "minLength": 1, "maxLength": acl::RULE_BYTES_MAX}))]
    acl: Acl,
    /// Owner of the key: ID of a user or bot user, or e-mail address of a user. Default: the owner
    /// of the caller's API key. Only admins may set another owner.
    owner_id: String,
}

/// Changes to an SSH public key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "SshPublicKeyUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// Addresses that new endpoints may bind; `[]` allows all.
    #[schemars(with = "Option<Vec<String>>", extend("maxItems" = acl::RULES_MAX, "items" = {"type": "string", "minLength": 1, "maxLength": acl::RULE_BYTES_MAX}))]
    acl: Option<Acl>,
}

impl Resource for SshPublicKey {
    const DOC: &'static str =
        "SSH public keys: keys that authenticate clients of reverse SSH tunnels.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("owner_id", Shape::Id),
        field("acl", Shape::List),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::CREDENTIAL_DESCRIPTION_TOO_LONG),
        ("metadata", code::CREDENTIAL_METADATA_TOO_LONG),
        ("acl", code::ACL_RULE_INVALID),
    ];
    const EMPTY_UPDATE: Option<Code> = Some(code::CREDENTIAL_UPDATE_EMPTY);
    const UNKNOWN: Option<Code> = Some(code::OWNER_UNKNOWN);
    const CREATE_NEEDS_BODY: bool = true;
    const IS_REMOVED_WITH_OWNER: bool = true;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        cx.caller.may_make_credentials()?;
        if input.public_key.trim().is_empty() {
            return Err(Refusal::of(code::SSH_KEY_MISSING).into());
        }
        let line = input.public_key.trim_start();
        let authority = line
            .strip_prefix(AUTHORITY)
            .filter(|rest| rest.starts_with([' ', '\t']));
        let key = PublicKey::parse(authority.unwrap_or(line))
            .map_err(|bad| Refusal::new(code::SSH_KEY_INVALID, bad.to_string()))?;
        if authority.is_some() && key.algorithm == Algorithm::Rsa {
            let why = "A CA key must be an ECDSA or Ed25519 key.";
            return Err(Refusal::new(code::SSH_KEY_INVALID, why).into());
        }
        // A key identifies the owner of an agent, so it has one owner, and a second one must learn that the
        // key is taken (contract: 609 and 610). The request needs the whole public key, and the refusal
        // reveals neither the owner nor an ID.
        // Of two concurrent creations, one is decided again and finds the other here.
        if let Some(other) = cx.store.find(Self::KIND, KEY, &key.fingerprint).await? {
            let is_here = other.head.account == cx.caller.account;
            let code = if is_here {
                code::SSH_KEY_REGISTERED_BY_ACCOUNT
            } else {
                code::SSH_KEY_REGISTERED_BY_ANOTHER
            };
            return Err(Refusal::of(code).into());
        }
        Ok(Draft::of(Self {
            format: Format,
            owner_id: owner::named(cx, &input.owner_id).await?,
            is_authority: authority.is_some(),
            fingerprint: key.fingerprint,
            public_key: input.public_key,
            description: input.description,
            metadata: input.metadata,
            acl: input.acl,
        }))
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        _head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        if input.acl.as_ref().is_some_and(|acl| *acl != self.acl) {
            // Another ACL is another credential.
            cx.caller.may_make_credentials()?;
        }
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        self.acl = input.acl.unwrap_or(self.acl);
        Ok(Draft::of(self))
    }
}

/// The key with this fingerprint, in any account. `is_authority` selects keys of authorities or keys of
/// clients.
pub async fn find(
    store: &Store,
    fingerprint: &str,
    is_authority: bool,
) -> Result<Option<Document>, Fault> {
    let Some(document) = store.find(SshPublicKey::KIND, KEY, fingerprint).await? else {
        return Ok(None);
    };
    let key: SshPublicKey = stored::read(&document)?;
    Ok((key.is_authority == is_authority).then_some(document))
}

/// The id of the owner of a stored key.
pub fn owner_of(document: &Document) -> Result<String, Fault> {
    Ok(stored::read::<SshPublicKey>(document)?.owner_id)
}

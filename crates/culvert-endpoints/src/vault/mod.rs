//! Vault: a named place for secrets (contract: management API 2.22).

pub mod model;
pub mod secret;
pub mod secret_model;

use culvert_base::{Code, Description, Ksuid, Metadata, Refusal, code};
use culvert_resources::access::rights::Access;
use culvert_resources::audit::trace::Trace;
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter::{Field, Shape, field};
use culvert_resources::list::{Listed, listfilter, page};
use culvert_resources::operation::{Call, Method, ResponseSpec, Status};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Extra, Resource, ResourceType, Running, list_schema};
use culvert_resources::stored::Format;
use culvert_resources::{Error, input, list, service, stored};
use culvert_store::{Changes, Head};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;

use crate::EndpointConfig;
use crate::vault::model::{Name, Vault};
use crate::vault::secret_model::VaultSecret;

/// The row of vaults in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<Vault>();

/// The pattern of names of vaults and secrets.
pub(crate) const NAME_PATTERN: &str = "^[A-Za-z0-9_/.-]+$";

/// A new vault.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "VaultCreate", extend("required" = ["name"]), transform = input::create_schema)]
pub struct Create {
    /// Unique name: letters, digits, `_`, `/`, `.` and `-`, at most 255 bytes. Required.
    #[schemars(with = "String", length(min = 1, max = 255), extend("pattern" = NAME_PATTERN))]
    name: Name,
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
}

/// Changes to a vault.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "VaultUpdate", transform = input::update_schema)]
pub struct Update {
    /// Name: letters, digits, `_`, `/`, `.` and `-`. References to its secrets must be updated.
    #[schemars(with = "Option<String>", length(min = 1, max = 255), extend("pattern" = NAME_PATTERN))]
    name: Option<Name>,
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
}

/// The operations beyond the five.
pub const OPERATIONS: &[Extra<EndpointConfig>] = &[Extra {
    name: "list_secrets",
    method: Method::Get,
    suffix: "/secrets",
    doc: "Lists the secrets of a vault, newest first, without their values.",
    body: None,
    response: ResponseSpec {
        status: Status::Ok,
        schema: Some(secrets_schema),
    },
    query: page::PLAIN,
    access: Access::See,
    trace: Trace::Nothing,
    run: run_list_secrets,
}];

impl Resource for Vault {
    const DOC: &'static str =
        "Vaults: named collections of secrets. Only admins and the owner of a vault change it.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("name", Shape::Text),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[("name", code::VAULT_NAME_TOO_LONG)];
    const TAKEN: Option<Code> = Some(code::VAULT_NAME_TAKEN);
    const IN_USE: Option<Code> = Some(code::VAULT_IN_USE);
    const CREATE_NEEDS_BODY: bool = true;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        Ok(Draft::of(Self {
            format: Format,
            name: check_name(input.name)?,
            description: input.description,
            metadata: input.metadata,
            created_by: cx.caller.owner_id.clone(),
            last_updated_by: cx.caller.owner_id.clone(),
        }))
    }

    /// Renaming a vault changes all its secrets, each with an event.
    async fn update(
        mut self,
        cx: &Cx<'_>,
        head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        let mut also = Changes::default();
        if let Some(name) = input.name.filter(|name| *name != self.name) {
            self.name = check_name(name)?;
            for document in cx.referring(VaultSecret::KIND, head).await? {
                also = also.and(secret::check_renamed(cx.store, &document.head).await?);
                let mut secret: VaultSecret = stored::read(&document)?;
                secret.vault_name = self.name.clone();
                let body = stored::write(&secret)?;
                also = also.and(service::rewriting(cx, &secret::TYPE, document, body)?);
            }
        }
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        self.last_updated_by.clone_from(&cx.caller.owner_id);
        Ok(Draft {
            also,
            ..Draft::of(self)
        })
    }
}

/// Whether expressions can use this name.
pub fn is_plain(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'/' | b'.' | b'-'))
}

fn check_name(name: Name) -> Result<Name, Refusal> {
    if name.is_empty() {
        Err(Refusal::of(code::VAULT_NAME_EMPTY))
    } else if is_plain(&name) {
        Ok(name)
    } else {
        Err(Refusal::of(code::VAULT_NAME_CHARACTER_INVALID))
    }
}

fn secrets_schema(generator: &mut SchemaGenerator) -> schemars::Schema {
    list_schema::<VaultSecret>(generator)
}

fn run_list_secrets(endpoints: &EndpointConfig, call: Call) -> Running<'_> {
    let kernel = &*endpoints.kernel;
    Box::pin(async move {
        let cx = kernel.cx(&call.caller, &call.base);
        let listed = |id: &str| Listed {
            uri: format!("{}/{}/{id}/secrets", cx.base, Vault::COLLECTION),
            takes_filter: false,
            arguments: &[],
            refs_to: Some(id.to_owned()),
            having: None,
        };
        let secrets = &secret::TYPE;
        match service::named(&cx, &TYPE, &call).await? {
            Some(vault) => list::list_of(&cx, secrets, &call.query, listed(&vault.head.id)).await,
            None => {
                // An invalid query is refused before an absent vault is.
                list::check_query(secrets, &call.query, &listed(""))?;
                Err(Refusal::not_found().into())
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vault_names_are_validated() {
        for (name, code) in [
            ("a", None),
            ("prod/db.main-2_X", None),
            ("", Some(23001)),
            ("a b", Some(23000)),
            ("é", Some(23000)),
            ("a\"b", Some(23000)),
        ] {
            let checked = check_name(Name::try_from(name.to_owned()).unwrap());
            let refused = checked.err().and_then(|refusal| refusal.code);
            assert_eq!(refused.map(Code::number), code, "{name}");
        }
    }
}

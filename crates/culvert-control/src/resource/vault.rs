//! Vault: a named place for secrets (contract: management API 2.22).

use culvert_base::{Code, Description, Ksuid, Metadata, Refusal, code};
use culvert_store::{Changes, Head};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;

use crate::control::Control;
use crate::cx::Cx;
use crate::list::{self, Listed};
use crate::listfilter::{self, Field, Shape, field};
use crate::operation::{Call, Method, ResponseSpec, Status};
use crate::resource::model::Model;
use crate::resource::model::vault::{Name, Vault};
use crate::resource::model::vault_secret::VaultSecret;
use crate::resource::resource_type::{Draft, Extra, Resource, ResourceType, Running, list_schema};
use crate::resource::vault_secret;
use crate::rights::Access;
use crate::stored::{self, Format};
use crate::{Error, input, page, service};

pub(crate) static TYPE: ResourceType = ResourceType::of::<Vault>();

/// The pattern of names of vaults and secrets.
pub(crate) const NAME_PATTERN: &str = "^[A-Za-z0-9_/.-]+$";

/// A new vault.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "VaultCreate", extend("required" = ["name"]), transform = input::create_schema)]
pub(crate) struct Create {
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
pub(crate) struct Update {
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
    const OPERATIONS: &'static [Extra] = &[Extra {
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
        run: run_list_secrets,
    }];

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
            for mut document in cx.referring(VaultSecret::KIND, head).await? {
                also = also.and(vault_secret::check_renamed(cx.store, &document.head).await?);
                let mut secret: VaultSecret = stored::read(&document)?;
                secret.vault_name = self.name.clone();
                document.body = stored::write(&secret)?;
                also = also.and(service::rewriting(cx, &vault_secret::TYPE, document)?);
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
pub(crate) fn is_plain(name: &str) -> bool {
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

fn run_list_secrets(control: &Control, call: Call) -> Running<'_> {
    Box::pin(async move {
        let cx = control.cx(&call.caller, &call.base);
        let listed = |id: &str| Listed {
            uri: format!("{}/{}/{id}/secrets", cx.base, Vault::COLLECTION),
            takes_filter: false,
            arguments: &[],
            refs_to: Some(id.to_owned()),
            having: None,
        };
        let secrets = &vault_secret::TYPE;
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

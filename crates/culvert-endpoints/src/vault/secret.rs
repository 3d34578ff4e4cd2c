//! Secret: a value that Traffic Policies use and that no response shows (contract: management API 2.23).
//!
//! The value is encrypted before it is stored. It is in no view, so it cannot reach a response or an event. A
//! secret shows the name of its vault, which is part of its stored form. So renaming a vault rewrites its
//! secrets, and creating a secret makes the commit depend on the unchanged vault.

use culvert_base::text::TooLong;
use culvert_base::{Code, Description, Fault, Ksuid, Metadata, Refusal, Secret, code};
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter;
use culvert_resources::list::listfilter::{Field, Shape, field};
use culvert_resources::list::page::reference;
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::Format;
use culvert_resources::stored::seal::Seal;
use culvert_resources::{Error, access, input, stored};
use culvert_store::{AuditEvent, Changes, Document, Head, Store};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::vault;
use crate::vault::model;
use crate::vault::model::Vault;
use crate::vault::secret_model::{NAME_KEY, Name, VaultSecret, unique_name};

/// The row of secrets in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<VaultSecret>();

/// Longest value, in bytes.
const VALUE_BYTES_MAX: usize = 16 << 10;

/// A value as sent: at most 16 KiB.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Secret")]
pub struct Given(Secret);

impl TryFrom<Secret> for Given {
    type Error = TooLong;

    fn try_from(value: Secret) -> Result<Self, TooLong> {
        if value.reveal().len() <= VALUE_BYTES_MAX {
            Ok(Self(value))
        } else {
            Err(TooLong {
                max: VALUE_BYTES_MAX,
            })
        }
    }
}

/// A new secret.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "SecretCreate", extend("required" = ["name", "value"]), transform = input::create_schema)]
pub struct Create {
    /// Name, unique within the vault: letters, digits, `_`, `/`, `.` and `-`, at most 255 bytes.
    /// Required.
    #[schemars(with = "String", length(min = 1, max = 255), extend("pattern" = vault::NAME_PATTERN))]
    name: Name,
    /// Secret value, at most 16 KiB. Required, write-only.
    #[schemars(with = "String", length(min = 1, max = 16384))]
    value: Given,
    /// ID of the vault. Either `vault_id` or `vault_name` is required.
    #[schemars(extend("pattern" = input::id_pattern(Vault::PREFIXES)))]
    vault_id: String,
    /// Name of the vault.
    vault_name: String,
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
}

/// Changes to a secret.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "SecretUpdate", transform = input::update_schema)]
pub struct Update {
    /// Name: letters, digits, `_`, `/`, `.` and `-`.
    #[schemars(with = "Option<String>", length(min = 1, max = 255), extend("pattern" = vault::NAME_PATTERN))]
    name: Option<Name>,
    /// Secret value, at most 16 KiB. Write-only.
    #[schemars(with = "Option<String>", length(min = 1, max = 16384))]
    value: Option<Given>,
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
}

impl Resource for VaultSecret {
    const DOC: &'static str = "Secrets: write-only values for traffic policies. Only admins and the owner of a secret change it.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("name", Shape::Text),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("name", code::SECRET_NAME_TOO_LONG),
        ("value", code::SECRET_VALUE_TOO_LONG),
    ];
    const TAKEN: Option<Code> = Some(code::SECRET_NAME_TAKEN);
    const IN_USE: Option<Code> = Some(code::VAULT_IN_USE);
    const UNKNOWN: Option<Code> = Some(code::VAULT_ID_UNKNOWN);
    const CREATE_NEEDS_BODY: bool = true;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let name = check_name(input.name)?;
        let id = format!("{}_{id}", Self::ID_PREFIX);
        let sealed_value = seal(cx, &id, &input.value)?;
        let document = vault_of(cx, &input.vault_id, &input.vault_name).await?;
        // A policy that names a secret of this vault would get this one.
        let held = access::may_change(cx, &vault::TYPE, &document).await?;
        let vault: Vault = stored::read(&document)?;
        let secret = Self {
            format: Format,
            name,
            description: input.description,
            metadata: input.metadata,
            sealed_value,
            vault_id: document.head.id.clone(),
            vault_name: vault.name,
            created_by: cx.caller.owner_id.clone(),
            last_updated_by: cx.caller.owner_id.clone(),
        };
        let event = AuditEvent::Suppress {
            reason: "the vault stays as it is; its name must not change before the secret is in",
        };
        Ok(Draft {
            also: Changes::replace(document, event).and(held),
            ..Draft::of(secret)
        })
    }

    fn changed_secrets(&self, after: &Self) -> Vec<&'static str> {
        Vec::from_iter((self.sealed_value != after.sealed_value).then_some("value"))
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        let mut also = Changes::default();
        if let Some(name) = input.name.filter(|name| *name != self.name) {
            self.name = check_name(name)?;
            also = check_renamed(cx.store, head).await?;
        }
        if let Some(value) = input.value {
            self.sealed_value = seal(cx, &head.id, &value)?;
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

/// The secret with this name in the account's vault with that name.
pub async fn find(
    store: &Store,
    account: &str,
    vault: &str,
    name: &str,
) -> Result<Option<Document>, Fault> {
    let key = model::unique_name(account, vault);
    let found = store.find(Vault::KIND, model::NAME_KEY, &key).await?;
    let Some(found) = found else {
        return Ok(None);
    };
    let key = unique_name(&found.head.id, name);
    let Some(document) = store.find(VaultSecret::KIND, NAME_KEY, &key).await? else {
        return Ok(None);
    };
    // The vault may have been renamed since it was found.
    let secret: VaultSecret = stored::read(&document)?;
    Ok((*secret.vault_name == *vault).then_some(document))
}

/// Refuses to rename a secret that a traffic policy refers to (23003), because the policy refers to it by
/// name. Returns the condition that this still holds at the commit.
pub(crate) async fn check_renamed(store: &Store, head: &Head) -> Result<Changes, Error> {
    if store.n_referring(&head.id).await? == 0 {
        return Ok(Changes::unless_referred(&head.id));
    }
    let why = format!(
        "A traffic policy uses the secret `{}` by the names of its vault and itself.",
        head.id
    );
    Err(Refusal::new(code::VAULT_IN_USE, why).into())
}

impl VaultSecret {
    /// The vault name, name and value of a stored secret, for expressions.
    pub fn open(document: &Document, seal: &Seal) -> Result<(Name, Name, Secret), Fault> {
        let secret: Self = stored::read(document)?;
        let value = seal.open(&document.head.id, &secret.sealed_value)?;
        Ok((secret.vault_name, secret.name, value))
    }
}

fn check_name(name: Name) -> Result<Name, Refusal> {
    if name.is_empty() {
        Err(Refusal::of(code::SECRET_NAME_EMPTY))
    } else if vault::is_plain(&name) {
        Ok(name)
    } else {
        Err(Refusal::of(code::SECRET_NAME_CHARACTER_INVALID))
    }
}

fn seal(cx: &Cx<'_>, id: &str, value: &Given) -> Result<String, Error> {
    if value.0.is_empty() {
        return Err(Refusal::of(code::SECRET_VALUE_EMPTY).into());
    }
    Ok(cx.seal.seal(cx.entropy, id, value.0.reveal())?)
}

/// The caller's vault that a body refers to.
async fn vault_of(cx: &Cx<'_>, id: &str, name: &str) -> Result<Document, Error> {
    let ty = &vault::TYPE;
    let by_id = match id {
        "" => None,
        id => {
            reference("vault_id", id, ty.prefixes)?;
            let found = cx.own(ty.kind, id).await?;
            Some(found.ok_or_else(|| Refusal::of(code::VAULT_ID_UNKNOWN))?)
        }
    };
    let by_name = match name {
        "" => None,
        name => {
            let key = model::unique_name(&cx.caller.account, name);
            let found = cx.store.find(ty.kind, model::NAME_KEY, &key).await?;
            Some(found.ok_or_else(|| Refusal::of(code::VAULT_NAME_UNKNOWN))?)
        }
    };
    match (by_id, by_name) {
        (Some(by_id), Some(by_name)) if by_id.head.id != by_name.head.id => Err(Refusal::new(
            code::VAULT_NOT_SINGLE,
            "`vault_id` and `vault_name` name different vaults.",
        )
        .into()),
        (Some(vault), _) | (None, Some(vault)) => Ok(vault),
        (None, None) => Err(Refusal::of(code::VAULT_NOT_SINGLE).into()),
    }
}

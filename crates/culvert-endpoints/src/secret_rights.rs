//! Whether the policy of an endpoint may use the secrets that it names, and where (contract: rights 3).
//!
//! The owner of the endpoint needs the right `use` to each secret, and the right `change` where a secret can be echoed:
//! in every field that does not list itself as one that takes secrets. Both are checked when a policy is written, and
//! again in the compiled state, because roles, grants and vaults change later. A policy that may no longer use its
//! secrets refuses everything.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use culvert_access::use_table::UseTable;
use culvert_base::{Clock, Fault, Refusal, Timestamp, code};
use culvert_policy::{Policy, SecretUse};
use culvert_resources::Error;
use culvert_resources::access::caller::{Caller, Role};
use culvert_resources::access::right::Scope;
use culvert_resources::access::tenant::Account;
use culvert_resources::access::{self, Referrer};
use culvert_resources::cx::Cx;
use culvert_resources::stored;
use culvert_store::{Document, Store};

use crate::vault::secret;
use crate::vault::secret_model::VaultSecret;

/// How long policies of earlier versions may still echo secrets.
const GRACE: Duration = Duration::from_secs(30 * 86_400);
/// The end of that time, in the store: seconds since 1970, or 0 for an installation that began with these rights.
pub const GRACE_MARK: &str = "secret_echo_until";

/// Until when stored policies may echo secrets that their owner may not change. Notes it at the first start.
///
/// # Errors
/// The store fails.
pub async fn grace(store: &Store, clock: &dyn Clock, is_strict: bool) -> Result<Timestamp, Fault> {
    let noted = match store.meta_get(GRACE_MARK).await? {
        Some(noted) => noted.parse().unwrap_or(0),
        None => {
            let is_new = store.count(Account::KIND).await? == 0;
            let end = match is_new {
                true => 0,
                false => clock.now().plus(GRACE).unix_millis() / 1_000,
            };
            store.meta_set(GRACE_MARK, &end.to_string()).await?;
            end
        }
    };
    Ok(match is_strict {
        true => Timestamp::default(),
        false => Timestamp::from_unix_seconds(noted),
    })
}

/// What a policy may not do with its secrets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Misuse {
    /// It computes the names of secrets.
    Computed,
    /// It may not use the secret.
    Use { secret: String, place: String },
    /// It may use the secret, but it can be echoed there.
    Echo { secret: String, place: String },
}

impl Misuse {
    /// Whether a policy with these refuses everything. `in_grace` says that it may still echo secrets.
    pub(crate) fn refuse(misuses: &[Self], in_grace: bool) -> bool {
        let is_borne = |misuse: &Self| in_grace && matches!(misuse, Self::Echo { .. });
        !misuses.iter().all(is_borne)
    }

    /// One sentence.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Computed => {
                "The policy computes the names of secrets, which only policies of admins may do."
                    .to_owned()
            }
            Self::Use { secret, place } => format!(
                "{place}: the owner of the endpoint does not have the right `use` to the secret {secret}."
            ),
            Self::Echo { secret, place } => format!(
                "{place}: a secret can be echoed there, and the owner of the endpoint does not have the right `change` to the secret {secret}."
            ),
        }
    }
}

/// The secret as people name it.
fn shown(it: &SecretUse) -> String {
    format!("`{}` of the vault `{}`", it.name, it.vault)
}

/// Refuses to write what may get secrets with a key without the scope to read secrets (642).
pub fn check_scope(caller: &Caller) -> Result<(), Refusal> {
    let Some(key) = &caller.restrictions else {
        return Ok(());
    };
    if key.scopes.is_empty() || key.scopes.has(Scope::SecretsRead) {
        return Ok(());
    }
    let why = format!(
        "A traffic policy with secrets, and what serves an internal endpoint, need the scope `{}` of the API key too.",
        Scope::SecretsRead
    );
    Err(Refusal::new(code::API_KEY_LACKS_SCOPE, why))
}

/// Refuses uses of secrets by a caller, or for an owner, that may not change what can be echoed (2270), and a key without
/// the scope to read secrets (642). The right `use` is checked with the other references.
pub async fn check(
    cx: &Cx<'_>,
    referrer: Referrer<'_>,
    policy: &Policy,
    secrets: &[Document],
) -> Result<(), Error> {
    if policy.secret_uses().is_empty() {
        return Ok(());
    }
    check_scope(cx.caller)?;
    let mut owners = HashMap::new();
    for document in secrets {
        let secret: VaultSecret = stored::read(document)?;
        let owner = secret::TYPE.owner_of(document)?;
        owners.insert(
            (secret.vault_name.to_string(), secret.name.to_string()),
            owner,
        );
    }
    let role = access::role_of(cx, referrer.owner_id, false).await?;
    for it in policy.secret_uses() {
        if it.is_confined {
            continue;
        }
        let owner = owners.get(&(it.vault.clone(), it.name.clone()));
        let owner = owner.and_then(Option::as_deref);
        let changes = |role: Option<Role>, id: &str| role == Some(Role::Admin) || owner == Some(id);
        let is_writer = changes(Some(cx.caller.role), &cx.caller.owner_id);
        if is_writer && changes(role, referrer.owner_id) {
            continue;
        }
        let whose = match is_writer {
            true => "the owner of the endpoint",
            false => "you",
        };
        let why = format!(
            "The traffic policy is invalid: {}: the secret {} could be echoed there, and {whose} may not change it. Use \
             it in a field that takes secrets, such as the header fields of a request.",
            it.place,
            shown(it)
        );
        return Err(Refusal::new(code::POLICY_SECRET_REFUSED, why).into());
    }
    Ok(())
}

/// The owner of a secret, and what grants on it may name.
#[derive(Clone, Debug)]
pub(crate) struct OwnedSecret {
    pub owner_id: Option<String>,
    pub id: String,
    pub(crate) vault_id: String,
}

/// The secrets of an account: vault and name.
pub(crate) type OwnedSecrets = HashMap<(String, String), OwnedSecret>;

/// The secrets of an account.
pub(crate) fn owned<'d>(documents: impl Iterator<Item = &'d Document>) -> OwnedSecrets {
    let mut owned = OwnedSecrets::new();
    for document in documents {
        let secret = stored::read::<VaultSecret>(document);
        let owner = secret::TYPE.owner_of(document);
        if let (Ok(secret), Ok(owner_id)) = (secret, owner) {
            let names = (secret.vault_name.to_string(), secret.name.to_string());
            let one = OwnedSecret {
                owner_id,
                id: document.head.id.clone(),
                vault_id: secret.vault_id,
            };
            owned.insert(names, one);
        }
    }
    owned
}

/// What a policy may not do with its secrets now. A secret that does not exist fails the request that needs it.
pub(crate) fn misuses(
    policy: &Policy,
    referrer: Referrer<'_>,
    secrets: &OwnedSecrets,
    table: &UseTable,
) -> Vec<Misuse> {
    // Only admins use an object without an owner and without a grant.
    let is_admin = table.is_user(referrer, None, &[]);
    let mut found = Vec::new();
    if policy.computes_secret_names() && !is_admin {
        found.push(Misuse::Computed);
    }
    for it in policy.secret_uses() {
        let Some(secret) = secrets.get(&(it.vault.clone(), it.name.clone())) else {
            continue;
        };
        let owner = secret.owner_id.as_deref();
        if !table.is_user(referrer, owner, &[&secret.id, &secret.vault_id]) {
            found.push(Misuse::Use {
                secret: shown(it),
                place: it.place.clone(),
            });
        } else if !it.is_confined && !is_admin && owner != Some(referrer.owner_id) {
            found.push(Misuse::Echo {
                secret: shown(it),
                place: it.place.clone(),
            });
        }
    }
    found.sort();
    found.dedup();
    found
}

/// A policy in use that has secrets.
#[derive(Debug)]
pub(crate) struct Judged {
    pub account: String,
    pub owner_id: String,
    pub policy: Arc<Policy>,
    /// What it may not do, as logged last.
    misuses: Vec<Misuse>,
    /// Whether it was checked at all.
    is_judged: bool,
}

impl Judged {
    /// A policy that refuses everything until it is checked.
    pub(crate) fn new(account: &str, owner_id: &str, policy: &Arc<Policy>) -> Option<Self> {
        policy.secret_right()?.withdraw(true);
        Some(Self {
            account: account.to_owned(),
            owner_id: owner_id.to_owned(),
            policy: Arc::clone(policy),
            misuses: Vec::new(),
            is_judged: false,
        })
    }

    /// Decides whether it may use its secrets from now on, and logs what it may not. `in_grace` says that policies may
    /// still echo secrets.
    pub(crate) fn judge(&mut self, id: &str, misuses: Vec<Misuse>, in_grace: bool) {
        let is_withdrawn = Misuse::refuse(&misuses, in_grace);
        let Some(right) = self.policy.secret_right() else {
            return;
        };
        let has_changed = right.withdraw(is_withdrawn);
        if has_changed || !self.is_judged || misuses != self.misuses {
            for misuse in &misuses {
                let why = misuse.sentence();
                match is_withdrawn {
                    true => tracing::error!(
                        endpoint.id = id,
                        why,
                        "the traffic policy of an endpoint refuses everything: it may not use its secrets"
                    ),
                    false => tracing::warn!(
                        endpoint.id = id,
                        why,
                        "the traffic policy of an endpoint echoes a secret; it will refuse everything 30 days after the upgrade"
                    ),
                }
            }
        }
        (self.misuses, self.is_judged) = (misuses, true);
    }
}

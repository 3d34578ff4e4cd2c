//! What happens to the tokens of a report.
//!
//! A revoked key stays, with a digest that no token has, so that nodes of every version refuse the token with the next
//! request; a rotation gives it a new one. A revoked credential is deleted, which closes its sessions. An invitation or a
//! link of the console always ends, because a new one is made easily.

use culvert_base::names::is_deceptive;
use culvert_base::{Fault, Ksuid, Timestamp};
use culvert_events::catalogue::AuditKind;
use culvert_resources::access::caller::{Caller, OwnerKind, Role};
use culvert_resources::access::owner::Owner;
use culvert_resources::access::token::{Kind, REDACTED, Shape, mint_plain, redacted, shape};
use culvert_resources::access::user::User;
use culvert_resources::audit;
use culvert_resources::cx::Cx;
use culvert_resources::resource::StoredDraft;
use culvert_resources::resource::model::Model;
use culvert_resources::service::{self, Attempts};
use culvert_resources::settings::Leaked;
use culvert_resources::{Error, stored};
use culvert_store::{Changes, CommitError, Document};
use schemars::JsonSchema;
use serde::Serialize;

use crate::api_key::model::ApiKey;
use crate::console::session;
use crate::credential::model::TunnelCredential;
use crate::leak::LeakedToken;
use crate::leak::found::Leak;
use crate::user::invitations::{self, Ended};
use crate::{Identity, api_key, credential, user};

/// The kind of the event of a leaked token of an API key.
pub const API_KEY_LEAKED: &str = "api_key_leaked.v0";
/// The kind of the event of a leaked token of a tunnel credential.
pub const TUNNEL_CREDENTIAL_LEAKED: &str = "tunnel_credential_leaked.v0";

/// Limits of what a reporter says, in bytes.
const URL_BYTES_MAX: usize = 2048;
const SOURCE_BYTES_MAX: usize = 64;

/// The object of these events.
#[derive(Debug, Serialize, JsonSchema)]
struct Shown<'a> {
    /// ID of the API key or tunnel credential.
    id: &'a str,
    /// ID of its owner.
    owner_id: &'a str,
    /// The owner's e-mail address, or the bot's name.
    owner_name: &'a str,
    /// Description of the API key or tunnel credential.
    description: &'a str,
    /// Where the token was found, as the reporter says; may be empty.
    url: &'a str,
    /// What it was found in, as the reporter says; may be empty.
    source: &'a str,
    /// Whether the token was revoked.
    revoked: bool,
    /// Whether it is the token before the last rotation.
    previous_token: bool,
    /// Whether a partner reported it, and no caller with a key.
    by_partner: bool,
}

/// The kinds of events about leaked tokens.
pub fn kinds() -> [AuditKind; 2] {
    let schema = audit::schema_of::<Shown<'static>>();
    [
        (
            API_KEY_LEAKED,
            "The token of an API key was found in public.",
        ),
        (
            TUNNEL_CREDENTIAL_LEAKED,
            "The token of a tunnel credential was found in public.",
        ),
    ]
    .map(|(name, doc)| AuditKind {
        name: name.to_owned(),
        doc: doc.to_owned(),
        schema: schema.clone(),
    })
}

/// What a reporter says about a token, within the limits.
struct Said {
    url: String,
    source: String,
}

impl Said {
    /// Without tokens, because events show it and a flagged token works on.
    fn of(reported: &LeakedToken) -> Self {
        let kept = |text: &Option<String>, bytes_max: usize| {
            let text = text.as_deref().unwrap_or_default();
            let plain = text.chars().filter(|letter| !is_deceptive(*letter));
            let plain = plain.collect::<String>();
            let mut shown = redacted(&plain.replace(reported.token.trim(), REDACTED));
            shown.truncate(shown.floor_char_boundary(bytes_max));
            shown
        };
        Self {
            url: kept(&reported.url, URL_BYTES_MAX),
            source: kept(&reported.source, SOURCE_BYTES_MAX),
        }
    }
}

/// One report of one token.
struct Reported<'a> {
    token: &'a str,
    body: &'a str,
    said: Said,
    /// `None` for a partner.
    by: Option<&'a Caller>,
}

impl Identity {
    /// Revokes or flags the tokens that work, with their events. Texts that are no such tokens are ignored. Without a
    /// caller, a partner reports them.
    ///
    /// # Errors
    ///
    /// The store fails, or concurrent writers keep changing one of the objects. The tokens before it are done.
    pub async fn report_leaks(
        &self,
        by: Option<&Caller>,
        tokens: &[LeakedToken],
    ) -> Result<(), Error> {
        for reported in tokens {
            let token = reported.token.trim();
            let Shape::Token { body, kind } = shape(token) else {
                continue;
            };
            let said = Said::of(reported);
            let leak = Reported {
                token,
                body,
                said,
                by,
            };
            match kind {
                Some(Kind::Key) => drop(self.key_leaked(&leak).await?),
                Some(Kind::Agent) => drop(self.credential_leaked(&leak).await?),
                Some(Kind::Invitation) => self.invitation_leaked(&leak).await?,
                Some(Kind::Link) => self.link_leaked(&leak),
                None => {
                    // The plain form does not say what it is for.
                    if !self.key_leaked(&leak).await? && !self.credential_leaked(&leak).await? {
                        self.invitation_leaked(&leak).await?;
                        self.link_leaked(&leak);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether it is the token of a key.
    async fn key_leaked(&self, leak: &Reported<'_>) -> Result<bool, Error> {
        let id = api_key::TYPE.stored_id_of(leak.body);
        let run = self.key_leaked_locked(&id, leak);
        self.kernel.locks.with(&[&id], run).await
    }

    async fn key_leaked_locked(&self, id: &str, leak: &Reported<'_>) -> Result<bool, Error> {
        let kernel = &self.kernel;
        let mut attempts = Attempts::of(&kernel.locks);
        loop {
            attempts.begin().await?;
            let document = kernel.store.get(ApiKey::KIND, id).await?;
            let key: Option<ApiKey> = document.as_ref().map(stored::read).transpose()?;
            let digest = key.as_ref().map(|key| key.digest.as_str());
            let is_current = kernel.pepper.recognises(digest, leak.token);
            let (Some(document), Some(mut key)) = (document, key) else {
                return Ok(false);
            };
            let now = kernel.clock.now();
            let previous = key.previous.as_ref().filter(|one| now < one.until);
            let previous = previous.map(|one| one.digest.as_str());
            if !is_current && !kernel.pepper.recognises(previous, leak.token) {
                return Ok(false);
            }
            let is_revoked = kernel.settings.leaked == Leaked::Revoked;
            if !is_revoked && key.leak.is_some() {
                // It is known, and has its event.
                return Ok(true);
            }
            let owner = self.leaked_owner(&key.owner_id, &document).await?;
            let cx = self.reporting(leak, &owner);
            let mut also = Changes::default();
            match (is_revoked, is_current) {
                (true, true) => {
                    let id: Ksuid = leak
                        .body
                        .parse()
                        .map_err(|error| Fault::new("reading the ID of an API key", error))?;
                    key.digest = kernel.pepper.digest(mint_plain(id, cx.entropy).reveal());
                    also = session::removal(&cx, leak.body).await?;
                }
                (true, false) => key.previous = None,
                (false, _) => {}
            }
            if is_current || !is_revoked {
                key.leak = Some(self.noted_leak(leak, is_revoked));
            }
            let shown = Shown {
                id,
                owner_id: &key.owner_id,
                owner_name: &owner.subject,
                description: &key.description,
                url: &leak.said.url,
                source: &leak.said.source,
                revoked: is_revoked,
                previous_token: !is_current,
                by_partner: leak.by.is_none(),
            };
            let told = audit::operation(&cx, API_KEY_LEAKED, &shown)?;
            let made = StoredDraft {
                body: stored::write(&key)?,
                links: key.links(&document.head),
                reveal: None,
                also: Changes::event(told).and(also),
            };
            let replaced = service::replace(&cx, &api_key::TYPE, document, made).await?;
            if replaced.is_some() {
                return Ok(true);
            }
        }
    }

    /// Returns whether it is the token of a tunnel credential.
    async fn credential_leaked(&self, leak: &Reported<'_>) -> Result<bool, Error> {
        let id = credential::TYPE.stored_id_of(leak.body);
        let run = self.credential_leaked_locked(&id, leak);
        self.kernel.locks.with(&[&id], run).await
    }

    async fn credential_leaked_locked(&self, id: &str, leak: &Reported<'_>) -> Result<bool, Error> {
        let (kernel, ty) = (&self.kernel, &credential::TYPE);
        let mut attempts = Attempts::of(&kernel.locks);
        loop {
            attempts.begin().await?;
            let document = kernel.store.get(ty.kind, id).await?;
            let found: Option<TunnelCredential> =
                document.as_ref().map(stored::read).transpose()?;
            let digest = found.as_ref().map(|found| found.digest.as_str());
            let is_its = kernel.pepper.recognises(digest, leak.token);
            let (true, Some(document), Some(mut found)) = (is_its, document, found) else {
                return Ok(false);
            };
            let is_revoked = kernel.settings.leaked == Leaked::Revoked;
            if !is_revoked && found.leak.is_some() {
                return Ok(true);
            }
            let owner = self.leaked_owner(&found.owner_id, &document).await?;
            let cx = self.reporting(leak, &owner);
            let shown = Shown {
                id,
                owner_id: &found.owner_id,
                owner_name: &owner.subject,
                description: &found.description,
                url: &leak.said.url,
                source: &leak.said.source,
                revoked: is_revoked,
                previous_token: false,
                by_partner: leak.by.is_none(),
            };
            let told = Changes::event(audit::operation(&cx, TUNNEL_CREDENTIAL_LEAKED, &shown)?);
            if is_revoked {
                let removal = service::removal(&cx, ty, document)?;
                match kernel.store.commit(removal.and(told)).await {
                    Ok(_) => return Ok(true),
                    Err(CommitError::Fault(fault)) => return Err(fault.into()),
                    Err(_) => continue,
                }
            }
            found.leak = Some(self.noted_leak(leak, false));
            let made = StoredDraft {
                body: stored::write(&found)?,
                links: found.links(&document.head),
                reveal: None,
                also: told,
            };
            if service::replace(&cx, ty, document, made).await?.is_some() {
                return Ok(true);
            }
        }
    }

    async fn invitation_leaked(&self, leak: &Reported<'_>) -> Result<(), Error> {
        let id = user::TYPE.stored_id_of(leak.body);
        let run = self.invitation_leaked_locked(&id, leak);
        self.kernel.locks.with(&[&id], run).await
    }

    async fn invitation_leaked_locked(&self, id: &str, leak: &Reported<'_>) -> Result<(), Error> {
        let kernel = &self.kernel;
        let mut attempts = Attempts::of(&kernel.locks);
        loop {
            attempts.begin().await?;
            let document = kernel.store.get(User::KIND, id).await?;
            let user: Option<User> = document.as_ref().map(stored::read).transpose()?;
            let pending = user.as_ref().and_then(|user| user.invitation.as_ref());
            let digest = pending.map(|pending| pending.digest.as_str());
            let is_its = kernel.pepper.recognises(digest, leak.token);
            let (true, Some(document), Some(mut user)) = (is_its, document, user) else {
                return Ok(());
            };
            let owner = self.leaked_owner(id, &document).await?;
            let cx = self.reporting(leak, &owner);
            let also = invitations::ended(&cx, (id, &user), Ended::Leaked)?;
            user.invitation = None;
            let made = StoredDraft {
                body: stored::write(&user)?,
                links: user.links(&document.head),
                reveal: None,
                also,
            };
            let replaced = service::replace(&cx, &user::TYPE, document, made).await?;
            if replaced.is_some() {
                return Ok(());
            }
        }
    }

    /// A link exists only in the process that printed it.
    fn link_leaked(&self, leak: &Reported<'_>) {
        let is_it = |digest: &str| self.kernel.pepper.recognises(Some(digest), leak.token);
        self.console_link.end(is_it);
    }

    fn noted_leak(&self, leak: &Reported<'_>, is_revoked: bool) -> Leak {
        let now: Timestamp = self.kernel.clock.now();
        Leak {
            at: now.whole_seconds(),
            url: leak.said.url.clone(),
            source: leak.said.source.clone(),
            is_revoked,
        }
    }

    /// The owner of the object with the token, as the caller of a change by the server.
    async fn leaked_owner(&self, owner_id: &str, document: &Document) -> Result<Caller, Fault> {
        let owner = Owner::load(&self.kernel.store, owner_id).await?;
        let (owner_kind, role, subject) = match owner {
            Some((owner, _)) => (owner.kind, owner.role, owner.subject),
            None => (OwnerKind::User, Role::ReadOnly, String::new()),
        };
        Ok(Caller {
            owner_id: owner_id.to_owned(),
            owner_kind,
            role,
            key_id: String::new(),
            subject,
            account: document.head.account.clone(),
            restrictions: None,
            token: None,
            context: None,
        })
    }

    /// The context of the change: of the caller that reports, or of the server for a partner or a caller of another
    /// account, which may not become known to this one.
    fn reporting<'a>(&'a self, leak: &Reported<'a>, owner: &'a Caller) -> Cx<'a> {
        let base = &self.kernel.settings.base_url;
        match leak.by.filter(|by| by.account == owner.account) {
            Some(by) => self.kernel.cx(by, base),
            None => Cx {
                by_server: true,
                ..self.kernel.cx(owner, base)
            },
        }
    }
}

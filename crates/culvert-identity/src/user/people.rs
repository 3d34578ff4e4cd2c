//! Admits people: by the link of an invitation, or by a sign-in at the console's OpenID provider.
//!
//! An invitation gives a first API key, with which the person signs in again later. A sign-in at the provider gives a
//! console session of the user itself, without a key.

use std::net::IpAddr;
use std::time::Duration;

use culvert_base::{Description, Fault, Metadata, Prefix, Refusal, Secret, Timestamp, code};
use culvert_resources::access::caller::{Caller, Origin, OwnerKind, PresentedToken, Role};
use culvert_resources::access::key_restrictions::{KeyRestrictions, Network};
use culvert_resources::access::key_rules::Strictness;
use culvert_resources::access::token;
use culvert_resources::access::token::Shape;
use culvert_resources::access::user::{Invitation, User};
use culvert_resources::audit::verb::Verb;
use culvert_resources::resource::model::Model;
use culvert_resources::service::Attempts;
use culvert_resources::stored::Format;
use culvert_resources::{Error, audit, stored};
use culvert_store::{Changes, CommitError, Document, Head};

use crate::api_key::model::ApiKey;
use crate::api_key::rules::{check, check_admin, current};
use crate::console::session::ConsoleSession;
use crate::user::invitations;
use crate::user::invitations::Ended;
use crate::{Identity, api_key, user};

/// How long the first key of a person works, where the account requires an end.
const FIRST_KEY_MAX: Duration = Duration::from_secs(30 * 86_400);

/// An invitation that is valid, for the person who has its link.
#[derive(Debug)]
pub struct Invited {
    /// E-mail address of the invited person.
    pub email: String,
    /// The role that the person gets.
    pub role: Role,
    /// When the link stops working.
    pub until: Timestamp,
    /// Who invited the person; empty if that is not known.
    pub by: String,
}

/// An accepted invitation.
#[derive(Debug)]
pub struct Accepted {
    /// The token of the person's new API key.
    pub token: Secret,
    /// The cookie of a console session of this key.
    pub cookie: Secret,
    /// The session.
    pub session: ConsoleSession,
}

impl Identity {
    /// Accepts an invitation: the user becomes active, and gets an API key and a console session.
    ///
    /// # Errors
    ///
    /// 645 if the invitation is not valid, and those of [`Identity::admit`].
    pub async fn accept_invitation(
        &self,
        invitation: &str,
        origin: impl Into<Origin>,
    ) -> Result<Accepted, Error> {
        let origin = origin.into();
        let id = user_of(invitation)?;
        let taking = self.take_invitation(&id, invitation, &origin);
        let (caller, token) = self.kernel.locks.with(&[&id], taking).await?;
        let (cookie, session) = self.sign_in(caller, origin.address).await?;
        Ok(Accepted {
            token,
            cookie,
            session,
        })
    }

    /// The person and the role of an invitation. The invitation stays as it is.
    ///
    /// # Errors
    ///
    /// 645 if the invitation is not valid, and those of [`Identity::admit`].
    pub async fn invitation(&self, invitation: &str, address: IpAddr) -> Result<Invited, Error> {
        let id = user_of(invitation)?;
        let document = self.kernel.store.get(User::KIND, &id).await?;
        let user: Option<User> = document.as_ref().map(stored::read).transpose()?;
        let pending = self.valid(user.as_ref(), invitation);
        let (Some(document), Some(user), Some(pending)) = (document, &user, pending) else {
            return Err(Refusal::of(code::INVITATION_INVALID).into());
        };
        self.admit(&person(&document.head, user), address)?;
        Ok(Invited {
            until: pending.until,
            by: pending.by.clone(),
            email: user.email.clone(),
            role: user.role,
        })
    }

    /// The invitation of a user that has this token; `None` if it does not work now.
    fn valid<'a>(&self, user: Option<&'a User>, invitation: &str) -> Option<&'a Invitation> {
        let pending = user.and_then(|user| user.invitation.as_ref());
        let digest = pending.map(|pending| pending.digest.as_str());
        // Also without a user or an invitation, so that the time tells nothing.
        let is_known = self.kernel.pepper.recognises(digest, invitation);
        let now = self.kernel.clock.now();
        pending.filter(|pending| is_known && now < pending.until)
    }

    /// Activates the user with this ID by its invitation, and creates its first key. Returns the user with this key,
    /// and the token of the key.
    async fn take_invitation(
        &self,
        id: &str,
        invitation: &str,
        origin: &Origin,
    ) -> Result<(Caller, Secret), Error> {
        let mut attempts = Attempts::of(&self.kernel.locks);
        loop {
            attempts.begin().await?;
            let document = self.kernel.store.get(User::KIND, id).await?;
            let user: Option<User> = document.as_ref().map(stored::read).transpose()?;
            let is_valid = self.valid(user.as_ref(), invitation).is_some();
            let (true, Some(document), Some(mut user)) = (is_valid, document, user) else {
                return Err(Refusal::of(code::INVITATION_INVALID).into());
            };
            let caller = Caller {
                context: origin.context.clone(),
                ..person(&document.head, &user)
            };
            self.admit(&caller, origin.address)?;
            let cx = self.kernel.cx(&caller, &self.kernel.settings.base_url);
            let accepted = invitations::ended(&cx, (id, &user), Ended::Accepted)?;
            let was_admin = user.is_active_admin();
            user.active = true;
            user.invitation = None;
            // An older key of a user who was inactive may break a rule for admins.
            let checked = match !was_admin && user.is_active_admin() {
                true => check_admin(&cx, &document.head).await?,
                false => Changes::default(),
            };
            let (token, presented, key_id, key) = self.first_key(&caller, origin.address).await?;
            let written = Document {
                body: stored::write(&user)?,
                keys: user.keys(),
                ..document.clone()
            };
            let event = audit::update(&cx, &user::TYPE, &document, &written)?;
            let changes = Changes::replace(written, event)
                .and(accepted)
                .and(key)
                .and(checked);
            match self.kernel.store.commit(changes).await {
                Ok(_) => {}
                Err(CommitError::Fault(fault)) => return Err(fault.into()),
                Err(_) => continue,
            }
            let caller = Caller {
                key_id,
                token: Some(presented),
                ..caller
            };
            return Ok((caller, token));
        }
    }

    /// A first key for a person: its token, the token as presented by a caller, its ID, and the write that creates it. Where
    /// the rules of the account refuse a key without an end or networks, it has them: it ends after 30 days, and an admin's
    /// works from this address.
    async fn first_key(
        &self,
        caller: &Caller,
        address: IpAddr,
    ) -> Result<(Secret, PresentedToken, String, Changes), Error> {
        let cx = self.kernel.cx(caller, &self.kernel.settings.base_url);
        let id = cx.new_id();
        let form = cx.settings.token_form;
        let token = form.mint(token::Kind::Key, id, cx.entropy);
        let description = "first key of a person, by its invitation".to_owned();
        let digest = cx.pepper.digest(token.reveal());
        let presented = PresentedToken {
            digest: digest.as_str().into(),
            issued_at: id.at(),
            until: None,
        };
        let (rules, _) = current(&cx).await?;
        let mut restrictions = KeyRestrictions::default();
        if rules.required_end == Strictness::Refuse {
            restrictions.expires_at = Some(cx.clock.now().plus(FIRST_KEY_MAX).whole_seconds());
        }
        if rules.admin_networks == Strictness::Refuse && caller.role == Role::Admin {
            restrictions.networks = vec![Network(Prefix::of(address))];
        }
        let mut key = ApiKey {
            format: Format,
            owner_id: caller.owner_id.clone(),
            digest,
            description: Description::try_from(description)
                .map_err(|error| Fault::new("describing a key", error))?,
            metadata: Metadata::default(),
            restrictions,
            previous: None,
            rotated_at: None,
            leak: None,
            noticed: Vec::new(),
        };
        let head = Head {
            id: format!("{}_{id}", ApiKey::ID_PREFIX),
            kind: ApiKey::KIND.to_owned(),
            account: caller.account.clone(),
            revision: 0,
            created_at: id.at(),
            updated_at: id.at(),
        };
        let checked = check(&cx, &head.id, id.at(), &mut key).await?;
        let links = key.links(&head);
        let document = Document {
            body: stored::write(&key)?,
            head,
            keys: links.keys,
            refs: links.refs,
            topics: links.topics,
        };
        let view = api_key::TYPE.view_text(&document, cx.base)?;
        let event = audit::event(&cx, &api_key::TYPE, Verb::Created, &view)?;
        let key_id = document.head.id.clone();
        let changes = Changes::insert(document, event).and(checked);
        Ok((token, presented, key_id, changes))
    }
}

/// The ID of the user that an invitation is for, as its token has it.
fn user_of(invitation: &str) -> Result<String, Refusal> {
    match token::shape(invitation) {
        Shape::Token {
            body,
            kind: None | Some(token::Kind::Invitation),
        } => Ok(format!("{}_{body}", User::ID_PREFIX)),
        _ => Err(Refusal::of(code::INVITATION_INVALID)),
    }
}

/// A person as a caller without a key.
pub(crate) fn person(head: &Head, user: &User) -> Caller {
    Caller {
        owner_id: head.id.clone(),
        owner_kind: OwnerKind::User,
        role: user.role,
        key_id: String::new(),
        subject: user.email.clone(),
        account: head.account.clone(),
        restrictions: None,
        token: None,
        context: None,
    }
}

//! User: a person, who signs in to the console and owns keys.
//!
//! An invitation creates a user that is not active until it accepts: with the link, which gives it a first API key, or
//! with a sign-in at the console's OpenID provider. At least one active admin with an unrestricted key stays,
//! unless a change is forced.
//!
//! `people` accepts invitations.

pub mod invitations;
pub mod people;

use std::time::Duration;

use culvert_base::{Code, Fault, Ksuid, Refusal, Secret, code, names};
use culvert_resources::access::bot_user::BotUser;
use culvert_resources::access::rights::Access;
use culvert_resources::access::token;
use culvert_resources::access::user::{Invitation, User, View};
use culvert_resources::audit::trace::Trace;
use culvert_resources::cx::Cx;
use culvert_resources::input::force::FORCED;
use culvert_resources::list::listfilter::Field;
use culvert_resources::list::page;
use culvert_resources::operation::{Call, Method, ResponseSpec, Status};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{
    Draft, Extra, Resource, ResourceType, Reveal, Running, StoredDraft,
};
use culvert_resources::service::Attempts;
use culvert_resources::stored::Format;
use culvert_resources::{Caller, Error, Kernel, Parameter, Role, input, service, stored};
use culvert_store::{Changes, Head};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;

use crate::api_key::rules::check_admin;
use crate::console::session;
use crate::lockout::{Taken, leave_a_way_in};
use crate::user::invitations::Ended;
use crate::{Identity, bot_user};

/// The row of users in the table of resources.
pub static TYPE: ResourceType = ResourceType::of_subject::<User, Identity>();

/// Limit of an e-mail address (RFC 5321 4.5.3.1.3, without brackets).
const EMAIL_BYTES_MAX: usize = 254;
const INVITATION_MAX: Duration = Duration::from_secs(7 * 86_400);
const ONLY_ADMINS: &str = "Only admins may invite, change and remove users.";

/// A new user.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "UserCreate", extend("required" = ["email"]), transform = input::create_schema)]
pub struct Create {
    /// E-mail address of the person, at most 254 bytes. Shown without spaces around it. Required.
    #[schemars(extend("format" = "email"))]
    email: String,
    /// Role: `read_only`, `member` or `admin`; default: `member`.
    #[schemars(extend("enum" = ["read_only", "member", "admin"]))]
    role: String,
}

/// Changes to a user.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "UserUpdate", transform = input::update_schema)]
pub struct Update {
    /// Role: `read_only`, `member` or `admin`.
    #[schemars(extend("enum" = ["read_only", "member", "admin"]))]
    role: Option<String>,
    /// Whether the user may sign in and its keys are valid. An invited user becomes active by accepting.
    active: Option<bool>,
}

/// The operations beyond the five.
pub const OPERATIONS: &[Extra<Identity>] = &[Extra {
    name: "invite",
    method: Method::Post,
    suffix: "/invite",
    doc: "Invites a user again, also one who has lost its API keys: returns a new link, which \
          replaces the one before it.",
    body: None,
    response: ResponseSpec {
        status: Status::Created,
        schema: Some(SchemaGenerator::subschema_for::<View<'static>>),
    },
    query: &[],
    access: Access::Change,
    trace: Trace::Objects,
    run: run_invite,
}];

impl Resource<Identity> for User {
    const DOC: &'static str = "Users: people who sign in to the console and own API keys.";
    const FILTER: Option<&'static [Field]> = None;
    const PARAMETERS: &'static [Parameter] = page::PLAIN;
    const TAKEN: Option<Code> = Some(code::USER_EMAIL_TAKEN);
    const CREATE_NEEDS_BODY: bool = true;
    const WRITERS: Role = Role::Admin;
    const UPDATE_PARAMETERS: &'static [Parameter] = FORCED;
    const DELETE_PARAMETERS: &'static [Parameter] = FORCED;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        cx.caller.may_invite()?;
        let role = match input.role.as_str() {
            "" => Role::Member,
            name => check_role(name)?,
        };
        let email = check_email(&input.email)?;
        check_bots(cx, &email).await?;
        let user_id = format!("{}_{id}", Self::ID_PREFIX);
        let (invitation, reveal) = invitation(cx, id);
        let invited = invitations::created(cx, (&user_id, &email), &invitation)?;
        let user = Self {
            format: Format,
            email,
            role,
            active: false,
            invitation: Some(invitation),
            openid: None,
            is_by_group: false,
        };
        Ok(Draft {
            reveal: Some(reveal),
            also: invited,
            ..Draft::of(user)
        })
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        let (was_admin, was_active) = (self.is_active_admin(), self.active);
        let mut revoked = Changes::default();
        if let Some(name) = input.role {
            let role = check_role(&name)?;
            if role > self.role {
                cx.caller.may_invite()?;
            }
            self.role = role;
        }
        if let Some(active) = input.active {
            if active && self.invitation.is_some() && !self.active {
                let why = "The user has not accepted its invitation.";
                return Err(Refusal::new(code::BODY_FIELD_INVALID, why).into());
            }
            if active && !self.active {
                cx.caller.may_activate()?;
            }
            self.active = active;
            if !active {
                // An open invitation would activate the user again.
                revoked = invitations::ended(cx, (&head.id, &self), Ended::Revoked)?;
                self.invitation = None;
            }
        }
        let mut also = match was_admin && !self.is_active_admin() {
            true => leave_a_way_in(cx, &head.account, Taken::Admin(&head.id)).await?,
            false => Changes::default(),
        };
        if self.active != was_active {
            also = also.and(session::removal_of_owner(cx, head).await?);
        }
        also = also.and(revoked);
        if !was_admin && self.is_active_admin() {
            also = also.and(check_admin(cx, head).await?);
        }
        Ok(Draft {
            also,
            ..Draft::of(self)
        })
    }

    /// Removes the keys, credentials and sessions of the user too.
    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        let (_, body) = head.id.split_once('_').unwrap_or_default();
        let sessions = session::removal(cx, body).await?;
        let invitation = invitations::ended(cx, (&head.id, self), Ended::Revoked)?;
        let owned = bot_user::owned_removal(cx, head).await?;
        Ok(owned.and(sessions).and(invitation))
    }

    async fn check_removal(
        &self,
        cx: &Cx<'_>,
        head: &Head,
        _query: &[(String, String)],
    ) -> Result<Changes, Error> {
        match self.is_active_admin() {
            true => leave_a_way_in(cx, &head.account, Taken::Admin(&head.id)).await,
            false => Ok(Changes::default()),
        }
    }

    /// Which user of the provider may sign in as this one.
    fn changed_secrets(&self, after: &Self) -> Vec<&'static str> {
        Vec::from_iter((self.openid != after.openid).then_some("openid"))
    }

    fn permit(caller: &Caller) -> Result<(), Refusal> {
        caller.must_be_admin(ONLY_ADMINS)
    }
}

/// Refuses an address (662) that is the name of a bot from a version that allowed it.
async fn check_bots(cx: &Cx<'_>, email: &str) -> Result<(), Error> {
    let wanted = names::folded(email);
    for document in cx.store.all(BotUser::KIND).await? {
        let bot: BotUser = stored::read(&document)?;
        if document.head.account == cx.caller.account && names::folded(&bot.name) == wanted {
            let why = format!(
                "The bot user `{}` has this name; rename it first.",
                document.head.id
            );
            return Err(Refusal::new(code::NAME_LIKE_USER, why).into());
        }
    }
    Ok(())
}

fn check_role(name: &str) -> Result<Role, Refusal> {
    Role::parse(name).ok_or_else(|| {
        let why = "`role` must be `read_only`, `member` or `admin`.";
        Refusal::new(code::BODY_FIELD_INVALID, why)
    })
}

fn check_email(text: &str) -> Result<String, Refusal> {
    let text = text.trim();
    let is_plain = |part: &str| {
        !part.is_empty()
            && !part.contains(|c: char| c.is_whitespace() || c.is_control() || c == '@')
    };
    let is_address = text
        .split_once('@')
        .is_some_and(|(name, host)| is_plain(name) && is_plain(host));
    if is_address && text.len() <= EMAIL_BYTES_MAX {
        return Ok(text.to_owned());
    }
    Err(Refusal::new(
        code::BODY_FIELD_INVALID,
        format!("`email` must be an e-mail address of at most {EMAIL_BYTES_MAX} bytes."),
    ))
}

/// A new invitation of the user with this ID, and its link. The token is in the fragment of the link, so that it is
/// in no log of a server.
fn invitation(cx: &Cx<'_>, id: Ksuid) -> (Invitation, Reveal) {
    let form = cx.settings.token_form;
    let token = form.mint(token::Kind::Invitation, id, cx.entropy);
    let url = format!("{}/console/invitation#{}", cx.base, token.reveal());
    let reveal = Reveal {
        pointer: "/invitation_url".to_owned(),
        json: Secret::new(serde_json::Value::from(url).to_string()),
    };
    let invitation = Invitation {
        digest: cx.pepper.digest(token.reveal()),
        until: cx.clock.now().plus(INVITATION_MAX).whole_seconds(),
        by: cx.caller.subject.clone(),
    };
    (invitation, reveal)
}

fn run_invite(identity: &Identity, call: Call) -> Running<'_> {
    let kernel = &*identity.kernel;
    let invite = |call| invite(kernel, call);
    Box::pin(service::locked(kernel, &TYPE, call, invite))
}

fn invite(kernel: &Kernel, call: Call) -> Running<'_> {
    Box::pin(async move {
        let cx = kernel.cx_of(&call, &[])?;
        let mut attempts = Attempts::of(cx.locks);
        loop {
            attempts.begin().await?;
            let document = service::named(&cx, &TYPE, &call).await?;
            let document = document.ok_or_else(Refusal::not_found)?;
            User::permit(cx.caller)?;
            cx.caller.may_invite()?;
            let mut user: User = stored::read(&document)?;
            let (_, body) = document.head.id.split_once('_').unwrap_or_default();
            let id: Ksuid = body
                .parse()
                .map_err(|error| Fault::new("reading the ID of a user", error))?;
            let (invitation, reveal) = invitation(&cx, id);
            let about = (document.head.id.as_str(), &user);
            let replaced = invitations::ended(&cx, about, Ended::Replaced)?;
            let about = (document.head.id.as_str(), user.email.as_str());
            let also = replaced.and(invitations::created(&cx, about, &invitation)?);
            user.invitation = Some(invitation);
            let made = StoredDraft {
                body: stored::write(&user)?,
                links: user.links(&document.head),
                reveal: Some(reveal),
                also,
            };
            if let Some(reply) = service::replace_created(&cx, &TYPE, document, made).await? {
                return Ok(reply);
            }
        }
    })
}

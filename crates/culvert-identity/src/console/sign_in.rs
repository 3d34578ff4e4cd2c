//! The sign-in to the console at an OpenID provider: admission and roles.
//!
//! An invited user is admitted by its verified e-mail address, and has the role that an admin gave it. Others are
//! admitted by their groups, and have the highest role of these; they lose it with their groups, at their next sign-in.
//! From the first sign-in on, a user is identified by the provider's own ID.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use culvert_base::sync::lock;
use culvert_base::{Fault, Refusal, Secret, Share, Timestamp, code, names};
use culvert_login::{CONSOLE_SIGN_IN_WITHIN, ConsoleSignInError};
use culvert_resources::access::caller::{Caller, Origin, Role};
use culvert_resources::access::tenant::Account;
use culvert_resources::access::user::User;
use culvert_resources::audit::verb::Verb;
use culvert_resources::resource::model::Model;
use culvert_resources::service::Attempts;
use culvert_resources::stored::Format;
use culvert_resources::{Error, audit, stored};
use culvert_store::{Changes, CommitError, Document, Head};
use url::Url;

use crate::api_key::rules::check_admin;
use crate::console::provider::ConsoleSignIn;
use crate::lockout::{Taken, leave_a_way_in};
use crate::user::invitations;
use crate::user::invitations::Ended;
use crate::user::people::person;
use crate::{Identity, user};

/// Path of the callback, below the base URL of the API.
pub const CONSOLE_CALLBACK_PATH: &str = "/console/sign-in/callback";

/// What the cookie of a pending sign-in is encrypted for.
const PENDING: &str = "console sign-in";

/// A sign-in that has begun here, and whose browser is at the provider.
#[derive(Debug)]
pub struct PendingSignIn(Secret);

fn refused(error: ConsoleSignInError) -> Error {
    match error {
        ConsoleSignInError::State | ConsoleSignInError::Denied => {
            Refusal::of(code::CONSOLE_SIGN_IN_FAILED).into()
        }
        ConsoleSignInError::Provider(why) => {
            warn_provider(&why);
            Refusal::of(code::CONSOLE_PROVIDER_UNUSABLE).into()
        }
        ConsoleSignInError::Busy => Refusal::uncoded(
            culvert_base::Class::TooMany,
            "Too many sign-ins are in progress; try again shortly.",
        )
        .into(),
    }
}

/// Time between two lines about the provider in the log: anyone can fail sign-ins.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Logs that the provider cannot be used, at most once in [`WARN_EVERY`].
fn warn_provider(why: &str) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let now = Instant::now();
    let mut last = lock(&LAST);
    if last.is_none_or(|last| now.duration_since(last) >= WARN_EVERY) {
        *last = Some(now);
        tracing::warn!(why, "the OpenID provider of the console is not usable");
    }
}

/// The share of an address in the places at the provider: its own, or for IPv6 that of its /64, as failures are counted.
fn share_of(address: IpAddr) -> Share {
    let network = match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    };
    Share::of_owner(&network.to_string())
}

impl Identity {
    /// The name of the console's OpenID provider, if it has one.
    pub fn console_provider(&self) -> Option<&str> {
        Some(self.console_sign_in.as_ref()?.name.as_str())
    }

    fn sign_in_at(&self) -> Result<&ConsoleSignIn, Refusal> {
        self.console_sign_in.as_ref().ok_or_else(Refusal::not_found)
    }

    /// Begins a sign-in at the provider. Returns the value of the browser's cookie, and where the browser goes. `base`
    /// is the public base URL of the API.
    ///
    /// # Errors
    ///
    /// 649 if the provider cannot be used.
    pub async fn begin_console_sign_in(&self, base: &str) -> Result<(Secret, Url), Error> {
        let callback = format!("{base}{CONSOLE_CALLBACK_PATH}");
        let beginning = self.sign_in_at()?.provider.begin(&callback);
        let (secret, url) = beginning.await.map_err(refused)?;
        let kernel = &self.kernel;
        let text = format!("{} {}", kernel.clock.now(), secret.reveal());
        let sealed = kernel.seal.seal(&*kernel.entropy, PENDING, &text)?;
        Ok((Secret::new(sealed), url))
    }

    /// The pending sign-in of a cookie of [`Identity::begin_console_sign_in`], to which the callback with this query
    /// belongs. Nothing is asked for it, and a client cannot make one up.
    ///
    /// # Errors
    ///
    /// 648 if it did not begin here or has expired, or if the callback has another state.
    pub fn pending_console_sign_in(
        &self,
        cookie: &str,
        query: &str,
    ) -> Result<PendingSignIn, Refusal> {
        self.sign_in_at()?;
        let failed = || Refusal::of(code::CONSOLE_SIGN_IN_FAILED);
        let text = self.kernel.seal.open(PENDING, cookie).ok();
        let text = text.ok_or_else(failed)?;
        let (began, secret) = text.reveal().split_once(' ').ok_or_else(failed)?;
        let began = Timestamp::parse(began).ok_or_else(failed)?;
        if self.kernel.clock.now().since(began) > CONSOLE_SIGN_IN_WITHIN {
            return Err(failed());
        }
        if !culvert_login::is_callback_of(secret, query) {
            return Err(failed());
        }
        Ok(PendingSignIn(Secret::new(secret.to_owned())))
    }

    /// Completes a sign-in at the provider. Returns the person, who has no session yet. `query` is that of the callback.
    ///
    /// # Errors
    ///
    /// 636, 647, 648 and 649, and those of [`Identity::admit`].
    pub async fn finish_console_sign_in(
        &self,
        pending: &PendingSignIn,
        query: &str,
        base: &str,
        origin: &Origin,
    ) -> Result<Caller, Error> {
        let callback = format!("{base}{CONSOLE_CALLBACK_PATH}");
        let sign_in = self.sign_in_at()?;
        let secret = pending.0.reveal();
        let share = share_of(origin.address);
        let finishing = sign_in.provider.finish(secret, query, &callback, share);
        let identity = finishing.await.map_err(refused)?;
        let role = sign_in.role_of(&identity.groups);
        self.person_of(&identity, role, origin).await
    }

    /// The person with this identity, whose groups have this role. Creates or updates its user.
    pub async fn person_of(
        &self,
        identity: &culvert_login::Identity,
        role: Option<Role>,
        origin: &Origin,
    ) -> Result<Caller, Error> {
        let writing = self.write_person(identity, role, origin);
        self.kernel.locks.with(&[&identity.id], writing).await
    }

    async fn write_person(
        &self,
        identity: &culvert_login::Identity,
        role: Option<Role>,
        origin: &Origin,
    ) -> Result<Caller, Error> {
        let mut attempts = Attempts::of(&self.kernel.locks);
        loop {
            attempts.begin().await?;
            let (key, value) = Account::FIRST;
            let account = self.kernel.store.find(Account::KIND, key, value).await?;
            let account = account.ok_or_else(|| Fault::bare("reading the first account"))?;
            if stored::read::<Account>(&account)?.suspended {
                return Err(Refusal::of(code::ACCOUNT_SUSPENDED).into());
            }
            let (document, user) = match self.known_person(identity, &account.head).await? {
                Some((document, user)) => (document, self.again(user, identity, role)?),
                None => self.new_person(identity, role, &account.head)?,
            };
            let caller = Caller {
                context: origin.context.clone(),
                ..person(&document.head, &user)
            };
            self.admit(&caller, origin.address)?;
            let Some(changes) = self.person_write(document, &user, &caller).await? else {
                return Ok(caller);
            };
            match self.kernel.store.commit(changes).await {
                Ok(_) => return Ok(caller),
                Err(CommitError::Fault(fault)) => return Err(fault.into()),
                // The user was changed, or created, meanwhile.
                Err(_) => {}
            }
        }
    }

    /// The user with this identity, or the one that was invited with its verified e-mail address.
    async fn known_person(
        &self,
        identity: &culvert_login::Identity,
        account: &Head,
    ) -> Result<Option<(Document, User)>, Error> {
        let by_id = User::by_openid(&identity.id);
        let mut found = self
            .kernel
            .store
            .find(User::KIND, &by_id.name, &by_id.value)
            .await?;
        if let (None, Some(email)) = (&found, &identity.email) {
            let by_email = User::by_email(email);
            found = self
                .kernel
                .store
                .find(User::KIND, &by_email.name, &by_email.value)
                .await?;
        }
        let Some(document) = found.filter(|found| found.head.account == account.id) else {
            return Ok(None);
        };
        let user: User = stored::read(&document)?;
        if user
            .openid
            .as_ref()
            .is_some_and(|other| *other != identity.id)
        {
            let why =
                "Another user of the identity provider has signed in with your e-mail address.";
            return Err(Refusal::new(code::CONSOLE_SIGN_IN_DENIED, why).into());
        }
        Ok(Some((document, user)))
    }

    /// A known user after this sign-in.
    fn again(
        &self,
        mut user: User,
        identity: &culvert_login::Identity,
        role: Option<Role>,
    ) -> Result<User, Refusal> {
        if user.is_by_group {
            user.role = role.ok_or_else(|| Refusal::of(code::CONSOLE_SIGN_IN_DENIED))?;
        }
        if let Some(invitation) = user.invitation.take() {
            if !user.active && invitation.until <= self.kernel.clock.now() {
                return Err(Refusal::of(code::INVITATION_INVALID));
            }
            user.active = true;
        }
        if !user.active {
            return Err(Refusal::of(code::OWNER_INACTIVE));
        }
        user.openid = Some(identity.id.clone());
        Ok(user)
    }

    /// A user that is admitted by its groups.
    fn new_person(
        &self,
        identity: &culvert_login::Identity,
        role: Option<Role>,
        account: &Head,
    ) -> Result<(Document, User), Refusal> {
        let role = role.ok_or_else(|| Refusal::of(code::CONSOLE_SIGN_IN_DENIED))?;
        let email = identity.email.clone().ok_or_else(|| {
            let why = "The identity provider returned no verified e-mail address.";
            Refusal::new(code::CONSOLE_SIGN_IN_DENIED, why)
        })?;
        if names::deceptive_in(&email).is_some() {
            let why = "Your e-mail address has characters that are not allowed.";
            return Err(Refusal::new(code::CONSOLE_SIGN_IN_DENIED, why));
        }
        let user = User {
            format: Format,
            email,
            role,
            active: true,
            invitation: None,
            openid: Some(identity.id.clone()),
            is_by_group: true,
        };
        let id = self
            .kernel
            .ids
            .next(&*self.kernel.clock, &*self.kernel.entropy);
        let document = Document {
            head: Head {
                id: format!("{}_{id}", User::ID_PREFIX),
                kind: User::KIND.to_owned(),
                account: account.id.clone(),
                revision: 0,
                created_at: id.at(),
                updated_at: id.at(),
            },
            body: String::new(),
            keys: user.keys(),
            refs: Vec::new(),
            topics: Vec::new(),
        };
        Ok((document, user))
    }

    /// The write of a user after a sign-in; `None` if nothing changes.
    async fn person_write(
        &self,
        document: Document,
        user: &User,
        caller: &Caller,
    ) -> Result<Option<Changes>, Error> {
        let cx = self.kernel.cx(caller, &self.kernel.settings.base_url);
        let body = stored::write(user)?;
        if document.body.is_empty() {
            let document = Document { body, ..document };
            let view = user::TYPE.view_text(&document, cx.base)?;
            let event = audit::event(&cx, &user::TYPE, Verb::Created, &view)?;
            return Ok(Some(Changes::insert(document, event)));
        }
        let before: User = stored::read(&document)?;
        if stored::write(&before)? == body {
            return Ok(None);
        }
        let also = match before.is_active_admin() && !user.is_active_admin() {
            true => {
                leave_a_way_in(&cx, &document.head.account, Taken::Role(&document.head.id)).await?
            }
            false => Changes::default(),
        };
        // The groups may raise the role, which the rules of the account refuse as in a call of an admin.
        let checked = match !before.is_active_admin() && user.is_active_admin() {
            true => check_admin(&cx, &document.head).await?,
            false => Changes::default(),
        };
        let written = Document {
            body,
            keys: user.keys(),
            ..document.clone()
        };
        let accepted = match user.invitation.is_none() {
            true => invitations::ended(&cx, (&document.head.id, &before), Ended::Accepted)?,
            false => Changes::default(),
        };
        let event = audit::update(&cx, &user::TYPE, &document, &written)?;
        Ok(Some(
            Changes::replace(written, event)
                .and(accepted)
                .and(also)
                .and(checked),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_one_share_of_the_places_at_the_provider() {
        let of = |text: &str| share_of(text.parse().unwrap()).owner();
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.9"), of("192.0.2.9"));
        assert_ne!(of("192.0.2.8"), of("192.0.2.9"));
    }
}

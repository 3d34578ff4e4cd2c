//! The first start, which creates an account, its admin and a first key; and recovery, for when all keys are
//! lost or an IP restriction blocks every caller (contract: operations 3).
//!
//! Uses only the store, so the command line can run it while the server is down. The server itself is the
//! author, so the events name no principal.

use culvert_access::ip::restriction;
use culvert_access::ip::restriction_model::{IpRestriction, RestrictionScope};
use culvert_base::{
    Clock, Description, Entropy, Fault, IdMaker, Ksuid, Metadata, Secret, Timestamp,
};
use culvert_events::caused_by;
use culvert_identity::api_key::model::ApiKey;
use culvert_identity::{api_key, user};
use culvert_resources::access::key_restrictions::KeyRestrictions;
use culvert_resources::access::key_rules::KeyRules;
use culvert_resources::access::tenant::Account;
use culvert_resources::access::token;
use culvert_resources::access::user::User;
use culvert_resources::audit::verb::Verb;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::ResourceType;
use culvert_resources::resource::model::Model;
use culvert_resources::stored::Format;
use culvert_resources::stored::seal::Pepper;
use culvert_resources::{audit, stored};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head, Key, OnDelete, Ref, Store};

use crate::control::Control;
use crate::{PublicPorts, Role};
use culvert_server_log::command::AdminCommand;

/// Creates the first objects of an installation.
#[derive(Debug)]
pub struct Bootstrap<'a> {
    /// The store to write to.
    pub store: &'a Store,
    /// The clock for creation times.
    pub clock: &'a dyn Clock,
    /// Creates IDs. Control continues with the same one, so that newer objects sort as newer.
    pub ids: &'a IdMaker,
    /// Randomness of tokens and ids.
    pub entropy: &'a dyn Entropy,
    /// Digests of tokens.
    pub pepper: &'a Pepper,
    /// Public base of `uri` fields in events, without a trailing slash.
    pub base: &'a str,
    /// Platform domain; the admin's e-mail address is in it.
    pub domain: &'a str,
    /// The form of new tokens.
    pub token_form: token::Form,
}

/// The id of the account that the first start made; `None` before it.
///
/// # Errors
/// If the store fails.
pub async fn first_account(store: &Store) -> Result<Option<String>, Fault> {
    let (name, value) = Account::FIRST;
    let account = store.find(Account::KIND, name, value).await?;
    Ok(account.map(|account| account.head.id))
}

impl Bootstrap<'_> {
    /// Creates the account, its admin and the first key in an empty store and returns the key's token, which
    /// is `token` or a new one. Creates nothing and returns `None` if the store has an account, or if another
    /// node creates it first.
    ///
    /// # Errors
    /// `token` is malformed, or the store fails.
    pub async fn first_start(&self, token: Option<&Secret>) -> Result<Option<Secret>, Fault> {
        if first_account(self.store).await?.is_some() {
            return Ok(None);
        }
        let account_id = self.id();
        let account = Document {
            head: self.head(Account::PREFIX, Account::KIND, account_id, account_id),
            body: stored::write(&Account {
                format: Format,
                name: "culvert".to_owned(),
                suspended: false,
                key_rules: KeyRules::default(),
            })?,
            // A unique key: only one account can be the first, even if several nodes start concurrently.
            keys: vec![Key::new(Account::FIRST.0, Account::FIRST.1)],
            refs: Vec::new(),
            topics: Vec::new(),
        };
        let admin = User {
            format: Format,
            email: format!("admin@{}", self.domain),
            role: Role::Admin,
            active: true,
            invitation: None,
            openid: None,
            is_by_group: false,
        };
        let user = Document {
            head: self.head(User::ID_PREFIX, User::KIND, self.id(), account_id),
            body: stored::write(&admin)?,
            keys: admin.keys(),
            refs: Vec::new(),
            topics: Vec::new(),
        };
        let (token, key_id) = match token {
            Some(token) => (token.clone(), id_of(token)?),
            None => self.mint(),
        };
        let nothing = AuditEvent::Suppress {
            reason: "the account is part of the installation",
        };
        let made = self.audit_event(&user::TYPE, Verb::Created, &user)?;
        let key = self.key(&token, key_id, &user.head, "first key of the installation")?;
        let changes = Changes::insert(account, nothing)
            .and(Changes::insert(user, made))
            .and(key);
        match self.store.commit(changes).await {
            Ok(_) => Ok(Some(token)),
            Err(CommitError::Duplicate { kind, .. }) if kind == Account::KIND => Ok(None),
            Err(error) => Err(Fault::new("creating the first account", error)),
        }
    }

    /// Creates another key for an admin and returns its token. If there is no active admin, it makes one: the user with
    /// the address of the first admin, created if no such user exists. The events follow that of the command.
    ///
    /// # Errors
    /// The store has no account (the first start creates one), or the store fails.
    pub async fn admin_key(&self, command: &AdminCommand) -> Result<Secret, Fault> {
        let mut admin = None;
        for document in self.store.all(User::KIND).await? {
            let user: User = stored::read(&document)?;
            if user.role == Role::Admin && user.active {
                admin = Some(document.head);
            }
        }
        let (admin, made) = match admin {
            Some(admin) => (admin, Changes::default()),
            None => self.new_admin().await?,
        };
        let (token, key_id) = self.mint();
        let key = self.key(&token, key_id, &admin, "made by the command line")?;
        let changes = self.commanded(command, &admin.account, made.and(key))?;
        self.store
            .commit(changes)
            .await
            .map_err(|error| Fault::new("storing an admin key", error))?;
        Ok(token)
    }

    /// An active admin of the first account, after the last one lost its role.
    async fn new_admin(&self) -> Result<(Head, Changes), Fault> {
        let account = self
            .store
            .find(Account::KIND, Account::FIRST.0, Account::FIRST.1)
            .await?;
        let account = account.ok_or_else(|| {
            Fault::bare("cannot create an admin key before the first start of the server")
        })?;
        let email = format!("admin@{}", self.domain);
        let key = User::by_email(&email);
        let known = self.store.find(User::KIND, &key.name, &key.value).await?;
        if let Some(mut document) = known {
            let mut user: User = stored::read(&document)?;
            (user.role, user.active, user.is_by_group) = (Role::Admin, true, false);
            let before = document.clone();
            document.body = stored::write(&user)?;
            let event = self.audit_update(&user::TYPE, &before, &document)?;
            return Ok((document.head.clone(), Changes::replace(document, event)));
        }
        let admin = User {
            format: Format,
            email,
            role: Role::Admin,
            active: true,
            invitation: None,
            openid: None,
            is_by_group: false,
        };
        let mut head = self.head(User::ID_PREFIX, User::KIND, self.id(), self.id());
        head.account.clone_from(&account.head.id);
        let document = Document {
            head: head.clone(),
            body: stored::write(&admin)?,
            keys: admin.keys(),
            refs: Vec::new(),
            topics: Vec::new(),
        };
        let event = self.audit_event(&user::TYPE, Verb::Created, &document)?;
        Ok((head, Changes::insert(document, event)))
    }

    /// Disables the enforcement of every IP restriction of the management API, in case they block every
    /// caller. Returns the number of restrictions changed. The events follow that of the command.
    ///
    /// # Errors
    /// The store fails, or concurrent writers keep changing the same objects.
    pub async fn lift_api_restriction(&self, command: &AdminCommand) -> Result<usize, Fault> {
        let ty = &restriction::TYPE;
        let mut changes = Changes::default();
        let mut n_lifted = 0;
        let mut account = String::new();
        for mut document in self.store.all(ty.kind).await? {
            let mut restriction: IpRestriction = stored::read(&document)?;
            if restriction.place != RestrictionScope::Api || !restriction.enforced {
                continue;
            }
            let before = document.clone();
            restriction.enforced = false;
            document.body = stored::write(&restriction)?;
            document.head.updated_at = self.clock.now().whole_seconds();
            account.clone_from(&document.head.account);
            let event = self.audit_update(ty, &before, &document)?;
            changes = changes.and(Changes::replace(document, event));
            n_lifted += 1;
        }
        if n_lifted > 0 {
            self.store
                .commit(self.commanded(command, &account, changes)?)
                .await
                .map_err(|error| Fault::new("lifting the restriction of the API", error))?;
        }
        Ok(n_lifted)
    }

    /// The event of a command, and these changes with it as their cause.
    fn commanded(
        &self,
        command: &AdminCommand,
        account: &str,
        changes: Changes,
    ) -> Result<Changes, Fault> {
        let event = command.event((self.clock, self.entropy), account)?;
        let id = event.id.clone();
        let changes = changes.map_events(|event| caused_by(event, &id));
        Ok(Changes::event(event).and(changes))
    }

    fn view_base(&self) -> Base<'_> {
        Base {
            uri: self.base,
            ports: PublicPorts::default(),
            kubernetes_ingress: "",
            viewer: None,
        }
    }

    /// The audit event of a change without a principal.
    fn audit_update(
        &self,
        ty: &ResourceType,
        before: &Document,
        after: &Document,
    ) -> Result<AuditEvent, Fault> {
        let draft = audit::Draft::by_server(self.clock, self.entropy, &after.head.account);
        draft.update(ty, before, after, self.view_base())
    }

    /// The audit event of a write without a principal.
    fn audit_event(
        &self,
        ty: &ResourceType,
        verb: Verb,
        document: &Document,
    ) -> Result<AuditEvent, Fault> {
        let view = ty.view_text(document, self.view_base())?;
        let draft = audit::Draft::by_server(self.clock, self.entropy, &document.head.account);
        draft.event(ty, verb, &view, None)
    }

    fn key(
        &self,
        token: &Secret,
        id: Ksuid,
        owner: &Head,
        description: &str,
    ) -> Result<Changes, Fault> {
        let description = Description::try_from(description.to_owned())
            .map_err(|error| Fault::new("describing a key", error))?;
        let key = ApiKey {
            format: Format,
            owner_id: owner.id.clone(),
            digest: self.pepper.digest(token.reveal()),
            description,
            metadata: Metadata::default(),
            restrictions: KeyRestrictions::default(),
            previous: None,
            rotated_at: None,
            leak: None,
            noticed: Vec::new(),
        };
        let prefix = ApiKey::ID_PREFIX;
        let mut head = self.head(prefix, ApiKey::KIND, id, id);
        head.account.clone_from(&owner.account);
        let document = Document {
            head,
            body: stored::write(&key)?,
            keys: Vec::new(),
            refs: vec![Ref::new("owner_id", &owner.id, OnDelete::Cascade)],
            topics: Vec::new(),
        };
        let event = self.audit_event(&api_key::TYPE, Verb::Created, &document)?;
        Ok(Changes::insert(document, event))
    }

    fn id(&self) -> Ksuid {
        self.ids.next(self.clock, self.entropy)
    }

    fn mint(&self) -> (Secret, Ksuid) {
        let id = self.id();
        let token = self.token_form.mint(token::Kind::Key, id, self.entropy);
        (token, id)
    }

    fn head(&self, prefix: &str, kind: &str, id: Ksuid, account: Ksuid) -> Head {
        let at: Timestamp = id.at();
        Head {
            id: format!("{prefix}_{id}"),
            kind: kind.to_owned(),
            account: format!("{}_{account}", Account::PREFIX),
            revision: 0,
            created_at: at,
            updated_at: at,
        }
    }
}

/// The ID in a token.
fn id_of(token: &Secret) -> Result<Ksuid, Fault> {
    let body = token::body_of_key(token.reveal());
    match body.map(str::parse) {
        Some(Ok(id)) => Ok(id),
        _ => Err(Fault::bare(
            "`bootstrap.api_key` is not a valid API key token; create one with `culvert admin generate-token`",
        )),
    }
}

impl Control {
    /// Creates the first objects of an empty store and returns the first key's token; see
    /// [`Bootstrap::first_start`].
    pub async fn bootstrap(&self, token: Option<&Secret>) -> Result<Option<Secret>, Fault> {
        let bootstrap = Bootstrap {
            ids: &self.kernel.ids,
            store: &self.kernel.store,
            clock: &*self.kernel.clock,
            entropy: &*self.kernel.entropy,
            pepper: &self.kernel.pepper,
            base: &self.kernel.settings.base_url,
            domain: &self.kernel.settings.edge_domain,
            token_form: self.kernel.settings.token_form,
        };
        bootstrap.first_start(token).await
    }
}

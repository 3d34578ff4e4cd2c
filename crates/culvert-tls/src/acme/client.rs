//! The ACME client. Each method performs one step of an order and may be repeated.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use culvert_base::net::HostName;
use culvert_base::{Clock, RetryAfter, Secret, Timestamp};
use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeStatus, ChallengeType, Error,
    ExternalAccountKey, Identifier, Key, NewAccount, NewOrder, OrderStatus, Problem,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;
use tokio::sync::Mutex;

use super::https::{Fetch, Https, noting_waits};
use super::{Blame, Challenge, ChallengeKind, Failure, Order, OrderState, RenewalWindow};

/// The certificate authority and the account's settings.
#[derive(Clone, Debug)]
pub struct AcmeSettings {
    /// URL of the authority's directory; `https` only.
    pub directory_url: String,
    /// Contact for messages of the authority, such as `mailto:ops@example.com`.
    pub contact: Option<String>,
    /// The external account that a new account is bound to (RFC 8555 7.3.4), if the authority requires one.
    pub external_account: Option<ExternalAccount>,
}

/// An account that the authority's operator gave to this installation.
#[derive(Clone, Debug)]
pub struct ExternalAccount {
    /// The ID of its key.
    pub key_id: String,
    /// The key, base64url without padding.
    pub hmac_key: Secret,
}

/// The client for one certificate authority.
pub struct Acme {
    settings: AcmeSettings,
    https: Https,
    /// The current account, with its key.
    account: Mutex<Option<(Secret, Account)>>,
}

impl fmt::Debug for Acme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acme")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Acme {
    /// A client that sends its requests with `fetch`. Sends no request yet.
    pub fn new(settings: AcmeSettings, fetch: Arc<dyn Fetch>, clock: Arc<dyn Clock>) -> Self {
        Self {
            https: Https::new(fetch, clock),
            settings,
            account: Mutex::new(None),
        }
    }

    /// URL of the authority's directory.
    pub fn directory(&self) -> &str {
        &self.settings.directory_url
    }

    /// The ID of the external account's key, if accounts are bound to one.
    pub fn external_account(&self) -> Option<&str> {
        let external = self.settings.external_account.as_ref()?;
        Some(&external.key_id)
    }

    /// Creates the key of a new account, as text to be stored. An account without an external account is registered
    /// later, when its key is first used. The library binds an account only when it creates the key itself, so with an
    /// external account the authority has the key before the caller can store it.
    pub async fn new_account(&self) -> Result<Secret, Failure> {
        let Some(external) = &self.settings.external_account else {
            let (_, pkcs8) = Key::generate_pkcs8().map_err(|error| failure(&error, None))?;
            return Ok(Secret::new(STANDARD.encode(pkcs8.secret_pkcs8_der())));
        };
        let (bound, asked) = noting_waits(self.bind(external)).await;
        bound.map_err(|error| failure(&error, asked))
    }

    async fn bind(&self, external: &ExternalAccount) -> Result<Secret, Error> {
        let contact: Vec<&str> = self.settings.contact.as_deref().into_iter().collect();
        let account = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let hmac_key = URL_SAFE_NO_PAD
            .decode(external.hmac_key.reveal())
            .map_err(|_| Error::Str("an external account key in base64url"))?;
        let key = ExternalAccountKey::new(external.key_id.clone(), &hmac_key);
        let builder = Account::builder_with_http(Box::new(self.https.clone()));
        let directory = self.settings.directory_url.clone();
        let (_, credentials) = builder.create(&account, directory, Some(&key)).await?;
        // The credentials reveal the key only in their stored form.
        let stored = serde_json::to_value(&credentials).unwrap_or_default();
        let pkcs8 = stored["key_pkcs8"].as_str();
        let pkcs8 = pkcs8.and_then(|key| URL_SAFE_NO_PAD.decode(key).ok());
        let pkcs8 = pkcs8.ok_or(Error::Str("a readable account key"))?;
        Ok(Secret::new(STANDARD.encode(pkcs8)))
    }

    /// Creates an order for a certificate with these names, which may be wildcards. `replaces` is the chain of the
    /// certificate that the new one replaces, PEM. An authority that does not know that one gets an order without it.
    pub async fn order(
        &self,
        key: &Secret,
        names: &[HostName],
        replaces: Option<&str>,
    ) -> Result<Order, Failure> {
        let leaf = replaces.and_then(leaf);
        self.order_with(key, |account| {
            let leaf = leaf.as_ref();
            async move {
                let identifiers: Vec<Identifier> = names
                    .iter()
                    .map(|name| Identifier::Dns(name.to_string()))
                    .collect();
                let replaces = leaf.and_then(|leaf| CertificateIdentifier::try_from(leaf).ok());
                if let Some(replaces) = replaces {
                    let wanted = NewOrder::new(&identifiers).replaces(replaces);
                    match account.new_order(&wanted).await {
                        Ok(mut order) => return read(&account, &mut order).await,
                        Err(Error::Api(problem)) if is_limit(&problem) => {
                            return Err(Error::Api(problem));
                        }
                        Err(error) => tracing::debug!(%error, "ordering without `replaces`"),
                    }
                }
                let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
                read(&account, &mut order).await
            }
        })
        .await
    }

    /// When the authority suggests to renew a certificate (PEM). `None` if it makes no suggestions.
    pub async fn renewal_window(
        &self,
        key: &Secret,
        chain_pem: &str,
    ) -> Result<Option<RenewalWindow>, Failure> {
        let leaf = leaf(chain_pem);
        self.with(key, |account| {
            let leaf = leaf.as_ref();
            async move {
                let Some(id) = leaf.and_then(|leaf| CertificateIdentifier::try_from(leaf).ok())
                else {
                    return Ok(None);
                };
                match account.renewal_info(&id).await {
                    Ok((info, ask_after)) => {
                        let at = |time: OffsetDateTime| {
                            Timestamp::from_unix_seconds(time.unix_timestamp())
                        };
                        let window = info.suggested_window;
                        Ok(Some(RenewalWindow {
                            start: at(window.start),
                            end: at(window.end),
                            ask_after,
                        }))
                    }
                    Err(Error::Unsupported(_)) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        })
        .await
    }

    /// Fetches an order.
    pub async fn order_state(&self, key: &Secret, url: &str) -> Result<Order, Failure> {
        self.order_with(key, move |account| async move {
            let mut order = account.order(url.to_owned()).await?;
            read(&account, &mut order).await
        })
        .await
    }

    /// Reports that the responses to challenges of this kind are in place. Skips challenges that were already
    /// reported.
    pub async fn ready(&self, key: &Secret, url: &str, kind: ChallengeKind) -> Result<(), Failure> {
        self.with(key, move |account| async move {
            let mut order = account.order(url.to_owned()).await?;
            let mut authorizations = order.authorizations();
            while let Some(authorization) = authorizations.next().await {
                let mut authorization = authorization?;
                if authorization.status != AuthorizationStatus::Pending {
                    continue;
                }
                if let Some(mut challenge) = authorization.challenge(type_of(kind))
                    && challenge.status == ChallengeStatus::Pending
                {
                    challenge.set_ready().await?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Requests the certificate of an order that is ready.
    pub async fn finalize(&self, key: &Secret, url: &str, csr_der: &[u8]) -> Result<(), Failure> {
        self.with(key, move |account| async move {
            let mut order = account.order(url.to_owned()).await?;
            if order.state().status == OrderStatus::Ready {
                order.finalize_csr(csr_der).await?;
            }
            Ok(())
        })
        .await
    }

    /// The certificate chain of a valid order as PEM, leaf first.
    pub async fn certificate(&self, key: &Secret, url: &str) -> Result<String, Failure> {
        self.with(key, move |account| async move {
            let mut order = account.order(url.to_owned()).await?;
            let chain = order.certificate().await?;
            chain.ok_or(Error::Str("the certificate"))
        })
        .await
    }

    /// Performs a step that returns an order, with the wait that the authority requested.
    async fn order_with<F>(
        &self,
        key: &Secret,
        step: impl Fn(Account) -> F,
    ) -> Result<Order, Failure>
    where
        F: Future<Output = Result<Order, Error>>,
    {
        let (order, asked) = noting_waits(self.perform(key, step)).await;
        let mut order = order.map_err(|error| failure(&error, asked))?;
        order.retry_after = asked;
        Ok(order)
    }

    /// Performs a step with the account of `key`.
    async fn with<T, F>(&self, key: &Secret, step: impl Fn(Account) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let (taken, asked) = noting_waits(self.perform(key, step)).await;
        taken.map_err(|error| failure(&error, asked))
    }

    /// Performs a step with the account of `key`. If the authority does not know the account any more, registers it
    /// again.
    async fn perform<T, F>(&self, key: &Secret, step: impl Fn(Account) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let kept = self.account.lock().await.clone();
        let kept = kept.filter(|(opened_by, _)| opened_by == key);
        let (mut account, was_kept) = match kept {
            Some((_, account)) => (account, true),
            None => (self.register(key).await?, false),
        };
        let mut taken = step(account.clone()).await;
        if was_kept && taken.as_ref().is_err_and(is_unknown_account) {
            account = self.register(key).await?;
            taken = step(account.clone()).await;
        }
        // After a failure, the next step reads the directory again.
        let keeps = taken.is_ok().then(|| (key.clone(), account));
        *self.account.lock().await = keeps;
        taken
    }

    /// Registers the account. If the authority already knows the key, it returns the existing account.
    async fn register(&self, key: &Secret) -> Result<Account, Error> {
        let unreadable = |_| Error::Str("a readable account key");
        let pkcs8 = STANDARD.decode(key.reveal()).map_err(unreadable)?;
        let pkcs8 = PrivatePkcs8KeyDer::from(pkcs8);
        let signer = Key::from_pkcs8_der(pkcs8.clone_key())?;
        let builder = Account::builder_with_http(Box::new(self.https.clone()));
        let directory = self.settings.directory_url.clone();
        let key = (signer, PrivateKeyDer::Pkcs8(pkcs8));
        // An account that is bound to an external one was registered with its key.
        let (account, _) = match self.settings.external_account {
            Some(_) => builder.from_key(key, directory).await?,
            None => builder.create_from_key(key, directory).await?,
        };
        if let Some(contact) = &self.settings.contact {
            account.update_contacts(&[contact]).await?;
        }
        Ok(account)
    }
}

fn failure(error: &Error, asked: Option<RetryAfter>) -> Failure {
    let failure = match error {
        Error::Api(problem) => of_problem(problem),
        other => Failure::passing(format_args!(
            "the certificate authority is unusable: {other}"
        )),
    };
    Failure {
        retry_after: asked,
        ..failure
    }
}

fn type_of(kind: ChallengeKind) -> ChallengeType {
    match kind {
        ChallengeKind::Http01 => ChallengeType::Http01,
        ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
        ChallengeKind::Dns01 => ChallengeType::Dns01,
    }
}

/// Converts an order and its authorizations.
async fn read(account: &Account, order: &mut instant_acme::Order) -> Result<Order, Error> {
    let url = order.url().to_owned();
    let of = |state| Order {
        url: url.clone(),
        state,
        retry_after: None,
    };
    let error = order.state().error.clone();
    let is_invalid = match order.state().status {
        OrderStatus::Ready => return Ok(of(OrderState::Ready)),
        OrderStatus::Processing => return Ok(of(OrderState::Processing)),
        OrderStatus::Valid => return Ok(of(OrderState::Valid)),
        OrderStatus::Pending => false,
        OrderStatus::Invalid => true,
    };
    let mut wanted = Vec::new();
    let mut failed = None;
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let authorization = authorization?;
        let Identifier::Dns(host) = authorization.identifier().identifier else {
            continue;
        };
        let Ok(host) = HostName::parse(host) else {
            continue;
        };
        match authorization.status {
            AuthorizationStatus::Pending => {
                for challenge in &authorization.challenges {
                    let kinds = ChallengeKind::NAMED.map(|(kind, _)| kind);
                    let kind = kinds
                        .into_iter()
                        .find(|kind| type_of(*kind) == challenge.r#type);
                    if let Some(kind) = kind
                        && is_token(&challenge.token)
                    {
                        wanted.push(Challenge {
                            kind,
                            host: host.clone(),
                            answer: format!("{}.{}", challenge.token, account.key_thumbprint()),
                            token: challenge.token.clone(),
                        });
                    }
                }
            }
            AuthorizationStatus::Valid => {}
            _ => {
                let why = authorization
                    .challenges
                    .iter()
                    .find_map(|challenge| challenge.error.as_ref());
                failed = Some(of_validation(why));
            }
        }
    }
    Ok(of(match failed {
        Some(failure) => OrderState::Failed(failure),
        None if is_invalid => OrderState::Failed(match &error {
            Some(problem) => of_problem(problem),
            None => Failure::passing("the certificate authority invalidated the order"),
        }),
        None => OrderState::Pending(wanted),
    }))
}

/// A token consists of characters of base64url (RFC 8555 8.1), so it is safe in a path.
fn is_token(token: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=256).contains(&token.len()) && token.bytes().all(plain)
}

/// The type of a problem without the common prefix.
fn short_type(problem: &Problem) -> &str {
    let name = problem.r#type.as_deref().unwrap_or_default();
    name.strip_prefix("urn:ietf:params:acme:error:")
        .unwrap_or(name)
}

/// The first certificate of a PEM text.
fn leaf(chain_pem: &str) -> Option<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(chain_pem.as_bytes()).ok()
}

/// Whether the authority limits orders, so that another one must not follow immediately.
fn is_limit(problem: &Problem) -> bool {
    short_type(problem) == "rateLimited" || problem.status == Some(429)
}

fn is_unknown_account(error: &Error) -> bool {
    matches!(error, Error::Api(problem) if short_type(problem) == "accountDoesNotExist")
}

/// Converts an error response.
fn of_problem(problem: &Problem) -> Failure {
    let blame = match short_type(problem) {
        "rejectedIdentifier" | "unsupportedIdentifier" | "caa" | "dns" => Blame::Name,
        "malformed" | "unauthorized" if matches!(problem.status, Some(401 | 403 | 404)) => {
            Blame::Gone
        }
        _ => Blame::Passing,
    };
    Failure::of(
        blame,
        format_args!(
            "the certificate authority rejected the request: {}",
            describe(problem)
        ),
    )
}

/// Converts the result of a failed validation.
fn of_validation(problem: Option<&Problem>) -> Failure {
    let Some(problem) = problem else {
        return Failure::passing("the certificate authority invalidated the authorization");
    };
    let blame = match short_type(problem) {
        "serverInternal" | "rateLimited" => Blame::Passing,
        _ => Blame::Name,
    };
    Failure::of(
        blame,
        format_args!(
            "the certificate authority could not validate the domain: {}",
            describe(problem)
        ),
    )
}

fn describe(problem: &Problem) -> String {
    let kind = short_type(problem);
    match problem
        .detail
        .as_deref()
        .map(|text| text.trim_end_matches('.'))
    {
        Some(detail) => format!("{detail} ({kind})"),
        None => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(kind: &str, status: u16) -> Problem {
        Problem {
            r#type: Some(format!("urn:ietf:params:acme:error:{kind}")),
            detail: Some("so it is.".into()),
            status: Some(status),
            subproblems: Vec::new(),
        }
    }

    #[test]
    fn who_can_do_something_about_it() {
        for (kind, status, refused, seen) in [
            ("dns", 400, Blame::Name, Blame::Name),
            ("connection", 400, Blame::Passing, Blame::Name),
            ("unauthorized", 403, Blame::Gone, Blame::Name),
            ("caa", 403, Blame::Name, Blame::Name),
            ("rejectedIdentifier", 400, Blame::Name, Blame::Name),
            ("malformed", 404, Blame::Gone, Blame::Name),
            ("malformed", 400, Blame::Passing, Blame::Name),
            ("rateLimited", 429, Blame::Passing, Blame::Passing),
            ("serverInternal", 500, Blame::Passing, Blame::Passing),
        ] {
            let problem = problem(kind, status);
            assert_eq!(of_problem(&problem).blame, refused, "{kind}");
            assert_eq!(of_validation(Some(&problem)).blame, seen, "{kind}");
        }
        let why = of_problem(&problem("caa", 403)).why;
        assert_eq!(
            why,
            "the certificate authority rejected the request: so it is (caa)"
        );
    }

    #[test]
    fn tokens() {
        for (token, is) in [
            ("evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr_oA", true),
            ("", false),
            ("a/b", false),
            ("a b", false),
            ("ä", false),
        ] {
            assert_eq!(is_token(token), is, "{token}");
        }
    }
}

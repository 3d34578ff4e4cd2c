//! Reserved domain: a name, or all names below one, that only one account can use (contract: management API
//! 2.3).
//!
//! Names below the platform domain use the platform's certificate. A custom domain uses the uploaded
//! certificate that it refers to or, by default, one that is obtained from a certificate authority and
//! renewed. Until it has one, the edge presents the platform's certificate.

pub mod model;

use culvert_base::net::{HostName, NotAHostName};
use culvert_base::{Code, Description, Fault, Ksuid, Metadata, Refusal, Timestamp, code};
use culvert_certificates::management::model::{KeyType, Management};
use culvert_certificates::management::{Managed, Policy};
use culvert_certificates::tls_certificate::model::TlsCertificate;
use culvert_certificates::{management, tls_certificate};
use culvert_resources::access::caller::Role;
use culvert_resources::access::rights::Access;
use culvert_resources::audit::trace::Trace;
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter;
use culvert_resources::list::listfilter::{Field, Shape, field};
use culvert_resources::list::page::reference;
use culvert_resources::operation::{Call, Method, Reply, ResponseSpec, Status};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Extra, Resource, ResourceType, Running, StoredDraft};
use culvert_resources::service::Attempts;
use culvert_resources::stored::Format;
use culvert_resources::{Error, Kernel, input, service, stored};
use culvert_store::{AuditEvent, Changes, Document, Head, Key, Revision};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::reserved_domain::model::{GLOBAL, KEY, REGIONS, ReservedDomain, ResolvesTo, places};
use crate::{EndpointConfig, host, platform};

/// The row of reserved domains in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<ReservedDomain>();

/// Characters of each of the two labels that make a domain's CNAME target unique.
const CNAME_LABEL_LENGTH: usize = 17;
/// Characters of the label that makes a domain's challenge target unique.
const CHALLENGE_LABEL_LENGTH: usize = 8;

/// Top-level domains without public names.
const UNUSABLE: [&str; 3] = ["internal", "local", "localhost"];

/// A new reserved domain.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ReservedDomainCreate", extend("required" = ["domain"]), transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Domain name, such as `app.example.com`; `*` as the first label covers all subdomains at any
    /// depth. Shown in lower case, without spaces around it or a final dot. Required.
    domain: String,
    /// Deprecated; stored and returned without effect.
    #[schemars(extend("enum" = REGIONS))]
    region: String,
    /// ID of an uploaded TLS certificate to present.
    #[schemars(extend("pattern" = input::id_pattern(TlsCertificate::PREFIXES)))]
    certificate_id: String,
    /// Requests and renews a certificate from the installation's CA. This is the default for a
    /// custom domain without `certificate_id`; subdomains of the platform domain do not support it.
    certificate_management_policy: Option<Policy>,
    /// Regions, or `global`, in the given order.
    #[schemars(extend("maxItems" = places().len(), "uniqueItems" = true))]
    resolves_to: Vec<ResolvesTo>,
}

/// Changes to a reserved domain.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ReservedDomainUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// ID of an uploaded TLS certificate to present, which ends the certificate management; empty
    /// to detach an uploaded certificate.
    #[schemars(extend("pattern" = format!("^$|{}", input::id_pattern(TlsCertificate::PREFIXES))))]
    certificate_id: Option<String>,
    /// Requests and renews a certificate from the installation's CA, and detaches an uploaded
    /// certificate.
    certificate_management_policy: Option<Policy>,
    /// Regions, or `global`. An empty list changes nothing.
    #[schemars(extend("maxItems" = places().len(), "uniqueItems" = true))]
    resolves_to: Option<Vec<ResolvesTo>>,
}

impl Resource for ReservedDomain {
    const DOC: &'static str = "Reserved domains: domain names reserved for one account. A custom \
        domain uses an uploaded certificate or a managed certificate, which the installation \
        requests from its certificate authority and renews.";
    const NOT_IN_EVENTS: &'static [&'static str] = &["resolves_to"];
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("domain", Shape::Text),
        field("region", Shape::Text),
        field("cname_target", Shape::Text),
        field("certificate", Shape::Link),
        field("acme_challenge_cname_target", Shape::Text),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::DOMAIN_DESCRIPTION_TOO_LONG),
        ("metadata", code::DOMAIN_METADATA_TOO_LONG),
    ];
    const EMPTY_UPDATE: Option<Code> = Some(code::DOMAIN_UPDATE_EMPTY);
    const IN_USE: Option<Code> = Some(code::ADDRESS_IN_USE);
    const UNKNOWN: Option<Code> = Some(code::TLS_CERTIFICATE_UNKNOWN);
    const CREATE_NEEDS_BODY: bool = true;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let edge_domain = &cx.settings.edge_domain;
        let name = name(&input.domain, edge_domain)?;
        let is_platform = name.is_within(edge_domain);
        let is_admin = cx.caller.role == Role::Admin;
        if platform::is_own(cx.settings, &name)
            || !is_admin && platform::is_own_elsewhere(cx.settings, &name)
        {
            let why = platform::refusal(cx.settings, &name);
            return Err(Refusal::new(code::DOMAIN_RESERVED_BY_ANOTHER, why).into());
        }
        if !input.region.is_empty() && !is_region(&input.region) {
            return Err(unknown_region("region").into());
        }
        let resolves_to = (!input.resolves_to.is_empty()).then_some(input.resolves_to);
        check_places(resolves_to.as_deref().unwrap_or_default())?;
        let now = cx.clock.now();
        let has_certificate = !input.certificate_id.is_empty();
        let management = match input.certificate_management_policy {
            Some(policy) => {
                let key_type = wanted_key(&policy, is_platform, has_certificate)?;
                Some(Management::begin(key_type, now))
            }
            None if is_platform || has_certificate => None,
            None => Some(Management::begin(KeyType::Rsa, now)),
        };
        let certificate_id = match input.certificate_id {
            id if id.is_empty() => None,
            id => Some(certificate(cx, id, &name, is_platform).await?),
        };
        let turn = take_turn(cx).await?;
        check_free(cx, &name, &turn).await?;
        let Some(free) = host::free_for_reservation(cx, &name).await? else {
            let why = "The domain, or a name below it or above it, is in use by another account.";
            return Err(Refusal::new(code::DOMAIN_RESERVED_BY_ANOTHER, why).into());
        };
        let label = |length| {
            const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
            cx.entropy.text(LETTERS, length)
        };
        let cname_target = (!is_platform).then(|| {
            let (first, second) = (label(CNAME_LABEL_LENGTH), label(CNAME_LABEL_LENGTH));
            format!("{first}.{second}.{edge_domain}")
        });
        let acme_challenge_cname_target = (!is_platform && name.is_wildcard()).then(|| {
            format!(
                "{}.acme-challenge.{edge_domain}",
                label(CHALLENGE_LABEL_LENGTH)
            )
        });
        Ok(Draft {
            also: turn.0.and(free),
            ..Draft::of(Self {
                format: Format,
                owner_id: cx.caller.owner_id.clone(),
                description: input.description,
                metadata: input.metadata,
                domain: name.to_string(),
                region: (!input.region.is_empty()).then_some(input.region),
                resolves_to,
                certificate_id,
                management,
                cname_target,
                acme_challenge_cname_target,
            })
        })
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        _head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        if let Some(policy) = input.certificate_management_policy {
            // Clients may repeat the current certificate, or an empty ID if there is none.
            let repeated = [Some(""), self.certificate_id.as_deref()];
            let id = input.certificate_id.as_deref();
            let is_other = id.is_some() && !repeated.contains(&id);
            let key_type = wanted_key(&policy, self.is_platform(), is_other)?;
            match &mut self.management {
                Some(management) => management.private_key_type = key_type,
                None => {
                    self.management = Some(Management::begin(key_type, cx.clock.now()));
                    self.certificate_id = None;
                }
            }
        } else if let Some(id) = input.certificate_id {
            if id.is_empty() {
                self.detach_uploaded();
            } else if self.certificate_id.as_deref() != Some(&*id) {
                let id = certificate(cx, id, &self.domain, self.is_platform()).await?;
                self.certificate_id = Some(id);
                self.management = None;
            }
        }
        if let Some(places) = input.resolves_to.filter(|places| !places.is_empty()) {
            check_places(&places)?;
            self.resolves_to = Some(places);
        }
        // A change of the domain often fixes the cause of a failure.
        if let Some(management) = &mut self.management {
            management.retry(cx.clock.now());
        }
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        Ok(Draft::of(self))
    }

    async fn before_removal(&self, cx: &Cx<'_>, _head: &Head) -> Result<Changes, Error> {
        host::may_unreserve(cx, &self.domain).await?;
        Ok(Changes::default())
    }
}

impl Managed for ReservedDomain {
    fn name(&self) -> &str {
        &self.domain
    }

    fn owner_id(&self) -> &str {
        &self.owner_id
    }

    fn challenge_target(&self) -> Option<&str> {
        self.acme_challenge_cname_target.as_deref()
    }

    fn alias_target(&self) -> Option<&str> {
        self.cname_target.as_deref()
    }

    fn certificate_id(&self) -> Option<&str> {
        self.certificate_id.as_deref()
    }

    fn management(&self) -> Option<&Management> {
        self.management.as_ref()
    }

    fn management_mut(&mut self) -> Option<&mut Management> {
        self.management.as_mut()
    }

    fn take_issued(&mut self, certificate_id: String, renews_at: Timestamp) {
        if let Some(management) = &mut self.management {
            self.certificate_id = Some(certificate_id);
            management.renews_at = Some(renews_at);
            management.job = None;
        }
    }

    fn write(&self, document: &mut Document) -> Result<(), Fault> {
        document.body = stored::write(self)?;
        document.refs = self.refs();
        Ok(())
    }
}

impl ReservedDomain {
    /// The name and the ID of its certificate. `None` for a name below the platform domain, which uses the
    /// platform's certificate.
    pub fn custom(&self) -> Option<(&str, Option<&str>)> {
        (!self.is_platform()).then_some((&self.domain, self.certificate_id.as_deref()))
    }

    fn is_platform(&self) -> bool {
        self.cname_target.is_none()
    }

    fn detach_uploaded(&mut self) {
        if self.management.is_none() {
            self.certificate_id = None;
        }
    }
}

/// The domain, of any account, that covers a host: an exact match, or the nearest wildcard above.
pub async fn covering(cx: &Cx<'_>, host: &HostName) -> Result<Option<Document>, Fault> {
    let mut name = host.to_string();
    let mut rest: &str = host;
    loop {
        if let Some(document) = cx.store.find(ReservedDomain::KIND, KEY, &name).await? {
            return Ok(Some(document));
        }
        match rest.split_once('.') {
            Some((_, above)) => rest = above,
            None => return Ok(None),
        }
        name = format!("*.{rest}");
    }
}

/// The condition that the results of [`covering`] and [`is_kin_of_another`] for a host still hold at the
/// commit. `since` is a revision from before both calls.
pub(crate) fn as_it_was(host: &HostName, since: Revision) -> Changes {
    let mut names = vec![host.to_string()];
    let mut rest: &str = host.strip_prefix("*.").unwrap_or(host);
    names.push(rest.to_owned());
    while let Some((_, above)) = rest.split_once('.') {
        names.extend([above.to_owned(), format!("*.{above}")]);
        rest = above;
    }
    let above = Changes::unless_written(ReservedDomain::KIND, KEY, names, since);
    match host.strip_prefix('*') {
        Some(end) => above.and(Changes::unless_written_below(
            ReservedDomain::KIND,
            KEY,
            end.to_owned(),
            since,
        )),
        None => above,
    }
}

/// Whether an unreserved name is below a domain of another account, or is a wildcard above one. A domain and
/// all names below it belong to one account.
pub(crate) async fn is_kin_of_another(cx: &Cx<'_>, host: &HostName) -> Result<bool, Fault> {
    let is_anothers = |document: &Document| document.head.account != cx.caller.account;
    let mut rest: &str = host;
    while let Some((_, above)) = rest.split_once('.') {
        let found = cx.store.find(ReservedDomain::KIND, KEY, above).await?;
        if found.as_ref().is_some_and(is_anothers) {
            return Ok(true);
        }
        rest = above;
    }
    let Some(end) = host.strip_prefix('*') else {
        return Ok(false);
    };
    let is_below = |document: &Document| document.keys.iter().any(|key| key.value.ends_with(end));
    let all = cx.store.all(ReservedDomain::KIND).await?;
    Ok(all.iter().any(|one| is_anothers(one) && is_below(one)))
}

/// Normalises a name and checks that it can be reserved.
fn name(text: &str, platform: &HostName) -> Result<HostName, Refusal> {
    let text = text.trim();
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.chars().count() > 253 {
        return Err(Refusal::of(code::DOMAIN_TOO_LONG));
    }
    if text.contains("..") || text.ends_with('.') {
        return Err(Refusal::of(code::DOMAIN_LABEL_EMPTY));
    }
    if text.starts_with('.') {
        return Err(Refusal::of(code::DOMAIN_LABEL_START_INVALID));
    }
    let (star, base) = match text.strip_prefix("*.") {
        Some(base) => ("*.", base),
        None => ("", text),
    };
    let (first, _) = base.split_once('.').unwrap_or((base, ""));
    if base != "*" && base.contains('*') {
        let is_first = star.is_empty() && first.contains('*');
        return Err(Refusal::of(if is_first {
            code::DOMAIN_WILDCARD_NOT_ALONE
        } else {
            code::DOMAIN_WILDCARD_NOT_FIRST
        }));
    }
    check_labels(&base.to_ascii_lowercase())?;
    if base.is_empty() {
        return Err(Refusal::of(code::DOMAIN_TOO_FEW_LABELS));
    }
    let name = HostName::parse(&format!("{star}{base}")).map_err(unusable)?;
    let base = name.strip_prefix("*.").unwrap_or(&name);
    check_labels(base)?;
    if *base == **platform {
        return Err(if name.is_wildcard() {
            Refusal::of(code::PLATFORM_WILDCARD_NOT_RESERVABLE)
        } else {
            Refusal::new(
                code::DOMAIN_RESERVED_BY_ANOTHER,
                "The platform domain belongs to the installation.",
            )
        });
    }
    let Some((_, top)) = base.rsplit_once('.') else {
        return Err(Refusal::of(code::DOMAIN_TOO_FEW_LABELS));
    };
    if name.is_within(platform) {
        return Ok(name);
    }
    if name.is_wildcard() && platform.is_within(base) {
        return Err(Refusal::new(
            code::WILDCARD_OVERLAPS_ANOTHER_ACCOUNT,
            "The wildcard covers the platform domain.",
        ));
    }
    if UNUSABLE.contains(&top) || top.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refusal::of(code::DOMAIN_TOP_LEVEL_NOT_PUBLIC));
    }
    Ok(name)
}

/// Checks the labels of a name that are ASCII. Does not check a lone `*`.
fn check_labels(name: &str) -> Result<(), Refusal> {
    for label in name
        .split('.')
        .filter(|label| label.is_ascii() && *label != "*")
    {
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let code = if label.contains('_') {
            code::DOMAIN_UNDERSCORE
        } else if !label.bytes().all(is_plain) {
            code::DOMAIN_CHARACTER_INVALID
        } else if label.starts_with('-') {
            code::DOMAIN_LABEL_START_INVALID
        } else if label.ends_with('-') {
            code::DOMAIN_LABEL_END_INVALID
        } else if label.len() > 63 {
            code::DOMAIN_LABEL_TOO_LONG
        } else if label.get(2..4) == Some("--") && !label.starts_with("xn--") {
            code::DOMAIN_LABEL_HYPHENS
        } else {
            continue;
        };
        return Err(Refusal::of(code));
    }
    Ok(())
}

fn unusable(why: NotAHostName) -> Refusal {
    let code = match why {
        NotAHostName::Empty => code::DOMAIN_TOO_FEW_LABELS,
        NotAHostName::TooLong => code::DOMAIN_PUNYCODE_TOO_LONG,
        NotAHostName::Label => code::DOMAIN_LABEL_START_INVALID,
        NotAHostName::Character => code::DOMAIN_CHARACTER_INVALID,
        NotAHostName::Idna => code::DOMAIN_IDNA_INVALID,
        NotAHostName::Address => code::DOMAIN_TOP_LEVEL_NOT_PUBLIC,
    };
    Refusal::of(code)
}

/// Refuses a name that is reserved, and one above or below a name of another account. Scans all domains of
/// the installation, because reservations are rare.
async fn check_free(cx: &Cx<'_>, name: &HostName, _: &TakenTurn) -> Result<(), Error> {
    if let Some(document) = cx.store.find(ReservedDomain::KIND, KEY, name).await? {
        let is_ours = document.head.account == cx.caller.account;
        return Err(Refusal::of(if is_ours {
            code::DOMAIN_RESERVED_BY_ACCOUNT
        } else {
            code::DOMAIN_RESERVED_BY_ANOTHER
        })
        .into());
    }
    let is_below = |name: &str, base: &str| {
        let above = name.strip_suffix(base);
        above.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let base = |name: &str| name.strip_prefix("*.").unwrap_or(name).to_owned();
    let own = base(name);
    for document in cx.store.all(ReservedDomain::KIND).await? {
        if document.head.account == cx.caller.account {
            continue;
        }
        for key in document.keys {
            let other = base(&key.value);
            if is_below(&own, &other) || is_below(&other, &own) {
                let is_wild = name.is_wildcard() || key.value.starts_with("*.");
                return Err(Refusal::new(
                    if is_wild {
                        code::WILDCARD_OVERLAPS_ANOTHER_ACCOUNT
                    } else {
                        code::DOMAIN_RESERVED_BY_ANOTHER
                    },
                    "The domain overlaps a domain of another account.",
                )
                .into());
            }
        }
    }
    Ok(())
}

/// Kind of the one document that every reservation writes. Of two concurrent, overlapping reservations, one
/// fails and is decided again.
const TURN_KIND: &str = "domain_turn";
const TURN_PREFIX: &str = "domainturn";
const TURN_KEY: &str = "name";
const TURN_NAME: &str = "installation";

#[derive(Debug, Deserialize, Serialize)]
struct Turn {
    format: Format<1>,
}

/// Part of a reservation's commit, which fails if another reservation was committed since. Taken before the names are
/// read.
struct TakenTurn(Changes);

async fn take_turn(cx: &Cx<'_>) -> Result<TakenTurn, Error> {
    let nothing = AuditEvent::Suppress {
        reason: "the turn of reservations is bookkeeping of the installation",
    };
    if let Some(document) = cx.store.find(TURN_KIND, TURN_KEY, TURN_NAME).await? {
        return Ok(TakenTurn(Changes::replace(document, nothing)));
    }
    let id = cx.new_id();
    let document = Document {
        head: Head {
            id: format!("{TURN_PREFIX}_{id}"),
            kind: TURN_KIND.to_owned(),
            account: String::new(),
            revision: 0,
            created_at: id.at(),
            updated_at: id.at(),
        },
        body: stored::write(&Turn { format: Format })?,
        keys: vec![Key::new(TURN_KEY, TURN_NAME)],
        refs: Vec::new(),
        topics: Vec::new(),
    };
    Ok(TakenTurn(Changes::insert(document, nothing)))
}

/// Whether it is a region that the public service knows.
pub(super) fn is_region(value: &str) -> bool {
    REGIONS.contains(&value)
}

fn unknown_region(field: &str) -> Refusal {
    let known = REGIONS.join(", ");
    Refusal::new(
        code::DOMAIN_REGION_UNKNOWN,
        format!("`{field}` has an unknown region; valid regions: {known}."),
    )
}

fn check_places(places: &[ResolvesTo]) -> Result<(), Refusal> {
    for (index, place) in places.iter().enumerate() {
        if place.value != GLOBAL && !is_region(&place.value) {
            return Err(unknown_region("resolves_to"));
        }
        // Each region is known and listed once, which limits the length of the list.
        if places.iter().take(index).any(|earlier| earlier == place) {
            return Err(Refusal::of(code::RESOLVES_TO_REGION_REPEATED));
        }
    }
    Ok(())
}

/// The ID of the certificate, if the domain `name` may use it.
async fn certificate(
    cx: &Cx<'_>,
    id: String,
    name: &str,
    is_platform: bool,
) -> Result<String, Error> {
    if is_platform {
        return Err(Refusal::of(code::PLATFORM_SUBDOMAIN_CERTIFICATE).into());
    }
    let ty = &tls_certificate::TYPE;
    reference("certificate_id", &id, ty.prefixes)?;
    let document = cx.own(ty.kind, &id).await?;
    let document = document.ok_or_else(|| Refusal::of(code::TLS_CERTIFICATE_UNKNOWN))?;
    let certificate: TlsCertificate = stored::read(&document)?;
    if !certificate.covers(name) {
        return Err(Refusal::new(
            code::BODY_FIELD_INVALID,
            format!("The certificate in `certificate_id` does not cover the domain `{name}`."),
        )
        .into());
    }
    Ok(id)
}

/// The key type of a policy, if the domain can have a managed certificate.
fn wanted_key(
    policy: &Policy,
    is_platform: bool,
    with_certificate: bool,
) -> Result<KeyType, Refusal> {
    if is_platform {
        Err(Refusal::of(code::PLATFORM_SUBDOMAIN_MANAGEMENT))
    } else if with_certificate {
        Err(Refusal::of(code::CERTIFICATE_AND_POLICY_GIVEN))
    } else {
        policy.key_type()
    }
}

/// The operations on a domain's certificate.
pub const OPERATIONS: &[Extra<EndpointConfig>] = &[
    Extra {
        name: "delete_certificate",
        method: Method::Delete,
        suffix: "/certificate",
        doc: "Detaches the uploaded certificate from a domain without deleting the certificate.",
        body: None,
        response: ResponseSpec {
            status: Status::NoContent,
            schema: None,
        },
        query: &[],
        access: Access::Change,
        trace: Trace::Objects,
        run: run_delete_certificate,
    },
    Extra {
        name: "delete_certificate_management_policy",
        method: Method::Delete,
        suffix: "/certificate_management_policy",
        doc: "Deletes the certificate management policy of a domain. The edge stops serving the \
              certificate, and the certificate object remains. Succeeds if there is no policy.",
        body: None,
        response: ResponseSpec {
            status: Status::NoContent,
            schema: None,
        },
        query: &[],
        access: Access::Change,
        trace: Trace::Objects,
        run: run_delete_policy,
    },
    management::retry_operation::<ReservedDomain, EndpointConfig>(run_retry),
];

fn run_retry(endpoints: &EndpointConfig, call: Call) -> Running<'_> {
    let kernel = &*endpoints.kernel;
    let retry = move |call| management::run_retry::<ReservedDomain>(kernel, &TYPE, call);
    Box::pin(service::locked(kernel, &TYPE, call, retry))
}

fn run_delete_certificate(endpoints: &EndpointConfig, call: Call) -> Running<'_> {
    let kernel = &*endpoints.kernel;
    Box::pin(change(kernel, call, |domain| {
        if domain.management.is_some() {
            return Err(Refusal::of(code::MANAGED_CERTIFICATE_NOT_DETACHABLE));
        }
        domain.detach_uploaded();
        Ok(())
    }))
}

fn run_delete_policy(endpoints: &EndpointConfig, call: Call) -> Running<'_> {
    let kernel = &*endpoints.kernel;
    // Without a policy nothing changes. Like every update without changes, it emits an event.
    Box::pin(change(kernel, call, |domain| {
        if domain.management.take().is_some() {
            domain.certificate_id = None;
        }
        Ok(())
    }))
}

async fn change(
    kernel: &Kernel,
    call: Call,
    edit: fn(&mut ReservedDomain) -> Result<(), Refusal>,
) -> Result<Reply, Error> {
    let change = |call| change_locked(kernel, call, edit);
    service::locked(kernel, &TYPE, call, change).await
}

async fn change_locked(
    kernel: &Kernel,
    call: Call,
    edit: fn(&mut ReservedDomain) -> Result<(), Refusal>,
) -> Result<Reply, Error> {
    let cx = kernel.cx_of(&call, &[])?;
    let mut attempts = Attempts::of(cx.locks);
    loop {
        attempts.begin().await?;
        let document = service::named(&cx, &TYPE, &call).await?;
        let document = document.ok_or_else(Refusal::not_found)?;
        let mut domain: ReservedDomain = stored::read(&document)?;
        edit(&mut domain)?;
        let made = StoredDraft {
            body: stored::write(&domain)?,
            links: domain.links(&document.head),
            reveal: None,
            also: Changes::default(),
        };
        if service::replace(&cx, &TYPE, document, made)
            .await?
            .is_some()
        {
            return Ok(Reply::NoContent);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<String, u16> {
        let platform = HostName::parse("culvert.localhost").unwrap();
        let name = name(text, &platform).map(|name| name.to_string());
        name.map_err(|refusal| refusal.code.map_or(0, Code::number))
    }

    #[test]
    fn domain_names_are_normalised_or_refused() {
        let long = |length: usize| {
            let labels = "abcdefg.".repeat(40);
            format!("{}example", &labels[..length - 7])
        };
        let german = format!("{}.example", "ü".repeat(60));
        let deep = format!("{}example", "bücher.".repeat(30));
        for (text, expected) in [
            (" App.Example.COM. ", Ok("app.example.com")),
            ("bücher.example", Ok("xn--bcher-kva.example")),
            ("*.bücher.example", Ok("*.xn--bcher-kva.example")),
            ("*.a.example", Ok("*.a.example")),
            ("x.culvert.localhost", Ok("x.culvert.localhost")),
            ("*.y.x.culvert.localhost", Ok("*.y.x.culvert.localhost")),
            (&long(247), Ok(&*long(247))),
            ("", Err(448)),
            (".", Err(448)),
            ("example", Err(448)),
            ("*", Err(448)),
            ("*.com", Err(448)),
            ("a.*.example", Err(402)),
            ("*.*.example", Err(402)),
            ("a*.example", Err(403)),
            ("**.example", Err(403)),
            ("a b.example", Err(406)),
            ("a/b.example", Err(406)),
            (".a.example", Err(407)),
            ("-a.example", Err(407)),
            ("a-.example", Err(408)),
            ("a..example", Err(409)),
            ("a.example..", Err(409)),
            ("ab--c.example", Err(410)),
            ("a.internal", Err(411)),
            ("a.local", Err(411)),
            ("a.localhost", Err(411)),
            ("10.0.0.1", Err(411)),
            ("culvert.localhost", Err(414)),
            ("*.culvert.localhost", Err(416)),
            (&"a.".repeat(128), Err(423)),
            ("xn--a.example", Err(429)),
            ("a_b.example", Err(438)),
            (&format!("{}.example", "a".repeat(64)), Err(513)),
            (&german, Err(514)),
            (&deep, Err(514)),
        ] {
            let expected = expected.map(str::to_owned);
            assert_eq!(parse(text), expected, "{text}");
        }
        let platform = HostName::parse("in.platform.example").unwrap();
        let code = name("*.platform.example", &platform).unwrap_err().code;
        assert_eq!(code.map(Code::number), Some(417));
    }

    proptest! {
        #[test]
        fn any_text_is_a_domain_or_refused_with_a_code(text in "\\PC{0,80}|[a-zA-Z0-9.*_-]{0,40}|(xn--|\\*\\.|[a-zü]{1,9}\\.){0,6}") {
            match parse(&text) {
                Ok(name) => prop_assert_eq!(parse(&name), Ok(name)),
                Err(code) => prop_assert_ne!(code, 0),
            }
        }
    }
}

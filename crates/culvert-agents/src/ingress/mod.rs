//! Agent ingress: a dedicated domain at which agents connect (contract: management API 2.21).
//!
//! With a policy, its certificate is obtained from an authority and renewed (`certificates::acme`). Name servers
//! and regions cannot be configured, so their lists are empty.

pub mod model;

use culvert_base::net::HostName;
use culvert_base::{Code, Description, Fault, Ksuid, Metadata, Refusal, Timestamp, code};
use culvert_certificates::management;
use culvert_certificates::management::model::Management;
use culvert_certificates::management::{Managed, Policy};
use culvert_endpoints::{platform, reserved_domain};
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter;
use culvert_resources::list::listfilter::{Field, Shape, field};
use culvert_resources::operation::Call;
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Extra, Resource, ResourceType, Running};
use culvert_resources::settings::Settings;
use culvert_resources::stored::Format;
use culvert_resources::{Caller, Error, Role, input, service, stored};
use culvert_store::{Document, Head, Store};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::AgentControl;
use crate::ingress::model::AgentIngress;

/// The row of the ingresses of agents in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<AgentIngress>();

/// A new agent ingress.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AgentIngressCreate", extend("required" = ["domain"]), transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Domain that agents connect to; unique, and not a subdomain of the platform domain. Shown in lower case, without spaces
    /// around it or a final dot. Required.
    domain: String,
    /// Requests and renews a certificate from the installation's CA. It cannot be unset.
    certificate_management_policy: Option<Policy>,
}

/// Changes to an agent ingress.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AgentIngressUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// Requests and renews a certificate from the installation's CA. It cannot be unset.
    certificate_management_policy: Option<Policy>,
}

/// The operations beyond the five.
pub const OPERATIONS: &[Extra<AgentControl>] = &[management::retry_operation::<
    AgentIngress,
    AgentControl,
>(run_retry)];

impl Resource for AgentIngress {
    const DOC: &'static str = "Agent ingresses: domains that agents connect to.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("domain", Shape::Text),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::INGRESS_DESCRIPTION_TOO_LONG),
        ("metadata", code::INGRESS_METADATA_TOO_LONG),
    ];
    const TAKEN: Option<Code> = Some(code::INGRESS_DOMAIN_TAKEN);
    const CREATE_NEEDS_BODY: bool = true;
    const WRITERS: Role = Role::Admin;

    type Create = Create;
    type Update = Update;

    /// Admins only: without its ingress, or with another certificate, no agent that uses the domain can
    /// connect.
    fn permit(caller: &Caller) -> Result<(), Refusal> {
        caller.must_be_admin("Only admins may create, change and delete agent ingresses.")
    }

    async fn create(cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let domain = check_domain(&input.domain, cx.settings)?;
        let policy = input.certificate_management_policy.as_ref();
        let key_type = policy.map(Policy::key_type).transpose()?;
        if let Some(covering) = reserved_domain::covering(cx, &domain).await?
            && covering.head.account != cx.caller.account
        {
            return Err(Refusal::of(code::INGRESS_DOMAIN_TAKEN).into());
        }
        Ok(Draft::of(Self {
            format: Format,
            description: input.description,
            metadata: input.metadata,
            domain: domain.to_string(),
            certificate_id: None,
            management: key_type.map(|key_type| Management::begin(key_type, cx.clock.now())),
        }))
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        _head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        if let Some(policy) = input.certificate_management_policy {
            let key_type = policy.key_type()?;
            match &mut self.management {
                Some(management) => management.private_key_type = key_type,
                None => self.management = Some(Management::begin(key_type, cx.clock.now())),
            }
        }
        if let Some(management) = &mut self.management {
            management.retry(cx.clock.now());
        }
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        Ok(Draft::of(self))
    }
}

/// The ingress with this domain, in any account.
pub async fn find(store: &Store, domain: &str) -> Result<Option<Document>, Fault> {
    store.find(AgentIngress::KIND, "domain", domain).await
}

/// The domain of a stored ingress and the ID of its issued certificate.
pub fn certified(document: &Document) -> Result<(String, Option<String>), Fault> {
    let ingress: AgentIngress = stored::read(document)?;
    Ok((ingress.domain, ingress.certificate_id))
}

fn run_retry(agents: &AgentControl, call: Call) -> Running<'_> {
    let kernel = &*agents.kernel;
    let retry = move |call| management::run_retry::<AgentIngress>(kernel, &TYPE, call);
    Box::pin(service::locked(kernel, &TYPE, call, retry))
}

impl Managed for AgentIngress {
    fn name(&self) -> &str {
        &self.domain
    }

    fn owner_id(&self) -> &str {
        ""
    }

    fn challenge_target(&self) -> Option<&str> {
        None
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

/// Checks and normalises the domain.
fn check_domain(given: &str, settings: &Settings) -> Result<HostName, Refusal> {
    let host = HostName::parse(given).map_err(|why| {
        Refusal::new(
            code::INGRESS_DOMAIN_INVALID,
            format!("The domain is invalid: {why}."),
        )
    })?;
    if host.starts_with('*') || !host.contains('.') || host.contains('_') {
        return Err(Refusal::of(code::INGRESS_DOMAIN_INVALID));
    }
    let platform = &settings.edge_domain;
    if host == *platform || host.is_within(platform) {
        return Err(Refusal::of(code::INGRESS_DOMAIN_OF_PLATFORM));
    }
    // Its certificate would replace that of the installation.
    if platform::is_own_elsewhere(settings, &host) {
        let why = format!("The name `{host}` belongs to the installation.");
        return Err(Refusal::new(code::INGRESS_DOMAIN_OF_PLATFORM, why));
    }
    Ok(host)
}

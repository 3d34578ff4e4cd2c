//! Agent ingress: a domain of its own at which agents connect (contract: management API 2.21).
//!
//! Certificates for it are not managed yet: a policy for them is refused. No name servers and no
//! regions can be configured either, so their lists are empty.

use std::collections::BTreeMap;

use culvert_base::net::HostName;
use culvert_base::{Code, Description, Fault, Ksuid, Metadata, Refusal, Timestamp};
use culvert_store::{Document, Head, Key, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Draft, Links, Resource, ResourceType, Uri};
use crate::Error;
use crate::cx::Cx;
use crate::input;
use crate::listfilter::{self, Field, Shape, field};
use crate::stored::{self, Format};

pub(crate) static TYPE: ResourceType = ResourceType::of::<AgentIngress>();

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct AgentIngress {
    format: Format<1>,
    description: Description,
    metadata: Metadata,
    domain: String,
}

/// A new agent ingress.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AgentIngressCreate", extend("required" = ["domain"]), transform = input::create_schema)]
pub(crate) struct Create {
    /// What it is for. At most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Anything to be kept beside it. At most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Where agents connect. Required, unlike any other ingress's, and not below a platform domain.
    domain: String,
    /// Not kept by this version: refused unless empty. Managed certificates come later.
    certificate_management_policy: Map<String, Value>,
}

/// Changes to an agent ingress.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AgentIngressUpdate", transform = input::update_schema)]
pub(crate) struct Update {
    /// What it is for. At most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Anything to be kept beside it. At most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// Not kept by this version: refused unless empty. Managed certificates come later.
    certificate_management_policy: Map<String, Value>,
}

/// An agent ingress as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentIngress")]
pub(crate) struct View<'a> {
    id: &'a str,
    #[schemars(with = "String")]
    uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    description: &'a str,
    metadata: &'a str,
    domain: &'a str,
    /// Names of the name servers its zone is to be delegated to; none can be configured yet.
    ns_targets: [&'static str; 0],
    /// Its names in single regions; none can be configured yet.
    region_domains: [&'static str; 0],
    certificate_management_policy: Option<BTreeMap<&'a str, &'a str>>,
    certificate_management_status: Option<BTreeMap<&'a str, &'a str>>,
}

impl Resource for AgentIngress {
    const NAME: &'static str = "agent_ingress";
    const COLLECTION: &'static str = "agent_ingresses";
    const LIST_FIELD: &'static str = "ingresses";
    const ID_PREFIX: &'static str = "agin";
    const DOC: &'static str = "Agent ingresses: domains at which agents connect.";
    const SILENT: Option<&'static str> = Some("the catalogue has no events for agent ingresses");
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("domain", Shape::Text),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", Code::new(6700)),
        ("metadata", Code::new(6701)),
    ];
    const TAKEN: Option<Code> = Some(Code::new(6706));
    const CREATE_NEEDS_BODY: bool = true;

    type Create = Create;
    type Update = Update;
    type View<'a> = View<'a>;

    async fn create(cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        refuse_policy(&input.certificate_management_policy)?;
        Ok(Draft::of(Self {
            format: Format,
            description: input.description,
            metadata: input.metadata,
            domain: check_domain(&input.domain, &cx.settings.edge_domain)?,
        }))
    }

    async fn update(
        mut self,
        _cx: &Cx<'_>,
        _head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        refuse_policy(&input.certificate_management_policy)?;
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        Ok(Draft::of(self))
    }

    fn view<'a>(&'a self, head: &'a Head, base: &'a str) -> View<'a> {
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            created_at: head.created_at,
            description: &self.description,
            metadata: &self.metadata,
            domain: &self.domain,
            ns_targets: [],
            region_domains: [],
            certificate_management_policy: None,
            certificate_management_status: None,
        }
    }

    fn links(&self, _head: &Head) -> Links {
        Links {
            keys: vec![Key::new("domain", self.domain.clone())],
            ..Links::default()
        }
    }
}

/// The ingress with this domain, whoever has it.
pub(crate) async fn find(store: &Store, domain: &str) -> Result<Option<Document>, Fault> {
    store.find(TYPE.kind, "domain", domain).await
}

/// The domain of a stored ingress.
pub(crate) fn domain_of(document: &Document) -> Result<String, Fault> {
    stored::read::<AgentIngress>(document).map(|ingress| ingress.domain)
}

/// The domain in its normal form.
fn check_domain(given: &str, platform: &HostName) -> Result<String, Refusal> {
    const INVALID: Code = Code::new(6704);
    const OF_THE_PLATFORM: Code = Code::new(6705);
    let host = HostName::parse(given)
        .map_err(|why| Refusal::new(INVALID, format!("The domain is not valid: {why}.")))?;
    if host.starts_with('*') || !host.contains('.') || host.contains('_') {
        return Err(Refusal::of(INVALID));
    }
    if host == *platform || host.is_within(platform) {
        return Err(Refusal::of(OF_THE_PLATFORM));
    }
    Ok(host.to_string())
}

fn refuse_policy(policy: &Map<String, Value>) -> Result<(), Refusal> {
    const WRONG: Code = Code::new(215);
    if policy.is_empty() {
        return Ok(());
    }
    Err(Refusal::new(
        WRONG,
        "`certificate_management_policy` is not allowed yet: managed certificates come in a later version of culvert.",
    ))
}

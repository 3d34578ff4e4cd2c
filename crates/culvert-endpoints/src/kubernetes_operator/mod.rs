//! Kubernetes operator: the operator of a cluster, as it registers itself (contract: management API 2.26).
//!
//! An operator that binds endpoints selects them with selectors: conditions on an endpoint in the language of
//! `culvert-cel`. It gets a client certificate for the key of its certificate signing request.

pub mod active_operators;
pub mod endpoint_selector;
pub mod model;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA384_ASN1, ECDSA_P256_SHA512_ASN1, UnparsedPublicKey,
};
use culvert_base::{Code, Description, Ksuid, Metadata, Refusal, code};
use culvert_certificates::authority;
use culvert_certificates::authority::{ClientCertificate, P256_POINT_BYTES, P256Key};
use culvert_resources::access::rights::Access;
use culvert_resources::audit::trace::Trace;
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter::Field;
use culvert_resources::list::{Listed, page};
use culvert_resources::operation::{Call, Method, ResponseSpec, Status};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Extra, Resource, ResourceType, Running, list_schema};
use culvert_resources::stored::Format;
use culvert_resources::{Error, Parameter, input, list, service, stored};
use culvert_store::{Changes, Head};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384,
    OID_SIG_ECDSA_WITH_SHA512,
};
use x509_parser::prelude::FromDer;

use crate::endpoint::model::Endpoint;
use crate::kubernetes_operator::endpoint_selector::{EndpointFacts, Selectors};
use crate::kubernetes_operator::model::{Deployment, FEATURES, KubernetesOperator, Text};
use crate::{EndpointConfig, endpoint};

/// The row of Kubernetes operators in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<KubernetesOperator>();

const DEFAULT_REGION: &str = "global";
/// Longest certificate signing request, in bytes.
const CSR_BYTES_MAX: usize = 16 << 10;

/// A new Kubernetes operator.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "KubernetesOperatorCreate", transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Enabled features: `bindings`, `gateway` and `ingress`, case-insensitive; shown in lower case.
    #[schemars(extend("items" = {"type": "string", "pattern": input::caseless_pattern(&FEATURES)}))]
    enabled_features: Vec<String>,
    /// Region that the operator connects to; default `global`.
    #[schemars(with = "String", length(max = 255))]
    region: Text,
    /// Deployment in the cluster.
    deployment: Deployment,
    /// Endpoints that the operator binds, if any.
    binding: Option<BindingInput>,
}

/// Changes to a Kubernetes operator.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "KubernetesOperatorUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// Enabled features: `bindings`, `gateway` and `ingress`, case-insensitive; shown in lower case.
    #[schemars(extend("items" = {"type": "string", "pattern": input::caseless_pattern(&FEATURES)}))]
    enabled_features: Option<Vec<String>>,
    /// Region that the operator connects to.
    #[schemars(with = "Option<String>", length(max = 255))]
    region: Option<Text>,
    /// Current deployment in the cluster.
    deployment: Option<DeploymentUpdate>,
    /// Endpoints that the operator binds. Absent fields are unchanged.
    binding: Option<BindingInput>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
struct DeploymentUpdate {
    #[schemars(with = "Option<String>", length(max = 255))]
    name: Option<Text>,
    #[schemars(with = "Option<String>", length(max = 255))]
    version: Option<Text>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
struct BindingInput {
    /// CEL expressions over `endpoint`; an endpoint that matches one of them is selected.
    #[schemars(extend("maxItems" = endpoint_selector::SELECTORS_MAX))]
    endpoint_selectors: Option<Vec<String>>,
    /// PEM certificate signing request with an ECDSA P-256 key for the operator's client
    /// certificate.
    #[schemars(extend("maxLength" = CSR_BYTES_MAX))]
    csr: Option<String>,
    /// Address as `host:port` that receives the traffic of bound endpoints. Empty: the
    /// installation's, of the setting `kubernetes.ingress_endpoint`.
    #[schemars(length(max = 300))]
    ingress_endpoint: Option<String>,
}

/// The operations beyond create, get, list, update and delete.
pub const OPERATIONS: &[Extra<EndpointConfig>] = &[Extra {
    name: "list_bound_endpoints",
    method: Method::Get,
    suffix: "/bound_endpoints",
    doc: "Lists the endpoints that a Kubernetes operator binds, newest first.",
    body: None,
    response: ResponseSpec {
        status: Status::Ok,
        schema: Some(endpoints_schema),
    },
    query: page::PLAIN,
    access: Access::See,
    trace: Trace::Nothing,
    run: run_list_bound_endpoints,
}];

impl Resource for KubernetesOperator {
    const DOC: &'static str = "Kubernetes operators: registered operators of Kubernetes clusters.";
    const FILTER: Option<&'static [Field]> = None;
    const PARAMETERS: &'static [Parameter] = page::PLAIN;
    const TAKEN: Option<Code> = Some(code::OPERATOR_INVALID);
    const CREATE_NEEDS_BODY: bool = false;
    const IS_REMOVED_WITH_OWNER: bool = true;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let mut operator = Self {
            format: Format,
            description: input.description,
            metadata: input.metadata,
            enabled_features: check_features(&input.enabled_features)?,
            region: region(input.region),
            deployment: input.deployment,
            binding: None,
            principal_id: cx.caller.owner_id.clone(),
        };
        let id = format!("{}_{id}", Self::ID_PREFIX);
        let also = operator.bind(cx, &id, input.binding).await?;
        Ok(Draft {
            also,
            ..Draft::of(operator)
        })
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        let reach = self.reach();
        let was_active = self.active_binding().is_some();
        if let Some(features) = input.enabled_features {
            self.enabled_features = check_features(&features)?;
        }
        if let Some(given) = input.deployment {
            self.deployment.name = given.name.unwrap_or(self.deployment.name);
            self.deployment.version = given.version.unwrap_or(self.deployment.version);
        }
        self.region = input.region.map_or(self.region, region);
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        let also = self.bind(cx, &head.id, input.binding).await?;
        let is_activated = !was_active && self.active_binding().is_some();
        if self
            .reach()
            .is_some_and(|now| is_activated || reach != Some(now))
        {
            // The certificate now reaches other endpoints. Like a new one, it would outlive the key, and have none of
            // its restrictions.
            cx.caller.may_make_credentials()?;
        }
        Ok(Draft {
            also,
            ..Draft::of(self)
        })
    }
}

impl KubernetesOperator {
    /// The selectors of the endpoints that its certificate gives access to, and the address of that access; `None` if
    /// it has no certificate.
    fn reach(&self) -> Option<(Vec<String>, String)> {
        let binding = self.binding.as_ref()?;
        binding.certificate.as_ref()?;
        let address = binding.ingress_endpoint.clone();
        Some((binding.endpoint_selectors.clone(), address))
    }

    /// Sets the binding, and issues a certificate if the request asks for one. Returns further changes to commit.
    async fn bind(
        &mut self,
        cx: &Cx<'_>,
        id: &str,
        given: Option<BindingInput>,
    ) -> Result<Changes, Error> {
        let Some(given) = given else {
            return Ok(Changes::default());
        };
        let binding = self.binding.get_or_insert_default();
        if let Some(selectors) = given.endpoint_selectors {
            endpoint_selector::check(&selectors)?;
            binding.endpoint_selectors = selectors;
        }
        if let Some(endpoint) = given.ingress_endpoint {
            check_ingress(&endpoint)?;
            binding.ingress_endpoint = endpoint;
        }
        let Some(csr) = given.csr.filter(|csr| !csr.is_empty()) else {
            return Ok(Changes::default());
        };
        let key = public_key(&csr)?;
        // Operators send the same request with every change; the certificate stays until it is due for
        // renewal.
        let is_current = |certificate: &ClientCertificate| !certificate.is_due(cx.clock.now());
        if csr == binding.csr && binding.certificate.as_ref().is_some_and(is_current) {
            return Ok(Changes::default());
        }
        // The certificate would outlive the key, and have none of its restrictions.
        cx.caller.may_make_credentials()?;
        let (certificate, also) = authority::sign_operator(cx, &key, id).await?;
        binding.csr = csr;
        binding.certificate = Some(certificate);
        Ok(also)
    }
}

fn region(given: Text) -> Text {
    if given.is_empty() {
        Text::try_from(DEFAULT_REGION.to_owned()).unwrap_or_default()
    } else {
        given
    }
}

fn check_features(given: &[String]) -> Result<Vec<String>, Refusal> {
    let mut features: Vec<String> = Vec::new();
    for name in given {
        let name = name.to_ascii_lowercase();
        if !FEATURES.contains(&name.as_str()) {
            return Err(Refusal::new(
                code::OPERATOR_INVALID,
                format!(
                    "`enabled_features` may contain only: {}.",
                    FEATURES.join(", ")
                ),
            ));
        }
        if !features.contains(&name) {
            features.push(name);
        }
    }
    Ok(features)
}

fn check_ingress(given: &str) -> Result<(), Refusal> {
    // The text is stored as given, so the host must already be in normal form.
    let is_address = given.len() <= 300
        && given.rsplit_once(':').is_some_and(|(host, port)| {
            culvert_base::net::HostName::parse(host).is_ok_and(|name| *name == *host)
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
    if given.is_empty() || is_address {
        return Ok(());
    }
    Err(Refusal::new(
        code::OPERATOR_INVALID,
        "`binding.ingress_endpoint` must be `host:port`.",
    ))
}

impl KubernetesOperator {
    /// The input of the edge for its connections, and its selectors. `None` if it binds nothing, or has no certificate.
    pub(crate) fn compile(&self, head: &Head) -> Option<CompiledOperator> {
        let binding = self.active_binding()?;
        binding.certificate.as_ref()?;
        let operator = culvert_edge_config::Operator {
            id: head.id.clone(),
            account: head.account.as_str().into(),
            key: public_key(&binding.csr).ok()?.0.to_vec(),
        };
        Some(CompiledOperator {
            operator,
            selectors: Selectors::of(Some(binding)),
            owner_id: self.principal_id.clone(),
        })
    }
}

/// A Kubernetes operator for the edge. It may connect while its owner is active.
#[derive(Debug)]
pub(crate) struct CompiledOperator {
    pub(crate) operator: culvert_edge_config::Operator,
    pub(crate) selectors: Selectors,
    /// Owner of the key that created it.
    pub owner_id: String,
}

/// The public key of a certificate signing request with a valid signature.
fn public_key(csr: &str) -> Result<P256Key, Refusal> {
    let bad = |why: &str| {
        Refusal::new(
            code::CSR_INVALID,
            format!("The certificate signing request is invalid: {why}."),
        )
    };
    if csr.len() > CSR_BYTES_MAX {
        return Err(bad("it is longer than 16 KiB"));
    }
    let (_, pem) =
        x509_parser::pem::parse_x509_pem(csr.as_bytes()).map_err(|_| bad("it is not PEM"))?;
    let (rest, request) = X509CertificationRequest::from_der(&pem.contents)
        .map_err(|_| bad("it is not a PKCS #10 request"))?;
    // Some tools write `NEW CERTIFICATE REQUEST` (RFC 7468 7).
    if !rest.is_empty() || !pem.label.ends_with("CERTIFICATE REQUEST") {
        return Err(bad("it is not a PKCS #10 request"));
    }
    let info = &request.certification_request_info;
    let algorithm = &info.subject_pki.algorithm;
    let curve = algorithm
        .parameters
        .as_ref()
        .and_then(|curve| curve.as_oid().ok());
    let is_p256 = algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY && curve == Some(OID_EC_P256);
    let point: Option<[u8; P256_POINT_BYTES]> = info
        .subject_pki
        .subject_public_key
        .data
        .as_ref()
        .try_into()
        .ok();
    // 4 begins an uncompressed point.
    let point = point
        .filter(|point| is_p256 && point[0] == 4)
        .ok_or_else(|| bad("its key must be ECDSA P-256"))?;
    // The requester chooses the hash; the signature proves that the key's owner made the request.
    let signed_with = [
        (OID_SIG_ECDSA_WITH_SHA256, &ECDSA_P256_SHA256_ASN1),
        (OID_SIG_ECDSA_WITH_SHA384, &ECDSA_P256_SHA384_ASN1),
        (OID_SIG_ECDSA_WITH_SHA512, &ECDSA_P256_SHA512_ASN1),
    ]
    .into_iter()
    .find_map(|(oid, with)| (request.signature_algorithm.algorithm == oid).then_some(with))
    .ok_or_else(|| bad("it must be signed with ECDSA"))?;
    UnparsedPublicKey::new(signed_with, point)
        .verify(info.raw, &request.signature_value.data)
        .map_err(|_| bad("its signature is invalid"))?;
    Ok(P256Key(point))
}

fn endpoints_schema(generator: &mut SchemaGenerator) -> schemars::Schema {
    list_schema::<Endpoint>(generator)
}

fn run_list_bound_endpoints(endpoints: &EndpointConfig, call: Call) -> Running<'_> {
    let kernel = &*endpoints.kernel;
    Box::pin(async move {
        let cx = kernel.cx(&call.caller, &call.base);
        let mut listed = Listed {
            uri: String::new(),
            takes_filter: false,
            arguments: &[],
            refs_to: None,
            having: None,
        };
        let Some(document) = service::named(&cx, &TYPE, &call).await? else {
            // An invalid query is refused before an absent operator is.
            list::check_query(&endpoint::TYPE, &call.query, &listed)?;
            return Err(Refusal::not_found().into());
        };
        let operator: KubernetesOperator = stored::read(&document)?;
        let selectors = Selectors::of(operator.active_binding());
        let having = |endpoint: &Value| {
            EndpointFacts::of(endpoint).is_some_and(|facts| selectors.select(&facts))
        };
        listed.uri = format!(
            "{}/{}/{}/bound_endpoints",
            cx.base,
            KubernetesOperator::COLLECTION,
            document.head.id
        );
        listed.having = Some(&having);
        list::list_of(&cx, &endpoint::TYPE, &call.query, listed).await
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{
        CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
    };

    use super::*;

    fn csr(of: &'static rcgen::SignatureAlgorithm) -> String {
        let key = KeyPair::generate_for(of).unwrap();
        let params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.serialize_request(&key).unwrap().pem().unwrap()
    }

    /// A P-256 request signed with SHA-512, as operators create them.
    const SHA512: &str = include_str!("sha512.csr.pem");

    #[test]
    fn signing_requests_are_parsed_and_verified() {
        assert!(public_key(&csr(&PKCS_ECDSA_P256_SHA256)).is_ok());
        assert!(public_key(SHA512).is_ok());
        let forged = {
            let mut der = x509_parser::pem::parse_x509_pem(SHA512.as_bytes())
                .unwrap()
                .1
                .contents;
            let last = der.len() - 1;
            der[last] ^= 1;
            use base64::Engine;
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            format!(
                "-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n"
            )
        };
        for bad in [
            "x".to_owned(),
            "x".repeat(CSR_BYTES_MAX + 1),
            forged,
            csr(&PKCS_ECDSA_P384_SHA384),
            csr(&PKCS_ED25519),
        ] {
            let refused = public_key(&bad).err().and_then(|refusal| refusal.code);
            assert_eq!(refused, Some(code::CSR_INVALID), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,200}") {
            drop(public_key(&text));
            drop(check_ingress(&text));
            let pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n");
            drop(public_key(&pem));
        }
    }
}

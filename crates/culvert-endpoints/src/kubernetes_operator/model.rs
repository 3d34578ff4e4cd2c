//! Stored form and view of the Kubernetes operator.

use culvert_base::{Bounded, Description, Metadata, Timestamp};
use culvert_certificates::authority::ClientCertificate;
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Reference, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, Key};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The validity that a missing certificate shows.
const NO_TIME: &str = "0001-01-01T00:00:00Z";
/// The feature without which an operator binds no endpoints.
pub(crate) const BINDINGS: &str = "bindings";
pub(crate) const FEATURES: [&str; 3] = [BINDINGS, "gateway", "ingress"];
/// The field of the operator's metadata that holds the UID of its namespace.
pub(crate) const UID_IN_METADATA: &str = "namespace.uid";

/// At most 255 bytes.
pub type Text = Bounded<255>;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct KubernetesOperator {
    pub format: Format<1>,
    pub description: Description,
    pub metadata: Metadata,
    pub(crate) enabled_features: Vec<String>,
    pub region: Text,
    pub(crate) deployment: Deployment,
    pub binding: Option<Binding>,
    /// Owner of the key that created it.
    pub principal_id: String,
}

/// Deployment in the cluster.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub(crate) struct Deployment {
    #[schemars(with = "String", length(max = 255))]
    pub(crate) name: Text,
    #[schemars(with = "String", length(max = 255))]
    pub(crate) namespace: Text,
    #[schemars(with = "String", length(max = 255))]
    pub(crate) version: Text,
    #[schemars(with = "String", length(max = 255))]
    pub(crate) cluster_name: Text,
}

/// How an operator connects to the edge.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Binding {
    pub(crate) endpoint_selectors: Vec<String>,
    /// `host:port`; empty for the installation's.
    pub(crate) ingress_endpoint: String,
    /// The certificate signing request of the current certificate.
    pub(crate) csr: String,
    /// The certificate that it connects with, once it has one.
    pub certificate: Option<ClientCertificate>,
}

/// A Kubernetes operator as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "KubernetesOperator")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) updated_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    /// Owner of the API key that created the object.
    pub(crate) principal: Reference<'a>,
    #[schemars(extend("items" = {"type": "string", "enum": FEATURES}))]
    pub(crate) enabled_features: &'a [String],
    pub(crate) region: &'a str,
    pub(crate) deployment: &'a Deployment,
    pub(crate) binding: Option<BindingView<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct BindingView<'a> {
    pub(crate) endpoint_selectors: &'a [String],
    pub(crate) cert: CertificateView<'a>,
    /// Address that operators dial; the installation's if the operator has no own.
    pub(crate) ingress_endpoint: &'a str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct CertificateView<'a> {
    /// PEM; empty without a certificate signing request.
    pub(crate) cert: &'a str,
    #[schemars(extend("format" = "date-time"))]
    pub(crate) not_before: String,
    #[schemars(extend("format" = "date-time"))]
    pub(crate) not_after: String,
}

impl Model for KubernetesOperator {
    const NAME: &'static str = "kubernetes_operator";
    const COLLECTION: &'static str = "kubernetes_operators";
    const LIST_FIELD: &'static str = "operators";
    const ID_PREFIX: &'static str = "k8sop";
    const RIGHTS: Rights = Rights::SHARED;
    const OWNED_BY: Option<&'static str> = Some("principal_id");
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            created_at: head.created_at,
            updated_at: head.updated_at,
            description: &self.description,
            metadata: &self.metadata,
            principal: Reference::to_owner(&self.principal_id),
            enabled_features: &self.enabled_features,
            region: &self.region,
            deployment: &self.deployment,
            binding: self.binding.as_ref().map(|binding| binding.view(base)),
        }
    }

    /// A restarting operator finds its own object by these keys, so they must be unique.
    fn links(&self, head: &Head) -> Links {
        let metadata: Option<Value> = serde_json::from_str(&self.metadata).ok();
        let uid = metadata
            .as_ref()
            .and_then(|metadata| metadata.get(UID_IN_METADATA)?.as_str());
        let of_deployment = uid.map(|uid| {
            let Deployment {
                name, namespace, ..
            } = &self.deployment;
            let place = json!([head.account, **name, **namespace, uid]);
            Key::new("deployment", place.to_string())
        });
        Links {
            keys: of_deployment.into_iter().collect(),
            ..Links::default()
        }
    }
}

impl KubernetesOperator {
    /// Its binding, unless it has switched bindings off.
    pub(crate) fn active_binding(&self) -> Option<&Binding> {
        let is_on = self.enabled_features.iter().any(|name| name == BINDINGS);
        self.binding.as_ref().filter(|_| is_on)
    }
}

impl Binding {
    pub(crate) fn view<'a>(&'a self, base: Base<'a>) -> BindingView<'a> {
        let certificate = self.certificate.as_ref();
        let time = |of: fn(&ClientCertificate) -> Timestamp| {
            certificate.map_or_else(|| NO_TIME.to_owned(), |one| of(one).to_string())
        };
        BindingView {
            endpoint_selectors: &self.endpoint_selectors,
            cert: CertificateView {
                cert: certificate.map_or("", |certificate| &certificate.pem),
                not_before: time(|certificate| certificate.not_before),
                not_after: time(|certificate| certificate.not_after),
            },
            ingress_endpoint: match self.ingress_endpoint.as_str() {
                "" => base.kubernetes_ingress,
                own => own,
            },
        }
    }
}

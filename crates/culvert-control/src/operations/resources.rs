//! The table of resources. Operations, OpenAPI, audit kinds and coverage tests iterate over it.
//!
//! A resource stands in the crate of its subject, with a file `model` for its stored form and view.

use culvert_agents::ingress::model::AgentIngress;
use culvert_certificates::management::ManagedType;
use culvert_endpoints::reserved_domain::model::ReservedDomain;
use culvert_resources::resource::ResourceType;

/// Every resource, by name.
pub(crate) static ALL: &[&ResourceType] = &[
    &culvert_agents::ingress::TYPE,
    &culvert_event_config::alert::TYPE,
    &culvert_event_config::alert::rule::TYPE,
    &culvert_identity::api_key::TYPE,
    &culvert_identity::application::session::TYPE,
    &culvert_identity::application::user::TYPE,
    &crate::audit_hold::TYPE,
    &culvert_identity::bot_user::TYPE,
    &culvert_certificates::certificate_authority::TYPE,
    &culvert_endpoints::endpoint::TYPE,
    &culvert_event_config::destination::TYPE,
    &culvert_event_config::subscription::TYPE,
    &crate::grant::TYPE,
    &culvert_access::ip::policy::TYPE,
    &culvert_access::ip::policy_rule::TYPE,
    &culvert_access::ip::restriction::TYPE,
    &culvert_endpoints::kubernetes_operator::TYPE,
    &culvert_endpoints::reserved_addr::TYPE,
    &culvert_endpoints::reserved_domain::TYPE,
    &culvert_identity::bot_user::service_user::TYPE,
    &culvert_certificates::ssh::certificate_authority::TYPE,
    &culvert_certificates::ssh::host_certificate::TYPE,
    &culvert_certificates::ssh::public_key::TYPE,
    &culvert_certificates::ssh::user_certificate::TYPE,
    &culvert_certificates::tls_certificate::TYPE,
    &culvert_agents::tunnel::TYPE,
    &culvert_identity::credential::TYPE,
    &culvert_agents::session::TYPE,
    &culvert_identity::user::TYPE,
    &culvert_endpoints::vault::TYPE,
    &culvert_endpoints::vault::secret::TYPE,
];

/// The resources whose certificates can be managed.
pub(crate) static MANAGED: [ManagedType; 2] = [
    ManagedType::of::<ReservedDomain>(&culvert_endpoints::reserved_domain::TYPE),
    ManagedType::of::<AgentIngress>(&culvert_agents::ingress::TYPE),
];

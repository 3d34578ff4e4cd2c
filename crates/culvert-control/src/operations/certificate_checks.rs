//! The checks of certificates: for each resource whose certificates can be managed. The subject of certificates runs them,
//! and its resources are of others.

use culvert_agents::ingress;
use culvert_agents::ingress::model::AgentIngress;
use culvert_certificates::CertificateManager;
use culvert_certificates::management::check::{check_operation, run_check};
use culvert_endpoints::reserved_domain;
use culvert_endpoints::reserved_domain::model::ReservedDomain;
use culvert_resources::operation::{Call, Operation};
use culvert_resources::resource::operations::extras_of;
use culvert_resources::resource::{Extra, Running};

const OF_DOMAINS: &[Extra<CertificateManager>] = &[check_operation(check_domain)];
const OF_INGRESSES: &[Extra<CertificateManager>] = &[check_operation(check_ingress)];

pub(crate) fn operations() -> impl Iterator<Item = Operation<CertificateManager>> {
    let of_domains = extras_of(&reserved_domain::TYPE, OF_DOMAINS);
    of_domains.chain(extras_of(&ingress::TYPE, OF_INGRESSES))
}

fn check_domain(manager: &CertificateManager, call: Call) -> Running<'_> {
    Box::pin(run_check::<ReservedDomain>(
        manager,
        &reserved_domain::TYPE,
        call,
    ))
}

fn check_ingress(manager: &CertificateManager, call: Call) -> Running<'_> {
    Box::pin(run_check::<AgentIngress>(manager, &ingress::TYPE, call))
}

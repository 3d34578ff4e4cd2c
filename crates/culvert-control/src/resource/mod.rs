//! Resources: the objects of the management API.
//!
//! A resource consists of a file with its input and rules, two lines here, and a file in [`model`] with its
//! stored form and view. Operations, OpenAPI, audit kinds and coverage tests iterate over [`ALL`].

pub(crate) mod agent_ingress;
pub(crate) mod api_key;
pub(crate) mod application_session;
pub(crate) mod application_user;
pub(crate) mod bot_user;
pub(crate) mod certificate_authority;
pub(crate) mod endpoint;
pub(crate) mod event_destination;
pub(crate) mod event_subscription;
pub(crate) mod grant;
pub(crate) mod ip_policy;
pub(crate) mod ip_policy_rule;
pub(crate) mod ip_restriction;
pub(crate) mod ip_rules;
pub(crate) mod kubernetes_operator;
pub(crate) mod model;
pub(crate) mod reserved_addr;
pub(crate) mod reserved_domain;
pub(crate) mod resource_type;
pub(crate) mod row;
pub(crate) mod service_user;
pub(crate) mod ssh_certificate_authority;
pub(crate) mod ssh_host_certificate;
pub(crate) mod ssh_public_key;
pub(crate) mod ssh_user_certificate;
pub(crate) mod tls_certificate;
pub(crate) mod tunnel;
pub(crate) mod tunnel_credential;
pub(crate) mod tunnel_session;
pub(crate) mod user;
pub(crate) mod vault;
pub(crate) mod vault_secret;

use crate::resource::resource_type::ResourceType;

/// Every resource.
pub(crate) static ALL: &[&ResourceType] = &[
    &agent_ingress::TYPE,
    &api_key::TYPE,
    &application_session::TYPE,
    &application_user::TYPE,
    &bot_user::TYPE,
    &certificate_authority::TYPE,
    &endpoint::TYPE,
    &event_destination::TYPE,
    &event_subscription::TYPE,
    &grant::TYPE,
    &ip_policy::TYPE,
    &ip_policy_rule::TYPE,
    &ip_restriction::TYPE,
    &kubernetes_operator::TYPE,
    &reserved_addr::TYPE,
    &reserved_domain::TYPE,
    &service_user::TYPE,
    &ssh_certificate_authority::TYPE,
    &ssh_host_certificate::TYPE,
    &ssh_public_key::TYPE,
    &ssh_user_certificate::TYPE,
    &tls_certificate::TYPE,
    &tunnel::TYPE,
    &tunnel_credential::TYPE,
    &tunnel_session::TYPE,
    &user::TYPE,
    &vault::TYPE,
    &vault_secret::TYPE,
];

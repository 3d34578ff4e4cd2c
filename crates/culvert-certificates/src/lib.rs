//! Certificates: the installation's authority, those of domains and CAs, and those of SSH.
//!
//! [`CertificateManager`] issues the installation's own certificates ([`authority`]) and obtains those of managed names
//! ([`acme`]) through the port [`Issuer`](ports::Issuer): this crate has no network client. What can have a managed
//! certificate implements [`Managed`](management::Managed) and is in the table that the manager is made with, because
//! domains and ingresses are resources of later subjects.

pub mod acme;
pub mod authority;
pub mod certificate;
pub mod certificate_authority;
pub mod expiry;
pub mod management;
pub mod own_certificate;
pub mod ports;
pub mod ssh;
mod subject;
pub mod tls_certificate;

pub use crate::subject::CertificateManager;

use culvert_resources::operation::Operation;
use culvert_resources::resource::operations::of_resource;

/// The operations of the subject.
pub fn operations() -> Vec<Operation<CertificateManager>> {
    let of_resources = [
        of_resource(&certificate_authority::TYPE, &[]),
        of_resource(&ssh::certificate_authority::TYPE, &[]),
        of_resource(&ssh::host_certificate::TYPE, &[]),
        of_resource(&ssh::public_key::TYPE, &[]),
        of_resource(&ssh::user_certificate::TYPE, &[]),
        of_resource(&tls_certificate::TYPE, &[]),
    ];
    of_resources.into_iter().flatten().collect()
}

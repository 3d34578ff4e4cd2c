//! Certificates that the operator gives as files, and those that certificate authorities issue.

pub(crate) mod certificate_file;
pub(crate) mod issuer;

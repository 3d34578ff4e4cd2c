//! The installation's own certificates.

use std::time::Duration;

use culvert_certificates::authority::Authority;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::*;

/// The parents of the hosts that have one.
fn parents(hosts: &[&str]) -> impl Iterator<Item = String> {
    let parents = hosts.iter().filter_map(|host| host.split_once('.'));
    parents.map(|(_, parent)| parent.to_owned())
}

#[tokio::test]
async fn certificates_are_signed_by_one_authority_and_renewed_in_time() {
    let rig = Rig::start().await;
    let ca = CertificateDer::from_pem_slice(rig.control.certificates.ca_pem().as_bytes()).unwrap();
    let (_, ca) = X509Certificate::from_der(&ca).unwrap();
    assert!(ca.is_ca());
    let mut authority = rig.control.certificates.authority.lock().await;
    let entropy = SeededEntropy::new(2);
    let hosts = [
        "a.culvert.localhost",
        "x.a.culvert.localhost",
        "*.b.culvert.localhost",
    ];
    let now = rig.clock.now();
    let made = authority
        .certificates_below(parents(&hosts), now, &entropy)
        .unwrap();
    let names: Vec<Vec<String>> = made
        .iter()
        .map(|(names, _)| names.iter().map(ToString::to_string).collect())
        .collect();
    assert_eq!(
        names,
        [
            vec!["*.a.culvert.localhost"],
            vec!["*.b.culvert.localhost"],
            vec!["*.culvert.localhost", "culvert.localhost"],
        ]
    );
    for (_, key) in &made {
        let (_, leaf) = X509Certificate::from_der(&key.cert[0]).unwrap();
        leaf.verify_signature(Some(ca.public_key())).unwrap();
        assert!(!leaf.is_ca());
        let seconds = now.unix_seconds();
        assert!(leaf.validity().not_before.timestamp() < seconds);
        assert!(leaf.validity().not_after.timestamp() > seconds + 89 * 86_400);
    }
    let same = authority
        .certificates_below(parents(&hosts), now, &entropy)
        .unwrap();
    assert!(
        made.iter()
            .zip(&same)
            .all(|((_, a), (_, b))| Arc::ptr_eq(a, b))
    );
    let later = now.plus(Duration::from_secs(61 * 86_400));
    let renewed = authority
        .certificates_below(parents(&hosts), later, &entropy)
        .unwrap();
    assert!(
        made.iter()
            .zip(&renewed)
            .all(|((_, a), (_, b))| !Arc::ptr_eq(a, b))
    );
    assert_eq!(
        authority
            .certificates_below(parents(&[]), later, &entropy)
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn the_authority_is_stored_encrypted_and_reused() {
    let rig = Rig::start().await;
    let documents = rig.store.all("authority").await.unwrap();
    assert_eq!(documents.len(), 1);
    assert!(!documents[0].body.contains("PRIVATE KEY"));
    let again = Authority::open(
        &rig.store,
        &rig.control.kernel.seal,
        &*rig.clock,
        &SeededEntropy::new(9),
        HostName::parse("culvert.localhost").unwrap(),
    )
    .await
    .unwrap();
    assert_eq!(again.ca_pem(), rig.control.certificates.ca_pem());
    let other = Seal::new(&Secret::new("another master".into()));
    let domain = HostName::parse("culvert.localhost").unwrap();
    let entropy = SeededEntropy::new(9);
    let opened = Authority::open(&rig.store, &other, &*rig.clock, &entropy, domain);
    assert!(opened.await.unwrap_err().chain().contains("master key"));
}

//! Renewal information (RFC 9773): an authority suggests when to renew a certificate, earlier than usual for example if
//! it will revoke it.

use std::collections::HashMap;
use std::time::Duration;

use culvert_base::{Fault, Timestamp};
use culvert_store::{Changes, CommitError};
use culvert_tls::acme::RenewalWindow;
use tracing::{debug, info};

use crate::CertificateManager;
use crate::acme::halt::Halt;
use crate::acme::holder::{self, Holder};
use crate::acme::order::{self, NOTHING};
use crate::ports::{Certificates, Issuer};

/// Default and bounds of the interval between two requests for one certificate.
const ASK_AFTER: Duration = Duration::from_secs(6 * 3600);
const ASK_AFTER_MIN: Duration = Duration::from_secs(60);
const ASK_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);
/// Time between two scans, and the limit of requests in one.
const SCAN_EVERY: Duration = Duration::from_secs(300);
const ASKED_AT_ONCE: usize = 16;
/// Time limit of the requests of a scan.
const SCAN_WITHIN: Duration = Duration::from_secs(20);

/// The time of the next request for each certificate.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    next_scan: Option<Timestamp>,
    /// By the ID of the domain; only domains that exist.
    next: HashMap<String, Timestamp>,
}

impl CertificateManager {
    /// Requests renewal information for the certificates that are due for it, and moves their renewals.
    pub(super) async fn ask_about_renewals(
        &self,
        certificates: &Certificates,
        renewals: &mut Renewals,
    ) {
        let now = self.kernel.clock.now();
        let Some(issuer) = certificates.issuer.as_deref() else {
            return;
        };
        if renewals.next_scan.is_some_and(|at| at > now) {
            return;
        }
        renewals.next_scan = Some(now.plus(SCAN_EVERY));
        let asked = self.ask_those_due(issuer, renewals, now);
        match tokio::time::timeout(SCAN_WITHIN, asked).await {
            Ok(Ok(())) | Err(_) => {}
            // The usual time of renewal stays.
            Ok(Err(Halt::Failed { failure, .. })) => {
                debug!(%failure, "asking for renewal information failed");
            }
            Ok(Err(Halt::Faulted(fault))) => {
                debug!(cause = %fault.chain(), "asking for renewal information failed");
            }
            Ok(Err(Halt::Overtaken)) => {}
        }
    }

    async fn ask_those_due(
        &self,
        issuer: &dyn Issuer,
        renewals: &mut Renewals,
        now: Timestamp,
    ) -> Result<(), Halt> {
        let mut known = HashMap::new();
        let mut due = Vec::new();
        for kind in holder::kinds(self) {
            for document in self.kernel.store.all(kind).await? {
                // The scan for due work reports documents that cannot be read.
                let Ok(domain) = Holder::read(self, &document) else {
                    continue;
                };
                let id = document.head.id;
                let has_certificate = domain
                    .management()
                    .is_some_and(|one| one.job.is_none() && one.renews_at.is_some());
                if !has_certificate {
                    continue;
                }
                let at = renewals.next.get(&id).copied().unwrap_or(now);
                if at <= now && due.len() < ASKED_AT_ONCE {
                    due.push(id.clone());
                }
                known.insert(id, at);
            }
        }
        for id in &due {
            known.insert(id.clone(), now.plus(ASK_AFTER));
        }
        renewals.next = known;
        if due.is_empty() {
            return Ok(());
        }
        let key = order::account_key(self, issuer).await?;
        for id in due {
            let Some((_, domain)) = Holder::managed(self, &id).await? else {
                continue;
            };
            let Some(chain) = domain.chain_pem(self).await? else {
                continue;
            };
            let Some(window) = issuer.renewal_window(&key, &chain).await? else {
                continue;
            };
            let after = window.ask_after.clamp(ASK_AFTER_MIN, ASK_AFTER_MAX);
            renewals.next.insert(id.clone(), now.plus(after));
            self.move_renewal(&id, &chain, window).await?;
        }
        Ok(())
    }

    /// Renews a certificate at a random time in the window, if its renewal is outside of it.
    async fn move_renewal(
        &self,
        id: &str,
        chain: &str,
        window: RenewalWindow,
    ) -> Result<(), Fault> {
        let moving = self.move_renewal_locked(id, chain, window);
        self.kernel.locks.with(&[id], moving).await
    }

    async fn move_renewal_locked(
        &self,
        id: &str,
        chain: &str,
        window: RenewalWindow,
    ) -> Result<(), Fault> {
        let Some((mut document, mut domain)) = Holder::managed(self, id).await? else {
            return Ok(());
        };
        // Another certificate was installed meanwhile.
        if domain.chain_pem(self).await?.as_deref() != Some(chain) {
            return Ok(());
        }
        let [share] = self.kernel.entropy.bytes();
        let Some(management) = domain.management_mut() else {
            return Ok(());
        };
        let Some(at) = moved(management.renews_at, window, share) else {
            return Ok(());
        };
        management.renews_at = Some(at);
        domain.write(&mut document)?;
        match self
            .kernel
            .store
            .commit(Changes::replace(document, NOTHING))
            .await
        {
            Ok(_) => info!(
                domain.id = id,
                renews_at = %at,
                "the certificate authority suggests another time of renewal"
            ),
            // The next scan reads it again.
            Err(CommitError::Stale) => {}
            Err(error) => return Err(Fault::new("moving the renewal of a certificate", error)),
        }
        Ok(())
    }
}

/// The new time of renewal; `None` if the current one is in the window, or the window is not valid.
fn moved(renews_at: Option<Timestamp>, window: RenewalWindow, share: u8) -> Option<Timestamp> {
    let RenewalWindow { start, end, .. } = window;
    let is_inside = renews_at.is_some_and(|at| at >= start && at <= end);
    if is_inside || end <= start {
        return None;
    }
    let into = end.since(start) / 255 * u32::from(share);
    Some(start.plus(into).whole_seconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_is_scheduled_within_the_suggested_window() {
        let at = Timestamp::from_unix_seconds;
        let window = |start, end| RenewalWindow {
            start: at(start),
            end: at(end),
            ask_after: Duration::ZERO,
        };
        for (renews_at, start, end, share, expected) in [
            (Some(500), 100, 200, 0, Some(100)),
            (Some(50), 100, 200, 0, Some(100)),
            (Some(500), 0, 2550, 255, None),
            (Some(5000), 0, 2550, 255, Some(2550)),
            (Some(150), 100, 200, 9, None),
            (None, 100, 355, 1, Some(101)),
            (Some(150), 300, 200, 0, None),
            (Some(150), 300, 300, 0, None),
        ] {
            let found = moved(renews_at.map(at), window(start, end), share);
            assert_eq!(found, expected.map(at), "{renews_at:?} {start} {end}");
        }
    }
}

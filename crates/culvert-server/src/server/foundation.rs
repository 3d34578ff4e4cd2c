//! What the parts of a server share: the opened installation, and the planes. All of it is made before any part starts.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use culvert_audit_tree::witnesses::{Quorum, WitnessClient};
use culvert_audit_tree::{AuditTreeKeeper, LogIdentity};
use culvert_command::with_causes;
use culvert_control::{AlertEvaluator, Control, ServerLog, ServerWatch, first_account};
use culvert_delivery::Delivery;
use culvert_edge::Edge;
use culvert_installation::audit_key::{self, AuditKey};
use culvert_installation::config::Role;
use culvert_installation::keys;
use culvert_login::JournalEntry;
use culvert_policy::{IpDatabases, SharedCounts};
use culvert_tunnel::server::Bindings;
use tokio::sync::{Notify, mpsc};

use super::opened::{Opened, Secrets};
use super::planes::{control, delivery, edge, nodes};
use super::tasks::Supervision;
use crate::certificates::certificate_file::{self, CertificateFiles};
use crate::nodes::cluster::Membership;

/// What the parts of a server share.
pub(super) struct Foundation {
    pub(super) opened: Opened,
    pub(super) delivery: Arc<Delivery>,
    /// The connections of agents, if this process accepts them.
    pub(super) bindings: Option<Arc<Bindings>>,
    pub(super) membership: Membership,
    pub(super) ip_data: IpDatabases,
    /// The counts of rate limits.
    pub(super) counts: SharedCounts,
    pub(super) edge: Option<Edge>,
    /// The edge as control sees it.
    pub(super) published: Option<Arc<edge::Published>>,
    pub(super) control: Arc<Control>,
    /// Reports what this process does.
    pub(super) watch: Arc<ServerWatch>,
    /// Evaluates alert rules.
    pub(super) alerts: Arc<AlertEvaluator>,
    /// Sign-ins that control has to keep.
    pub(super) login_entries: Option<mpsc::Receiver<JournalEntry>>,
    pub(super) certificates: CertificateFiles,
    /// The file with the installation's certificate authority.
    pub(super) ca_file: PathBuf,
    pub(super) supervision: Supervision,
    pub(super) audit_tree: Arc<AuditTreeKeeper>,
    pub(super) witnesses: Vec<Arc<WitnessClient>>,
}

impl Foundation {
    /// Makes the planes of an opened installation. The edge binds its listeners, and accepts no connection yet.
    pub(super) async fn new(opened: Opened, secrets: Secrets, audit_key: AuditKey) -> Result<Self> {
        let settings = &opened.settings;
        let delivery = delivery::plane(&opened, &secrets.pepper)?;
        let bindings = opened.takes_agents().then(Arc::<Bindings>::default);
        let membership = nodes::membership(&opened, &secrets.seal).await?;
        let ip_data = edge::ip_data(settings)?;
        let counts = SharedCounts::new(opened.shared_clock.clone(), &*opened.entropy);
        let dial = nodes::dial(bindings.as_ref(), &membership);
        let edge = edge::plane(&opened, &delivery, dial, &ip_data, &counts).await?;
        let published = edge
            .clone()
            .map(|edge| Arc::new(edge::Published::new(edge)));
        let certificates = certificate_file::open(settings)?;
        let around = control::Around {
            delivery: &delivery,
            edge: edge.as_ref(),
            published: published.as_ref(),
            ip_data: &ip_data,
            bindings: bindings.as_ref(),
            membership: &membership,
        };
        let (control, login_entries) = control::plane(&opened, secrets, around).await?;
        let watch = control::watch(&opened, &control);
        let alerts = control::alerts(&opened, &control);
        let ca_file = settings.data_dir.join("ca.pem");
        keys::write_public(&ca_file, control.certificates.ca_pem())?;
        let supervision = Supervision::new(opened.supervisor.clone(), &opened.store, &opened.queue);
        let identity = Arc::new(log_identity(&opened, audit_key).await?);
        let witnesses = witnesses(&opened, &delivery, &identity);
        let audit_tree = audit_tree(&opened, watch.log(), witnesses.clone(), identity);
        let audit_tree = Arc::new(audit_tree);
        Ok(Self {
            audit_tree,
            witnesses,
            delivery,
            bindings,
            membership,
            ip_data,
            counts,
            edge,
            published,
            control,
            watch,
            alerts,
            login_entries: Some(login_entries),
            certificates,
            ca_file,
            supervision,
            opened,
        })
    }

    /// Whether this edge and those of other nodes tell each other the counts of rate limits.
    pub(super) fn shares_counts(&self) -> bool {
        self.opened.has(Role::Edge) && self.opened.is_shared()
    }
}

fn witnesses(
    opened: &Opened,
    delivery: &Delivery,
    identity: &Arc<LogIdentity>,
) -> Vec<Arc<WitnessClient>> {
    let audit = &opened.settings.audit;
    let quorum = Arc::new(Quorum {
        keys: audit.witnesses.iter().map(|it| it.key.clone()).collect(),
        n: audit.quorum(),
    });
    let witnesses = audit.witnesses.iter().map(|witness| {
        let (store, net) = (opened.store.clone(), delivery.net().clone());
        let shared = (identity.clone(), quorum.clone());
        let client = WitnessClient::new(store, net, witness.clone(), shared);
        Arc::new(client)
    });
    witnesses.collect()
}

async fn log_identity(opened: &Opened, key: AuditKey) -> Result<LogIdentity> {
    let account = first_account(&opened.store).await.map_err(with_causes)?;
    let origin = audit_key::origin(&opened.base_url, account.as_deref().unwrap_or_default());
    let settings = &opened.settings;
    let known = key.load().ok().flatten();
    let log = known.map_or_else(|| origin.clone(), |key| key.verifier().name().to_owned());
    let mut names = settings.audit.witnesses.iter().map(|it| it.key.name());
    // Other tools could take its signatures for those of the log.
    if names.any(|name| name == log) {
        bail!("a witness of `audit.witnesses` has the name of the audit log, `{log}`");
    }
    Ok(LogIdentity {
        node: settings.node(),
        key,
        head_file: settings.audit_head_file(),
        origin,
        refused: Notify::default(),
    })
}

fn audit_tree(
    opened: &Opened,
    server_log: &ServerLog,
    witnesses: Vec<Arc<WitnessClient>>,
    identity: Arc<LogIdentity>,
) -> AuditTreeKeeper {
    AuditTreeKeeper::new(
        opened.store.clone(),
        opened.shared_clock.clone(),
        opened.entropy.clone(),
        (server_log.clone(), witnesses, identity),
    )
}

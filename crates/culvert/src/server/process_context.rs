//! What every command on the database shares: the master key, the database and the clocks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use culvert_base::net::HostName;
use culvert_base::{Clock, Entropy, Fault, IdMaker, OsEntropy, Secret, SteadyClock, SystemClock};
use culvert_control::{Bootstrap, Pepper, Reencrypted, Seal};
use culvert_store::{Queue, Revision, Store, StoreUrl};

use super::with_causes;
use crate::config::Settings;
use crate::data_dir_lock::DataDirLock;
use crate::installation;
use crate::keys::{self, MasterKey};

/// The key in the store for the mark of the master key, on which all nodes must agree.
pub(crate) const MASTER_KEY_MARK: &str = "master_key";
/// The key in the store for the encrypted pepper. It is absent while the pepper is derived from the current master
/// key.
const PEPPER: &str = "pepper";
/// Interval at which a server checks whether the master key was rotated, and how long a rotation waits for these
/// checks.
const KEY_LOOK_EVERY: Duration = Duration::from_secs(1);
const KEY_WAIT: Duration = Duration::from_secs(3);

/// The master key, the database and the clocks of a process.
#[derive(Debug)]
pub struct ProcessContext {
    /// Documents and the outbox.
    pub store: Store,
    /// Events that wait for delivery.
    pub queue: Queue,
    /// Computes digests of tokens.
    pub pepper: Pepper,
    pub(super) seal: Seal,
    pub(super) master: MasterKey,
    pub(super) clock: Arc<SteadyClock>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) ids: Arc<IdMaker>,
    pub(super) domain: HostName,
    pub(super) base_url: String,
    /// The lock of the data directory; `None` if a running server may have it.
    pub(super) lock: Option<DataDirLock>,
}

/// Whether other processes may use the data directory concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No, and a database that is away is waited for: for a server.
    Server,
    /// No: for a command that needs all servers stopped.
    Exclusive,
    /// Yes: for a command whose writes a running server supports.
    Shared,
}

impl ProcessContext {
    /// Opens the data directory or the database. Creates it if it does not exist.
    ///
    /// # Errors
    /// If another process has locked the data directory, the master key is missing or does not belong to the store,
    /// or the store cannot be opened.
    pub async fn open(settings: &Settings, access: Access) -> Result<Self> {
        let clock = Arc::new(SteadyClock::new(SystemClock.now()));
        let entropy: Arc<dyn Entropy> = Arc::new(OsEntropy);
        keys::make_data_dir(&settings.data_dir)?;
        let lock = match access {
            Access::Server | Access::Exclusive => {
                Some(DataDirLock::acquire(&settings.data_dir, &settings.node())?)
            }
            Access::Shared => None,
        };
        let key_file = settings.key_file();
        let found = keys::load(&key_file)?;
        installation::refuse_without_state(settings)?;
        let url = store_url(settings);
        let shared: Arc<dyn Clock> = clock.clone();
        let store = match access {
            Access::Server => open_when_reachable(&url, &shared).await,
            Access::Exclusive | Access::Shared => open_store(&url, &shared).await,
        }
        .map_err(|fault| match url {
            StoreUrl::Sqlite(_) => installation::of_file(fault),
            StoreUrl::Postgres(_) => with_causes(fault),
        })?;
        let master = match found {
            Some(master) => master,
            None => {
                refuse_without_key(&store, &key_file).await?;
                keys::make(&key_file, &*entropy)?
            }
        };
        installation::tell_of_missing_events(settings);
        let queue = installation::open_queue(settings, access, &shared).await?;
        installation::agree_on_id(settings, &store, &queue, &*entropy).await?;
        let agreed = agree_on_key(&store, &master).await?;
        let seal = Seal::new(&master.current).with_older(&master.older);
        let pepper = match store.meta_get(PEPPER).await.map_err(with_causes)? {
            Some(sealed) => Pepper::unsealed(&seal, &sealed).map_err(with_causes)?,
            None => Pepper::new(&agreed),
        };
        Ok(Self {
            store,
            queue,
            pepper,
            seal,
            master,
            clock,
            entropy,
            ids: Arc::default(),
            domain: HostName::parse(&settings.edge.domain).context("`edge.domain`")?,
            base_url: settings.base_url(),
            lock,
        })
    }

    /// Creates accounts and API keys without a running server.
    pub fn bootstrap(&self) -> Bootstrap<'_> {
        Bootstrap {
            ids: &self.ids,
            store: &self.store,
            clock: &*self.clock,
            entropy: &*self.entropy,
            pepper: &self.pepper,
            base: &self.base_url,
            domain: &self.domain,
        }
    }

    /// Rotates the master key: encrypts all secrets with a new key, after which the old one is rejected. An
    /// interrupted rotation leaves all secrets readable; running it again continues it. Returns the number of
    /// documents with secrets.
    ///
    /// The key file contains both keys from before the first document is changed until after the last.
    pub async fn rotate_master_key(&self, settings: &Settings) -> Result<Reencrypted> {
        let path = settings.key_file();
        let master = match &self.master.older {
            // A previous rotation was interrupted.
            Some(_) => self.master.clone(),
            None => self.master.clone().rotated(&*self.entropy),
        };
        master.write(&path)?;
        let seal = Seal::new(&master.current).with_older(&master.older);
        let pepper = self
            .pepper
            .sealed(&seal, &*self.entropy)
            .map_err(with_causes)?;
        self.store
            .meta_set(PEPPER, &pepper)
            .await
            .map_err(with_causes)?;
        // From now on, a process with only the old key does not start, and a running one stops.
        let mark = keys::mark_of(&master.current);
        self.store
            .meta_set(MASTER_KEY_MARK, &mark)
            .await
            .map_err(with_causes)?;
        // On SQLite, the lock of the data directory ensures that no server runs.
        if matches!(store_url(settings), StoreUrl::Postgres(_)) {
            tokio::time::sleep(KEY_WAIT).await;
        }
        let reencrypted = culvert_control::reencrypt(&self.store, &seal, &*self.entropy)
            .await
            .map_err(with_causes)?;
        let alone = MasterKey {
            older: None,
            ..master
        };
        alone.write(&path)?;
        Ok(reencrypted)
    }

    /// Closes the queue and the store.
    pub async fn close(self) {
        self.queue.close().await;
        self.store.close().await;
    }
}

async fn open_store(url: &StoreUrl, clock: &Arc<dyn Clock>) -> Result<Store, Fault> {
    Store::open(url, Arc::clone(clock), culvert_control::texts()).await
}

/// Opens a store. While its database is away, a standby, or has no free connection, tries again.
async fn open_when_reachable(url: &StoreUrl, clock: &Arc<dyn Clock>) -> Result<Store, Fault> {
    let mut n_failed: u32 = 0;
    loop {
        match open_store(url, clock).await {
            Err(fault) if fault.is_passing() => {
                if n_failed.is_multiple_of(LOGGED_EVERY) {
                    tracing::error!(cause = %fault.chain(), "waiting for the database");
                }
                n_failed += 1;
                tokio::time::sleep(OPENED_AGAIN_AFTER).await;
            }
            opened => return opened,
        }
    }
}

/// Pause before a database that is away is opened again.
const OPENED_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Attempts between two lines in the log.
const LOGGED_EVERY: u32 = 60;

/// The URL or path of the store.
pub fn store_url(settings: &Settings) -> StoreUrl {
    if settings.database_url.is_empty() {
        StoreUrl::Sqlite(settings.data_dir.join("state.db"))
    } else {
        StoreUrl::Postgres(settings.database_url.clone())
    }
}

/// Refuses to create a master key for a store that is already in use: its secrets are encrypted under the missing
/// key, and a new key cannot decrypt them.
async fn refuse_without_key(store: &Store, key_file: &Path) -> Result<()> {
    let is_marked = store.meta_get(MASTER_KEY_MARK).await.map_err(with_causes)?;
    if is_marked.is_none() && store.revision().await.map_err(with_causes)? == Revision::START {
        return Ok(());
    }
    bail!(
        "the master key `{}` is missing, and the stored secrets are encrypted with it; restore \
         the file from a backup, copy it from another node, or set its path with \
         `secrets.key_file` (no_master_key)",
        key_file.display()
    )
}

/// Returns the key that belongs to the database. A new database records the current key. A node without the right key
/// does not start, because it could decrypt no secrets and recognise no tokens.
async fn agree_on_key(store: &Store, master: &MasterKey) -> Result<Secret> {
    let Some(known) = store.meta_get(MASTER_KEY_MARK).await.map_err(with_causes)? else {
        let mark = keys::mark_of(&master.current);
        store
            .meta_set(MASTER_KEY_MARK, &mark)
            .await
            .map_err(with_causes)?;
        return Ok(master.current.clone());
    };
    match master.each().find(|key| keys::mark_of(key) == known) {
        Some(key) => Ok(key.clone()),
        None => bail!(
            "the master key does not match this database; copy `master.key` from another node, \
             or set its path with `secrets.key_file`"
        ),
    }
}

/// Completes when the database's secrets are encrypted under a key that this process does not have.
pub(super) async fn key_rotated(store: &Store, master: &MasterKey) {
    let marks: Vec<String> = master.each().map(keys::mark_of).collect();
    loop {
        tokio::time::sleep(KEY_LOOK_EVERY).await;
        // Other code handles an unreadable store.
        if let Ok(Some(mark)) = store.meta_get(MASTER_KEY_MARK).await
            && !marks.contains(&mark)
        {
            return;
        }
    }
}

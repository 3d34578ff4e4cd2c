//! What stands before anything runs: the master key, the database and the clock of this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use culvert_base::net::HostName;
use culvert_base::{Clock, Entropy, IdMaker, OsEntropy, Secret, SystemClock};
use culvert_control::{Bootstrap, Pepper, Reencrypted, Seal};
use culvert_store::{Queue, Store, StoreUrl};

use super::told;
use crate::config::Settings;
use crate::data_dir_lock::DataDirLock;
use crate::keys::{self, MasterKey};

/// What every node of an installation must agree on.
pub(crate) const MASTER_KEY_MARK: &str = "master_key";
/// The pepper, sealed; absent while the master key is the one it was made from.
const PEPPER: &str = "pepper";
/// How often a server looks whether the master key was rotated under it, and how long a rotation
/// waits for servers to have looked.
const KEY_LOOK_EVERY: Duration = Duration::from_secs(1);
const KEY_WAIT: Duration = Duration::from_secs(3);

/// What the master key, the database and the two clocks of a process are, before anything runs.
#[derive(Debug)]
pub struct Foundation {
    /// Documents and outbox.
    pub store: Store,
    /// Events on their way.
    pub queue: Queue,
    /// Digests of tokens.
    pub pepper: Pepper,
    pub(super) seal: Seal,
    pub(super) master: MasterKey,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) ids: Arc<IdMaker>,
    pub(super) domain: HostName,
    pub(super) base_url: String,
    /// Held as long as the data directory is in use; `None` beside a server that has it.
    pub(super) lock: Option<DataDirLock>,
}

/// Whether other processes may use the data directory at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No other process: a server, or a command that needs all servers stopped.
    Exclusive,
    /// A server may run: a command whose writes a running server accepts.
    Shared,
}

impl Foundation {
    /// Opens the data directory or the database, creating it if it is missing.
    ///
    /// # Errors
    /// Another process holds the data directory, the master key is missing or is not that of the
    /// store, or the store cannot be opened.
    pub async fn open(settings: &Settings, access: Access) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let entropy: Arc<dyn Entropy> = Arc::new(OsEntropy);
        keys::make_data_dir(&settings.data_dir)?;
        let lock = match access {
            Access::Exclusive => Some(DataDirLock::acquire(&settings.data_dir, &settings.node())?),
            Access::Shared => None,
        };
        let key_file = settings.key_file();
        let found = keys::load(&key_file)?;
        let url = store_url(settings);
        let store = Store::open(&url, clock.clone(), culvert_control::texts())
            .await
            .map_err(told)?;
        let master = match found {
            Some(master) => master,
            None => {
                refuse_without_key(&store, &key_file).await?;
                keys::make(&key_file, &*entropy)?
            }
        };
        let queue = Queue::open(&url, clock.clone()).await.map_err(told)?;
        let agreed = agree_on_key(&store, &master).await?;
        let seal = Seal::new(&master.current).with_older(&master.older);
        let pepper = match store.meta_get(PEPPER).await.map_err(told)? {
            Some(sealed) => Pepper::unsealed(&seal, &sealed).map_err(told)?,
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

    /// Makes accounts and keys without a running server.
    pub fn founder(&self) -> Bootstrap<'_> {
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

    /// Another master key: everything sealed is sealed anew under it, and the old one is refused from
    /// then on. Cut off at any moment it leaves everything readable; begun again it goes on. How many
    /// documents had secrets.
    ///
    /// The key file holds both keys from before the first document is touched until after the last.
    pub async fn rotate_master_key(&self, settings: &Settings) -> Result<Reencrypted> {
        let path = settings.key_file();
        let master = match &self.master.older {
            // A rotation that was cut off.
            Some(_) => self.master.clone(),
            None => self.master.clone().rotated(&*self.entropy),
        };
        master.write(&path)?;
        let seal = Seal::new(&master.current).with_older(&master.older);
        let pepper = self.pepper.sealed(&seal, &*self.entropy).map_err(told)?;
        self.store.meta_set(PEPPER, &pepper).await.map_err(told)?;
        // From here on nobody starts with the old key alone, and whoever runs with it stops.
        let mark = keys::mark_of(&master.current);
        self.store
            .meta_set(MASTER_KEY_MARK, &mark)
            .await
            .map_err(told)?;
        // On SQLite the lock of the data directory says that no server runs.
        if matches!(store_url(settings), StoreUrl::Postgres(_)) {
            tokio::time::sleep(KEY_WAIT).await;
        }
        let reencrypted = culvert_control::reencrypt(&self.store, &seal, &*self.entropy)
            .await
            .map_err(told)?;
        let alone = MasterKey {
            older: None,
            ..master
        };
        alone.write(&path)?;
        Ok(reencrypted)
    }

    /// Closes both.
    pub async fn close(self) {
        self.queue.close().await;
        self.store.close().await;
    }
}

/// Where the state is.
pub fn store_url(settings: &Settings) -> StoreUrl {
    if settings.database_url.is_empty() {
        StoreUrl::Sqlite(settings.data_dir.join("state.db"))
    } else {
        StoreUrl::Postgres(settings.database_url.clone())
    }
}

/// Refuses to create a master key for a store that is in use already: its secrets are sealed under the
/// key that is missing, and a new key opens none of them.
async fn refuse_without_key(store: &Store, key_file: &Path) -> Result<()> {
    let is_marked = store.meta_get(MASTER_KEY_MARK).await.map_err(told)?;
    if is_marked.is_none() && store.revision().await.map_err(told)? == 0 {
        return Ok(());
    }
    bail!(
        "the master key `{}` is missing, and the stored secrets are encrypted with it; restore \
         the file from a backup, copy it from another node, or set its path with \
         `secrets.key_file` (no_master_key)",
        key_file.display()
    )
}

/// A second node with another master key could read no secret of the first, and would recognise no
/// key: better that it does not start. The key that was agreed on.
async fn agree_on_key(store: &Store, master: &MasterKey) -> Result<Secret> {
    let Some(known) = store.meta_get(MASTER_KEY_MARK).await.map_err(told)? else {
        let mark = keys::mark_of(&master.current);
        store.meta_set(MASTER_KEY_MARK, &mark).await.map_err(told)?;
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

/// Completes when the database's secrets are sealed under a key that this process does not have.
pub(super) async fn key_rotated(store: &Store, master: &MasterKey) {
    let marks: Vec<String> = master.each().map(keys::mark_of).collect();
    loop {
        tokio::time::sleep(KEY_LOOK_EVERY).await;
        // A store that cannot be read is the business of others.
        if let Ok(Some(mark)) = store.meta_get(MASTER_KEY_MARK).await
            && !marks.contains(&mark)
        {
            return;
        }
    }
}

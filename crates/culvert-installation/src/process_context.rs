//! What every command on the database shares: the master key, the database and the clocks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use culvert_base::net::HostName;
use culvert_base::{
    Clock, Entropy, Fault, IdMaker, OsEntropy, Secret, SteadyClock, SystemClock, Timestamp,
};
use culvert_command::with_causes;
use culvert_resources::access::token::Form;
use culvert_resources::stored::lost_events::LostEvents;
use culvert_resources::stored::reencrypt::{Reencrypted, reencrypt};
use culvert_resources::stored::seal::{Pepper, Seal};
use culvert_store::{Queue, Revision, Store, StoreUrl, Texts};

use crate::config::Settings;
use crate::data_dir_lock::DataDirLock;
use crate::edge_copy::EdgeCopy;
use crate::keys::{self, MasterKey};
use crate::sqlite_files;

/// The key in the store for the mark of the master key, on which all nodes must agree.
pub const MASTER_KEY_MARK: &str = "master_key";
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
    /// Encrypts secrets at rest.
    pub seal: Seal,
    /// The master key of its file.
    pub master: MasterKey,
    /// The time of this process.
    pub clock: Arc<SteadyClock>,
    /// The random source.
    pub entropy: Arc<dyn Entropy>,
    /// Makes the IDs of objects.
    pub ids: Arc<IdMaker>,
    /// The base domain of the edge.
    pub domain: HostName,
    /// Base of `uri` fields in events.
    pub base_url: String,
    /// The form of new tokens.
    pub token_form: Form,
    /// The losses with files of events that were damaged, at this start or an earlier one, or missing.
    pub lost_events: Vec<LostEvents>,
    /// The lock of the data directory; `None` if a running server may have it.
    pub lock: Option<Arc<DataDirLock>>,
}

/// Whether other processes may use the data directory concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No: for a server.
    Server,
    /// No: for a command that needs all servers stopped.
    Exclusive,
    /// Yes: for a command whose writes a running server supports.
    Shared,
}

/// An installation whose data directory is locked, and whose database is not open yet.
#[derive(Debug)]
pub struct Unopened {
    settings: Settings,
    access: Access,
    url: StoreUrl,
    lock: Option<Arc<DataDirLock>>,
    master: Option<MasterKey>,
    /// The name of a file of events that is missing.
    missing: Option<String>,
    /// The texts that the store indexes.
    texts: Texts,
    clock: Arc<SteadyClock>,
    entropy: Arc<dyn Entropy>,
}

impl Unopened {
    /// Creates the data directory if it does not exist, locks it, and reads the master key. `texts` are those that the
    /// store indexes.
    ///
    /// # Errors
    /// If another process has locked the data directory, or its files are not those of an installation.
    pub fn new(settings: &Settings, access: Access, texts: Texts) -> Result<Self> {
        keys::make_data_dir(&settings.data_dir)?;
        let lock = match access {
            Access::Server | Access::Exclusive => {
                let lock = DataDirLock::acquire(&settings.data_dir, &settings.node())?;
                Some(Arc::new(lock))
            }
            Access::Shared => None,
        };
        let master = keys::load(&settings.key_file())?;
        sqlite_files::refuse_without_state(settings)?;
        Ok(Self {
            access,
            url: store_url(settings),
            lock,
            master,
            // Opening the state creates it.
            missing: sqlite_files::missing_events(settings),
            texts,
            clock: Arc::new(SteadyClock::new(SystemClock.now())),
            entropy: Arc::new(OsEntropy),
            settings: settings.clone(),
        })
    }

    /// The master key, unless the first start has yet to make it.
    pub fn master(&self) -> Option<&MasterKey> {
        self.master.as_ref()
    }

    /// The clock of this process.
    pub fn clock(&self) -> &Arc<SteadyClock> {
        &self.clock
    }

    /// The random source of this process.
    pub fn entropy(&self) -> &Arc<dyn Entropy> {
        &self.entropy
    }

    /// Opens the store, and creates or migrates its tables.
    ///
    /// # Errors
    /// If it cannot be opened. The fault passes ([`Fault::is_passing`]) if the database is away, a standby, or has no
    /// free connection.
    pub async fn open_store(&self) -> Result<Store, Fault> {
        let clock: Arc<dyn Clock> = self.clock.clone();
        Store::open(&self.url, clock, self.texts.clone()).await
    }

    /// The error of a store that cannot be opened.
    pub fn error(&self, fault: Fault) -> anyhow::Error {
        match self.url {
            StoreUrl::Sqlite(_) => sqlite_files::of_file(fault),
            StoreUrl::Postgres(_) => with_causes(fault),
        }
    }

    /// Opens the rest of the installation with this store.
    ///
    /// # Errors
    /// If the master key is missing or does not belong to the store, the copy of the configuration is of another
    /// installation, or the queue cannot be opened.
    pub async fn finish(&self, store: Store) -> Result<ProcessContext> {
        let opened = self.finish_with(&store).await;
        if opened.is_err() {
            store.close().await;
        }
        opened
    }

    async fn finish_with(&self, store: &Store) -> Result<ProcessContext> {
        let settings = &self.settings;
        let key_file = settings.key_file();
        if let (Some(master), Access::Server) = (&self.master, self.access) {
            refuse_copy_of_another(settings, master, store).await?;
        }
        let master = match self.master.clone() {
            Some(master) => master,
            None => {
                refuse_without_key(store, &key_file).await?;
                keys::make(&key_file, &*self.entropy)?
            }
        };
        let clock: Arc<dyn Clock> = self.clock.clone();
        let missing = sqlite_files::note_missing(store, self.missing.clone(), &*clock).await?;
        let queue = sqlite_files::open_queue(settings, self.access, &clock).await?;
        let mut lost_events = sqlite_files::damaged_events(settings).await;
        lost_events.extend(missing);
        sqlite_files::agree_on_id(settings, store, &queue, &*self.entropy).await?;
        let agreed = agree_on_key(store, &master).await?;
        let seal = Seal::new(&master.current).with_older(&master.older);
        let pepper = match store.meta_get(PEPPER).await.map_err(with_causes)? {
            Some(sealed) => Pepper::unsealed(&seal, &sealed).map_err(with_causes)?,
            None => Pepper::new(&agreed),
        };
        Ok(ProcessContext {
            store: store.clone(),
            queue,
            pepper,
            seal,
            master,
            clock: self.clock.clone(),
            entropy: self.entropy.clone(),
            ids: Arc::default(),
            domain: HostName::parse(&settings.edge.domain).context("`edge.domain`")?,
            token_form: settings.keys.token_form.into(),
            base_url: settings.base_url(),
            lost_events,
            lock: self.lock.clone(),
        })
    }
}

impl ProcessContext {
    /// Opens the data directory or the database. Creates it if it does not exist. A server rather uses [`Unopened`],
    /// because its database may be away. `texts` are those that the store indexes.
    ///
    /// # Errors
    /// If another process has locked the data directory, the master key is missing or does not belong to the store,
    /// or the store cannot be opened.
    pub async fn open(settings: &Settings, access: Access, texts: Texts) -> Result<Self> {
        let unopened = Unopened::new(settings, access, texts)?;
        let store = unopened.open_store().await;
        let store = store.map_err(|fault| unopened.error(fault))?;
        unopened.finish(store).await
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
        let reencrypted = reencrypt(&self.store, &seal, &*self.entropy)
            .await
            .map_err(with_causes)?;
        // Tokens of the last minute in kept responses are under the old key. Nothing shows them any more.
        let (never, now) = (Timestamp::from_unix_nanos(0), self.clock.now());
        let pruned = self.store.prune_answers(never, now).await;
        pruned.map_err(with_causes)?;
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

/// Refuses a database of another installation than the copy of the configuration: the edge may have served from the copy
/// until now.
async fn refuse_copy_of_another(
    settings: &Settings,
    master: &MasterKey,
    store: &Store,
) -> Result<()> {
    let copy = EdgeCopy::of(settings, master);
    // A copy that is damaged is not used, and the next one replaces it.
    let Ok(Some(whole)) = copy.open() else {
        return Ok(());
    };
    let is_its = match store.database_id().await.map_err(with_causes)? {
        Some(id) => id == whole.facts().installation,
        // One of an earlier version, if it has the master key.
        None => {
            let mark = store.meta_get(MASTER_KEY_MARK).await.map_err(with_causes)?;
            !matches!(store_url(settings), StoreUrl::Postgres(_))
                || mark.is_some_and(|mark| master.is_marked(&mark))
        }
    };
    if is_its {
        return Ok(());
    }
    bail!(
        "the database belongs to another installation than the data directory `{}`; correct `database_url`, or remove \
         `{}` to use this database (other_installation)",
        settings.data_dir.display(),
        copy.path().display()
    )
}

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
pub async fn key_rotated(store: &Store, master: &MasterKey) {
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

//! A store and a queue in a folder that vanishes with them: for documents that were read from a copy while the database
//! is away.

use std::sync::Arc;

use culvert_base::{Clock, Fault};

use crate::database::sqlite;
use crate::database::store_url::StoreUrl;
use crate::document::text_index::Texts;
use crate::queue::Queue;
use crate::store::Store;

/// A SQLite store with its queue, in a new folder that only this user can read. Dropping it removes the folder.
#[derive(Debug)]
pub struct TemporaryStore {
    /// Documents.
    pub store: Store,
    /// An empty queue.
    pub queue: Queue,
    _folder: tempfile::TempDir,
}

impl TemporaryStore {
    /// Creates it in the directory for temporary files.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub async fn create(clock: Arc<dyn Clock>) -> Result<Self, Fault> {
        let folder = sqlite::private_folder()
            .map_err(|error| Fault::new("creating a folder for a temporary store", error))?;
        let url = StoreUrl::Sqlite(folder.path().join("state.db"));
        let queue = Queue::open(&url, Arc::clone(&clock)).await?;
        let store = Store::open(&url, clock, Texts::default()).await?;
        Ok(Self {
            store,
            queue,
            _folder: folder,
        })
    }

    /// Closes both, and removes the folder.
    pub async fn close(self) {
        self.queue.close().await;
        self.store.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use culvert_base::SystemClock;

    use super::*;

    #[tokio::test]
    async fn its_folder_is_private_and_goes_with_it() {
        let temporary = TemporaryStore::create(Arc::new(SystemClock)).await.unwrap();
        let folder = temporary._folder.path().to_owned();
        let mode = std::fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        temporary.store.meta_set("name", "value").await.unwrap();
        temporary.close().await;
        assert!(!folder.exists());
    }
}

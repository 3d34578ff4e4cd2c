//! Objects that were stored before all they name was written down beside them: it is written down
//! once, when a server starts, so that nothing in use can be deleted.

use culvert_base::Fault;
use culvert_store::{Changes, CommitError, Document, Head, Ref, Told};
use tracing::{info, warn};

use crate::resource::model::Model;
use crate::resource::model::endpoint::Endpoint;
use crate::resource::model::reserved_domain::ReservedDomain;
use crate::resource::resource_type::{Resource, ResourceType};
use crate::resource::{endpoint, reserved_domain};
use crate::seal::Seal;
use crate::{host, stored};

/// Says up to which form this was done.
const META: &str = "references";
const DONE: &str = "1";

const NOTHING: Told = Told::Nothing {
    why: "the object stays as it is; what it names is written down beside it",
};

/// Writes down what every object names. Nothing where it was done before.
pub(crate) async fn relink(store: &culvert_store::Store, seal: &Seal) -> Result<(), Fault> {
    if store.meta_get(META).await?.as_deref() == Some(DONE) {
        return Ok(());
    }
    let mut n_written = 0;
    for document in store.all(Endpoint::KIND).await? {
        let mut form: Endpoint = stored::read(&document)?;
        form.note_names(store, seal, &document.head).await?;
        let name = form.host_name(&document.head.account);
        host::note(store, &document.head, &name, form.principal_id()).await?;
        n_written += usize::from(write(store, &endpoint::TYPE, document, &form).await?);
    }
    for document in store.all(ReservedDomain::KIND).await? {
        let form: ReservedDomain = stored::read(&document)?;
        n_written += usize::from(write(store, &reserved_domain::TYPE, document, &form).await?);
    }
    if n_written > 0 {
        info!(objects = n_written, "indexed references of older objects");
    }
    store.meta_set(META, DONE).await
}

/// Whether the references of a document were not those of its form. One whose references do not
/// exist any more is left as it is: at run time it is refused what it names.
async fn write<R: Resource>(
    store: &culvert_store::Store,
    ty: &ResourceType,
    document: Document,
    form: &R,
) -> Result<bool, Fault> {
    let refs: Vec<Ref> = form.links(&document.head).refs;
    if refs == document.refs {
        return Ok(false);
    }
    let Head { id, .. } = document.head.clone();
    let changed = Document {
        body: stored::write(form)?,
        refs,
        ..document
    };
    match store.commit(Changes::replace(changed, NOTHING)).await {
        Ok(_) => Ok(true),
        Err(CommitError::Fault(fault)) => Err(fault),
        Err(error) => {
            warn!(object = id, kind = ty.kind, %error, "indexing the references of an object failed");
            Ok(false)
        }
    }
}

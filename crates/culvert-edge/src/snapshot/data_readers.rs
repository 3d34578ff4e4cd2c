//! Endpoints whose policies read data of the operator.

use culvert_base::PersistentMap;
use culvert_edge_config::Endpoint;
use culvert_policy::ipdata::IpFields;

/// The IDs of these endpoints, by what their policies read. Policies differ in few ways there, so a question about all
/// endpoints takes no longer with many of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataReaders(Vec<(IpFields, PersistentMap<String, ()>)>);

/// The data that an endpoint's policy reads, if it reads any.
fn read_data(endpoint: &Endpoint) -> Option<IpFields> {
    let fields = endpoint.policy.as_ref()?.ip_fields();
    (!fields.is_empty()).then_some(fields)
}

impl DataReaders {
    /// Adds an endpoint, if its policy reads data.
    pub(super) fn add_endpoint(&mut self, endpoint: &Endpoint) {
        let Some(fields) = read_data(endpoint) else {
            return;
        };
        let id = endpoint.id.clone();
        match self.0.iter_mut().find(|(known, _)| *known == fields) {
            Some((_, ids)) => ids.insert(id, ()),
            None => {
                let mut ids = PersistentMap::default();
                ids.insert(id, ());
                self.0.push((fields, ids));
            }
        }
    }

    /// Removes an endpoint.
    pub(super) fn remove_endpoint(&mut self, endpoint: &Endpoint) {
        let Some(fields) = read_data(endpoint) else {
            return;
        };
        if let Some((_, ids)) = self.0.iter_mut().find(|(known, _)| *known == fields) {
            ids.remove(&endpoint.id);
        }
        self.0.retain(|(_, ids)| !ids.is_empty());
    }

    /// What policies read, with the number of endpoints that read it and the ID of one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (IpFields, usize, &str)> {
        self.0.iter().filter_map(|(fields, ids)| {
            let first = ids.keys().next()?;
            Some((*fields, ids.len(), first.as_str()))
        })
    }
}

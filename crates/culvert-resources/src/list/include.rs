//! Adds the fields of `include` to the views of objects.

use culvert_base::Fault;
use culvert_store::Document;

use crate::cx::Cx;
use crate::list::page::{Fields, Part};
use crate::resource::ResourceType;

/// Adds the fields of these groups to the view of an object, which is a JSON object.
pub(crate) fn add(view: &mut Vec<u8>, parts: &[&Part], fields: &Fields) -> Result<(), Fault> {
    let all = parts.iter().flat_map(|part| part.fields);
    let wanted: Fields = all
        .filter_map(|name| Some(((*name).to_owned(), fields.get(*name)?.clone())))
        .collect();
    if wanted.is_empty() || view.pop() != Some(b'}') {
        return Ok(());
    }
    view.push(b',');
    let text = serde_json::to_vec(&wanted)
        .map_err(|error| Fault::new("writing the included fields of an object", error))?;
    view.extend(text.get(1..).unwrap_or_default());
    Ok(())
}

/// The view of one object with the fields of these groups.
pub(crate) async fn with(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    parts: &[&'static Part],
    document: &Document,
    view: String,
) -> Result<String, Fault> {
    if parts.is_empty() {
        return Ok(view);
    }
    let fields = (ty.read_included)(cx, std::slice::from_ref(document)).await?;
    let mut bytes = view.into_bytes();
    if let Some(fields) = fields.first() {
        add(&mut bytes, parts, fields)?;
    }
    String::from_utf8(bytes).map_err(|error| Fault::new("writing a view", error))
}

//! Reads encoded traffic events back as records. Filters and selections apply to them as to new
//! events; ids are unchanged.

use std::collections::BTreeMap;
use std::sync::Arc;

use culvert_base::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::capture::Capture;
use crate::catalogue::field::Type;
use crate::kinds;
use crate::record::Record;

/// An event and its id.
#[derive(Debug)]
pub struct Retained {
    /// `ev_…`.
    pub id: String,
    /// Its fields. A field that is missing in the line is unset.
    pub record: Record,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    event_id: &'a str,
    event_type: &'a str,
    event_timestamp: &'a str,
    account_id: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Maximum depth of nested objects.
const DEPTH_MAX: usize = 8;

impl Retained {
    /// Reads a line that [`crate::encode::event`] wrote; `None` if it is not one.
    pub fn read(line: &[u8]) -> Option<Self> {
        let envelope: Envelope<'_> = serde_json::from_slice(line).ok()?;
        let kind = kinds::find(envelope.event_type)?;
        let at = Timestamp::parse(envelope.event_timestamp)?;
        let account = Arc::from(envelope.account_id);
        let mut record = Record::new(kind, Capture::all(kind), account);
        fill(&mut record, "", envelope.object, DEPTH_MAX)?;
        record.complete(at);
        Some(Self {
            id: envelope.event_id.to_owned(),
            record,
        })
    }
}

/// Sets every field below `path`.
fn fill(record: &mut Record, path: &str, object: &RawValue, depth: usize) -> Option<()> {
    let entries: BTreeMap<&str, &RawValue> = serde_json::from_str(object.get()).ok()?;
    for (key, value) in entries {
        let path = match path {
            "" => key.to_owned(),
            parent => format!("{parent}.{key}"),
        };
        match record.kind().index_of(&path) {
            Some(index) => {
                let field = &record.kind().fields[index];
                // Filters read texts and numbers. Other values are copied unchanged.
                let number = || serde_json::from_str(value.get()).ok();
                match field.ty {
                    Type::Text if field.filterable => {
                        let text: String = serde_json::from_str(value.get()).ok()?;
                        record.put_text(index, &text);
                    }
                    _ if field.filterable => record.put_int(index, number()?),
                    _ => record.put_json(index, value.get()),
                }
            }
            None if depth > 0 && value.get().starts_with('{') => {
                fill(record, &path, value, depth - 1)?;
            }
            // A field of another version is ignored.
            None => {}
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Filter, HTTP_REQUEST_COMPLETE as HTTP, Int32, Selection, Slot, Text, encode};

    const NAME: Slot<Text> = HTTP.slot("conn.server_name");
    const PORT: Slot<Int32> = HTTP.slot("conn.server_port");
    const PATH: Slot<Text> = HTTP.slot("http.request.url.path");

    #[test]
    fn what_was_written_whole_is_filtered_and_written_again_as_at_first() {
        let mut record = Record::new(&HTTP, Capture::all(&HTTP), "ac_1".into());
        record.set(NAME, "a\"b.example");
        record.set(PORT, 443);
        record.set(PATH, "/\u{1}ü\\");
        record.complete(Timestamp::parse("2026-11-20T19:53:18.737999Z").unwrap());
        let all = Selection::all(&HTTP);
        let some = Selection::parse(&HTTP, &["http.request.url.path", "conn.server_port"]).unwrap();
        let write = |record: &Record, selection: &Selection| {
            let mut out = Vec::new();
            assert_eq!(
                encode::event(record, selection, "ev_1", &mut out),
                Default::default()
            );
            String::from_utf8(out).unwrap()
        };
        let line = write(&record, &all);
        let read = Retained::read(line.as_bytes()).unwrap();
        assert_eq!(read.id, "ev_1");
        assert_eq!(&**read.record.account(), "ac_1");
        assert_eq!(write(&read.record, &all), line);
        assert_eq!(write(&read.record, &some), write(&record, &some));
        for (source, is_wanted) in [
            ("ev.conn.server_port == 443", true),
            ("ev.conn.server_name == 'a\"b.example'", true),
            ("ev.conn.server_port == 80", false),
        ] {
            let filter = Filter::compile(&HTTP, source).unwrap();
            assert_eq!(filter.matches(&read.record), Ok(is_wanted), "{source}");
        }
    }

    #[test]
    fn what_is_no_event_of_traffic_is_not_read() {
        let event = |kind: &str, object: &str| {
            format!(
                r#"{{"event_id":"ev_1","event_type":"{kind}","event_timestamp":"2026-11-20T19:53:18.737Z","account_id":"ac_1","principal":null,"object":{object}}}"#
            )
        };
        assert!(Retained::read(event(HTTP.name, "{}").as_bytes()).is_some());
        for line in [
            event("api_key_created.v0", "{}"),
            event(HTTP.name, "[]"),
            event(HTTP.name, r#"{"conn":{"server_port":"x"}}"#),
            "{}".to_owned(),
            String::new(),
        ] {
            assert!(Retained::read(line.as_bytes()).is_none(), "{line}");
        }
    }
}

use proptest::prelude::*;

use super::*;

mod rfc7541;

/// Decodes a section. A field that no request may have is `("wrong", "")`.
fn read(decoder: &mut Decoder, section: &[u8]) -> Result<Vec<(String, String)>, Unreadable> {
    let mut fields = Vec::new();
    let section = Bytes::copy_from_slice(section);
    decoder.read(&section, |field, size, _| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (name, value) = match field {
            Field::Pseudo(name, value) => (format!(":{name:?}").to_lowercase(), text(value)),
            Field::Plain(name, value) => {
                assert_eq!(size, name.as_str().len() + value.len() + 32);
                (name.to_string(), text(value.as_bytes()))
            }
            Field::Wrong => ("wrong".into(), String::new()),
        };
        fields.push((name, value));
    })?;
    Ok(fields)
}

proptest! {
    #[test]
    fn encoded_fields_are_decoded(
        status in 100u16..1000,
        fields in proptest::collection::vec(("[a-z-]{1,30}", "[!-~]([ -~]{0,60}[!-~])?", any::<bool>()), 0..12),
    ) {
        let mut section = Vec::new();
        write_status(&mut section, http::StatusCode::from_u16(status).unwrap());
        let mut written = vec![("wrong".to_owned(), String::new())];
        for (name, value, is_sensitive) in fields {
            let mut of = HeaderValue::from_str(&value).unwrap();
            of.set_sensitive(is_sensitive);
            write_field(&mut section, &HeaderName::from_bytes(name.as_bytes()).unwrap(), &of);
            written.push((name, value));
        }
        prop_assert_eq!(read(&mut Decoder::default(), &section).unwrap(), written);
    }

    #[test]
    fn any_bytes_keep_the_table_within_its_limit(sections in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..6)) {
        let mut decoder = Decoder::default();
        for section in sections {
            let _verdict = read(&mut decoder, &section);
            prop_assert!(decoder.table_bytes <= TABLE_BYTES_MAX);
            prop_assert_eq!(decoder.table_bytes, decoder.table.iter().map(|entry| entry.size).sum::<usize>());
        }
    }
}

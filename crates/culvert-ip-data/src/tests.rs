use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

const GEO: &[u8] = include_bytes!("../tests/data/geo.mmdb");
const ASN: &[u8] = include_bytes!("../tests/data/asn.mmdb");
const COUNTRY: &[u8] = include_bytes!("../tests/data/country.mmdb");

fn file(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "data", name]
        .iter()
        .collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn every_field_of_the_files_is_found() {
    let files = IpDataFiles {
        geo: Some(file("geo.mmdb")),
        asn: Some(file("asn.mmdb")),
        categories: Vec::new(),
    };
    let data = IpData::read(&files).unwrap();
    use Scalar::{Bool, Double, Int, Text};
    for (field, expected) in [
        (IpField::City, Some(Text("Vienna"))),
        (IpField::Continent, Some(Text("Europe"))),
        (IpField::Country, Some(Text("Austria"))),
        (IpField::CountryCode, Some(Text("AT"))),
        (IpField::IsEu, Some(Bool(true))),
        (IpField::Latitude, Some(Double(48.2049))),
        (IpField::Longitude, Some(Double(16.3662))),
        (IpField::MetroCode, Some(Int(501))),
        (IpField::PostalCode, Some(Text("1010"))),
        (IpField::Radius, Some(Int(20))),
        (IpField::Subdivision, Some(Text("Wien Region"))),
        (IpField::Timezone, Some(Text("Europe/Vienna"))),
        (IpField::RegisteredCountry, Some(Text("Germany"))),
        (IpField::RegisteredCountryCode, Some(Text("DE"))),
        (IpField::RegisteredIsEu, Some(Bool(true))),
        (IpField::RegisteredCity, None),
        (IpField::RegisteredTimezone, None),
        (IpField::AsNumber, Some(Int(64500))),
        (IpField::AsOrganization, Some(Text("Example Net"))),
    ] {
        assert_eq!(data.get(field, ip("127.0.0.1")), expected, "{field:?}");
        let mut wanted = IpFields::default();
        wanted.insert(field);
        assert_eq!(
            data.missing(wanted).is_empty(),
            expected.is_some(),
            "{field:?}"
        );
    }
    for (address, code) in [
        ("198.51.100.7", Some("US")),
        ("2001:db8::1", Some("US")),
        ("::ffff:127.0.0.1", Some("AT")),
        ("::127.0.0.1", Some("AT")),
        ("126.255.255.255", None),
        ("127.0.0.0", Some("AT")),
        ("127.255.255.255", Some("AT")),
        ("128.0.0.0", None),
        ("255.255.255.255", None),
        ("192.0.2.1", None),
        ("::", None),
        ("ffff::", None),
    ] {
        let found = data.get(IpField::CountryCode, ip(address));
        assert_eq!(found, code.map(Text), "{address}");
        let city = (code == Some("AT")).then_some(Text("Vienna"));
        assert_eq!(data.get(IpField::City, ip(address)), city, "{address}");
    }
    // A database without places within a country does not stand for one that has them.
    let files = IpDataFiles {
        geo: Some(file("country.mmdb")),
        ..IpDataFiles::default()
    };
    let data = IpData::read(&files).unwrap();
    let mut wanted = IpFields::default();
    for field in IpField::ALL {
        wanted.insert(field);
    }
    let held: Vec<_> = IpField::ALL
        .into_iter()
        .filter(|field| !data.missing(wanted).contains(*field))
        .collect();
    assert_eq!(held, [IpField::Country, IpField::CountryCode]);
}

#[test]
fn lists_belong_to_their_parent_categories() {
    let folder = std::env::temp_dir().join(format!("culvert-lists-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let cloud = write(
        "cloud",
        "# comment\n\n192.0.2.0/24 ; why\n2001:db8::/32\n198.51.100.7\n",
    );
    let tor = write("tor", "127.0.0.1\n");
    let files = IpDataFiles {
        categories: vec![
            ("com.cloud.ipv4".into(), cloud.clone()),
            ("tor".into(), tor.clone()),
            ("blocklist.spam".into(), cloud.clone()),
        ],
        ..IpDataFiles::default()
    };
    let data = IpData::read(&files).unwrap();
    let all = [
        "blocklist",
        "blocklist.spam",
        "com",
        "com.cloud",
        "com.cloud.ipv4",
    ];
    assert_eq!(data.categories(ip("192.0.2.77")), all);
    assert_eq!(data.categories(ip("2001:db8::1")), all);
    assert_eq!(data.categories(ip("198.51.100.8")), [""; 0]);
    assert_eq!(data.categories(ip("127.0.0.1")), ["tor"]);
    for (address, is_bad, is_tor) in [("192.0.2.1", true, false), ("127.0.0.1", false, true)] {
        let get = |field| data.get(field, ip(address));
        assert_eq!(get(IpField::Blocklist), Some(Scalar::Bool(is_bad)));
        assert_eq!(get(IpField::Tor), Some(Scalar::Bool(is_tor)));
    }
    // Lists that are not those a variable reads do not stand for them.
    let only = IpDataFiles {
        categories: vec![("torrents".into(), tor.clone())],
        ..IpDataFiles::default()
    };
    let only = IpData::read(&only).unwrap();
    let mut wanted = IpFields::default();
    for field in [IpField::Categories, IpField::Blocklist, IpField::Tor] {
        wanted.insert(field);
    }
    let missing: Vec<_> = only.missing(wanted).iter().collect();
    assert_eq!(missing, [IpField::Blocklist, IpField::Tor]);

    let bad = write("bad", "192.0.2.0/24\nexample.com\n");
    let empty = write("empty", "");
    let comments = write("comments", "# all gone\n\n ; nothing\n");
    for (name, path, why) in [
        ("bad", &bad, "line 2"),
        // A list that was cut off must not switch a rule off.
        ("empty", &empty, "contains no network"),
        ("comments", &comments, "contains no network"),
        ("Tor", &tor, "labels"),
        ("", &tor, "labels"),
        ("a..b", &tor, "labels"),
        ("none", &folder.join("none"), "cannot be read"),
    ] {
        let files = IpDataFiles {
            categories: vec![(name.into(), path.clone())],
            ..IpDataFiles::default()
        };
        let fault = IpData::read(&files).unwrap_err();
        assert!(fault.chain().contains(why), "{}", fault.chain());
        let mut faults = Vec::new();
        let data = IpData::read_some(&files, &mut faults);
        assert_eq!(
            (data.failed(), faults.len()),
            (&["edge.ip_categories"][..], 1)
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Reads a file and, if it passes, looks all kinds of addresses up. Nothing here may panic or take long.
fn look_through(bytes: Vec<u8>) -> bool {
    let Ok(database) = Database::of(bytes) else {
        return false;
    };
    let data = IpData {
        geo: Some(database),
        ..IpData::default()
    };
    for address in [
        "127.0.0.1",
        "198.51.100.7",
        "0.0.0.0",
        "255.255.255.255",
        "2001:db8::1",
        "::",
        "ffff::1",
    ] {
        for field in IpField::ALL {
            let _any = data.get(field, ip(address));
        }
    }
    true
}

#[test]
fn truncated_or_damaged_files_are_read_or_refused() {
    for whole in [GEO, ASN, COUNTRY] {
        assert!(look_through(whole.to_vec()));
        for length in 0..whole.len() {
            look_through(whole[..length].to_vec());
        }
        for at in 0..whole.len() {
            for other in [0, 0x20, 0x3f, 0xff] {
                let mut changed = whole.to_vec();
                changed[at] = other;
                look_through(changed);
            }
        }
    }
}

/// A file of one node whose records lead to the beginning of this data.
fn made(data: &[u8], metadata: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut file = vec![0, 0, 17, 0, 0, 17];
    file.extend([0; 16]);
    file.extend(data);
    file.extend(b"\xab\xcd\xefMaxMind.com");
    let text = |out: &mut Vec<u8>, text: &str| {
        out.push(0x40 | u8::try_from(text.len()).unwrap());
        out.extend(text.as_bytes());
    };
    file.push(0xe9);
    for (key, value) in [
        ("binary_format_major_version", 2),
        ("binary_format_minor_version", 0),
        ("ip_version", 4),
        ("node_count", 1),
        ("record_size", 24),
    ] {
        // A long key has its length behind its type.
        if key.len() >= 29 {
            file.push(0x5d);
            file.push(u8::try_from(key.len() - 29).unwrap());
            file.extend(key.as_bytes());
        } else {
            text(&mut file, key);
        }
        file.extend([0xa1, value]);
    }
    text(&mut file, "build_epoch");
    file.extend([0x01, 0x02, 1]);
    text(&mut file, "database_type");
    text(&mut file, "x");
    text(&mut file, "description");
    file.push(0xe0);
    text(&mut file, "languages");
    file.extend([0x00, 0x04]);
    metadata(&mut file);
    file
}

#[test]
fn cyclic_deep_and_oversized_files_are_refused() {
    let plain = |data: &[u8]| Database::of(made(data, |_| {})).err();
    // {"country": {"iso_code": "AT"}}
    let good = b"\xe1\x47country\xe1\x48iso_code\x42AT";
    assert_eq!(plain(good), None);
    // A pointer to itself, and a map that holds itself.
    assert!(plain(b"\x20\x00").unwrap().contains("pointer"));
    assert!(plain(b"\xe1\x47country\x20\x00").unwrap().contains("cycle"));
    // A hundred lists in each other.
    let mut tower = Vec::new();
    for _ in 0..100 {
        tower.extend([0x01, 0x04]);
    }
    assert!(plain(&tower).unwrap().contains("nested"));
    // Each list has the next one ten times.
    let mut laughs = Vec::new();
    for level in 0..6_u16 {
        laughs.extend([0x0a, 0x04]);
        let next = (level + 1) * 22;
        for _ in 0..10 {
            laughs.extend([0x20 | u8::try_from(next >> 8).unwrap(), (next & 0xff) as u8]);
        }
    }
    laughs.extend([0x40]);
    assert!(plain(&laughs).unwrap().contains("too many"));
    // A list that says it is longer than any file.
    assert!(
        plain(b"\x1f\x04\xff\xff\xff")
            .unwrap()
            .contains("exceeds the file")
    );
    assert!(
        plain(b"\x5f\xff\xff\xff")
            .unwrap()
            .contains("exceeds the file")
    );
    assert!(plain(b"\x41\xff").unwrap().contains("UTF-8"));
    assert!(plain(b"\x00\xff").unwrap().contains("unknown type"));
    assert!(plain(b"\x3d\x00\x00\x00\x00").unwrap().contains("pointer"));
    assert!(plain(b"").unwrap().contains("outside of its data"));
}

proptest! {
    #[test]
    fn any_data_section_is_read_or_refused(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        look_through(made(&data, |_| {}));
    }

    #[test]
    fn any_metadata_is_read_or_refused(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        look_through(made(b"\xe0", |file| file.splice(30.., data).for_each(drop)));
    }

    #[test]
    fn files_with_several_damaged_bytes_are_read_or_refused(changes in proptest::collection::vec((0usize..1702, any::<u8>()), 1..20)) {
        let mut changed = GEO.to_vec();
        for (at, byte) in changes {
            if let Some(place) = changed.get_mut(at) {
                *place = byte;
            }
        }
        look_through(changed);
    }
}

/// A database of random networks, that lead to some records. One of IPv6 has IPv4 below 96 zeros, and from 6to4.
fn random_database(is_v6: bool, count: usize, seed: u64) -> Vec<u8> {
    use culvert_base::{Entropy, SeededEntropy};
    const NONE: u32 = u32::MAX;
    const RECORDS: u32 = 200;
    let entropy = SeededEntropy::new(seed);
    let entropy: &dyn Entropy = &entropy;
    let random = || u128::from_le_bytes(entropy.bytes());
    let mut data = Vec::new();
    let mut places = Vec::new();
    for record in 0..RECORDS {
        places.push(u32::try_from(data.len()).unwrap());
        // {"country": {"iso_code": ".."}, "location": {"latitude": 1.5}}, the latter for some.
        let has_place = record % 3 == 0;
        data.push(0xe1 + u8::from(has_place));
        data.extend(b"\x47country\xe1\x48iso_code\x43");
        data.extend(format!("{:03}", record % 50).as_bytes());
        if has_place {
            data.extend(b"\x48location\xe1\x48latitude\x68");
            data.extend((f64::from(record) / 7.0).to_be_bytes());
        }
    }
    let mut nodes: Vec<[u32; 2]> = vec![[NONE; 2]];
    let mut leaves = Vec::new();
    let mut insert = |address: u128, bits: u32, leaf: Option<u32>| {
        let mut node = 0;
        for depth in 0..bits {
            let bit = (address >> (127 - depth) & 1) as usize;
            if let (Some(record), true) = (leaf, depth + 1 == bits) {
                leaves.push((node, bit, record));
                break;
            }
            let next = nodes.len() as u32;
            if nodes[node][bit] == NONE {
                nodes[node][bit] = next;
                nodes.push([NONE; 2]);
            }
            node = nodes[node][bit] as usize;
        }
        node
    };
    let zeros = if is_v6 { 96 } else { 0 };
    for nth in 0..count {
        let record = (random() % u128::from(RECORDS)) as u32;
        let is_of_v4 = !is_v6 || nth % 2 == 0;
        let (address, bits) = if is_of_v4 {
            let bits = 8 + (random() % 25) as u32;
            (random() & u128::from(u32::MAX), zeros + bits)
        } else {
            // Long prefixes, too, which the table leaves to the tree.
            (random() >> 3 | 1 << 125, 16 + (random() % 100) as u32)
        };
        let address = if is_v6 { address } else { address << 96 };
        insert(address, bits, Some(record));
    }
    let v4 = insert(0, zeros, None) as u32;
    let six_to_four = insert(0x2002 << 112, 15, None);
    // A longer prefix continues below a leaf that was inserted first, so leaves come last.
    let count = nodes.len() as u32;
    for (node, bit, record) in leaves {
        if nodes[node][bit] == NONE {
            nodes[node][bit] = count + 16 + places[record as usize];
        }
    }
    if is_v6 {
        nodes[six_to_four][0] = v4;
    }
    let mut file = Vec::new();
    for record in nodes.iter().flatten() {
        let record = if *record == NONE { count } else { *record };
        file.extend(record.to_be_bytes());
    }
    file.extend([0; 16]);
    file.extend(data);
    file.extend(b"\xab\xcd\xefMaxMind.com\xe9");
    let version = if is_v6 { 6 } else { 4 };
    for (key, value) in [
        ("binary_format_major_version", 2),
        ("binary_format_minor_version", 0),
        ("ip_version", version),
        ("node_count", count),
        ("record_size", 32),
        ("build_epoch", 1),
    ] {
        file.push(0x40 | u8::try_from(key.len()).unwrap());
        file.extend(key.as_bytes());
        file.push(0xc4);
        file.extend(value.to_be_bytes());
    }
    file.extend(b"\x4ddatabase_type\x41x\x4bdescription\xe0\x49languages\x00\x04");
    file
}

/// The tables say what the tree says: at the edges of every network, and of random addresses.
#[test]
fn tables_equal_the_search_tree() {
    use culvert_base::{Entropy, SeededEntropy};
    let entropy = SeededEntropy::new(1);
    let entropy: &dyn Entropy = &entropy;
    let files = [
        ("geo", GEO.to_vec()),
        ("asn", ASN.to_vec()),
        ("country", COUNTRY.to_vec()),
        ("few of IPv4", random_database(false, 100, 2)),
        ("IPv4", random_database(false, 3_000, 3)),
        ("few of IPv6", random_database(true, 100, 4)),
        ("IPv6", random_database(true, 3_000, 5)),
    ];
    for (name, file) in files {
        let database = Database::of(file).unwrap();
        let flat = database.flat().expect("it is small");
        let held: Vec<IpField> = IpField::ALL
            .into_iter()
            .filter(|field| database.holds(*field))
            .collect();
        assert!(!held.is_empty(), "{name}");
        let mut found = 0;
        let mut same = |address: IpAddr| {
            for field in &held {
                let of_tree = database.walk(address, *field);
                assert_eq!(
                    database.get(address, *field),
                    of_tree,
                    "{name}: {address} {field:?}"
                );
                found += usize::from(of_tree.is_some());
            }
        };
        let starts = flat.starts();
        for start in &starts {
            match start {
                IpAddr::V4(start) => {
                    let start = u32::from(*start);
                    for near in [start.wrapping_sub(1), start, start.wrapping_add(1)] {
                        same(IpAddr::V4(near.into()));
                    }
                }
                IpAddr::V6(start) => {
                    let start = u128::from(*start);
                    for near in [start.wrapping_sub(1), start, start.wrapping_add(1)] {
                        same(IpAddr::V6(near.into()));
                    }
                }
            }
        }
        for nth in 0..100_000 {
            let random = u128::from_le_bytes(entropy.bytes());
            // Half of them near a network.
            let start = starts[nth % starts.len()];
            same(match (start, nth % 4) {
                (_, 0) => IpAddr::V4((random as u32).into()),
                (_, 1) => IpAddr::V6((random >> 3 | 1 << 125).into()),
                (IpAddr::V4(start), _) => IpAddr::V4(
                    (u32::from(start) ^ (random as u32 >> ((random >> 96) as u32 % 32))).into(),
                ),
                (IpAddr::V6(start), _) => {
                    let flipped = random >> ((random & 127) as u32 % 64 + 64);
                    IpAddr::V6((u128::from(start) ^ flipped).into())
                }
            });
        }
        for address in [
            "2002:102:304::",
            "::1",
            "::ffff:1.2.3.4",
            "2001::1",
            "::1.2.3.4",
        ] {
            same(ip(address));
        }
        assert!(found > 0, "{name}");
    }
}

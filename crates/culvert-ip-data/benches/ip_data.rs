//! Measures the lookup of an address in a database of the size of GeoLite2-City, and in lists.
//!
//! Prints nanoseconds per lookup, the best of several rounds. The target: under 200 ns.
//! `cargo bench -p culvert-policy --bench ip_data`

#![allow(
    clippy::print_stdout,
    reason = "a benchmark's figures go to its caller"
)]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use culvert_base::{Entropy, SeededEntropy};
use culvert_ip_data::{IpData, IpDataFiles, IpField};

const NETWORKS: usize = 500_000;
const RECORDS: usize = 50_000;
const LISTED: usize = 100_000;
const QUESTIONS: usize = 1 << 16;
const ROUNDS: usize = 20;

fn main() {
    let entropy = SeededEntropy::new(7);
    let random = || {
        let mut bytes = [0; 8];
        entropy.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    };
    let networks: Vec<u32> = (0..NETWORKS)
        .map(|_| random() as u32 & 0xffff_ff00)
        .collect();
    let folder = std::env::temp_dir().join(format!("culvert-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    };
    let lines = |list: &[u32]| {
        let lines = list
            .iter()
            .map(|network| format!("{}/24\n", Ipv4Addr::from(*network)));
        lines.collect::<String>()
    };
    let first = networks.get(..LISTED).unwrap_or_default();
    let files = IpDataFiles {
        geo: Some(file("geo.mmdb", &database(&networks, false, 6))),
        asn: Some(file("asn.mmdb", &database(&networks, true, 4))),
        categories: vec![
            ("blocklist".into(), file("bad", lines(first).as_bytes())),
            ("tor".into(), file("tor", lines(first).as_bytes())),
        ],
    };
    let begun = Instant::now();
    let data = IpData::read(&files).expect("what was just written");
    println!("reading and checking: {} ms", begun.elapsed().as_millis());
    std::fs::remove_dir_all(&folder).expect("the folder");
    let hits: Vec<IpAddr> = (0..QUESTIONS)
        .map(|_| {
            let network = networks.get(random() as usize % NETWORKS).copied();
            Ipv4Addr::from(network.unwrap_or_default() | random() as u32 & 255).into()
        })
        .collect();
    let any: Vec<IpAddr> = (0..QUESTIONS)
        .map(|_| Ipv4Addr::from(random() as u32).into())
        .collect();
    let v6: Vec<IpAddr> = (0..QUESTIONS)
        .map(|_| {
            let network = networks.get(random() as usize % NETWORKS).copied();
            let network = of_v6(network.unwrap_or_default());
            Ipv6Addr::from(network | u128::from(random())).into()
        })
        .collect();
    println!(
        "{NETWORKS} networks of each protocol, {RECORDS} records; nanoseconds per look-up of a known address, of any, and of a known one of IPv6"
    );
    for field in [
        IpField::CountryCode,
        IpField::City,
        IpField::Latitude,
        IpField::Subdivision,
        IpField::AsNumber,
        IpField::AsOrganization,
        IpField::Blocklist,
    ] {
        let cost = |addresses: &[IpAddr]| {
            let round = || {
                let begun = Instant::now();
                for address in addresses {
                    black_box(data.get(field, black_box(*address)));
                }
                begun.elapsed().as_nanos() / QUESTIONS as u128
            };
            (0..ROUNDS).map(|_| round()).min().unwrap_or_default()
        };
        println!("{field:?}: {} {} {}", cost(&hits), cost(&any), cost(&v6));
    }
}

/// The /48 of IPv6 beside a /24.
fn of_v6(network: u32) -> u128 {
    0x2a << 120 | u128::from(network) << 80
}

/// An MMDB file with these networks, each a /24, and with version 6 a /48 of IPv6 beside it.
fn database(networks: &[u32], is_asn: bool, version: u32) -> Vec<u8> {
    let (mut data, mut places) = (Vec::new(), Vec::new());
    // Shared, as in real databases.
    let countries: Vec<u32> = (0..250)
        .map(|country: u32| {
            let at = data.len() as u32;
            map(&mut data, 3);
            text(&mut data, "geoname_id");
            number(&mut data, country);
            text(&mut data, "iso_code");
            text(&mut data, &format!("{country:02}"));
            text(&mut data, "names");
            names(&mut data, "A country");
            at
        })
        .collect();
    for record in 0..RECORDS as u32 {
        places.push(data.len() as u32);
        if is_asn {
            map(&mut data, 2);
            text(&mut data, "autonomous_system_number");
            number(&mut data, record);
            text(&mut data, "autonomous_system_organization");
            text(&mut data, "An organisation with a name");
            continue;
        }
        map(&mut data, 5);
        text(&mut data, "city");
        map(&mut data, 1);
        text(&mut data, "names");
        names(&mut data, "A city");
        text(&mut data, "country");
        let country = countries
            .get(record as usize % 250)
            .copied()
            .unwrap_or_default();
        data.push(0x38);
        data.extend(country.to_be_bytes());
        text(&mut data, "location");
        map(&mut data, 3);
        text(&mut data, "accuracy_radius");
        number(&mut data, 20);
        text(&mut data, "latitude");
        data.push(0x68);
        data.extend(48.2_f64.to_be_bytes());
        text(&mut data, "time_zone");
        text(&mut data, "Europe/Vienna");
        text(&mut data, "postal");
        map(&mut data, 1);
        text(&mut data, "code");
        text(&mut data, "1010");
        text(&mut data, "subdivisions");
        data.extend([0x01, 0x04]);
        map(&mut data, 1);
        text(&mut data, "names");
        names(&mut data, "A state");
    }
    const NONE: u32 = u32::MAX;
    let mut nodes: Vec<[u32; 2]> = vec![[NONE; 2]];
    let mut leaves: Vec<(usize, usize, u32)> = Vec::new();
    let of_v4 = |network: u32| match version {
        6 => (u128::from(network), 120),
        _ => (u128::from(network) << 96, 24),
    };
    let both = networks.iter().enumerate().flat_map(|(index, network)| {
        let v6 = (version == 6).then(|| (of_v6(*network), 48));
        let all = [Some(of_v4(*network)), v6].into_iter().flatten();
        all.map(move |(address, bits)| (index, address, bits))
    });
    for (index, address, bits) in both {
        let mut node = 0;
        for depth in 0..bits {
            let bit = (address >> (127 - depth) & 1) as usize;
            if depth + 1 == bits {
                leaves.push((node, bit, (index % RECORDS) as u32));
                break;
            }
            let next = nodes.len();
            let Some(place) = nodes.get_mut(node).and_then(|node| node.get_mut(bit)) else {
                break;
            };
            node = match *place {
                NONE => {
                    *place = next as u32;
                    nodes.push([NONE; 2]);
                    next
                }
                known => known as usize,
            };
        }
    }
    let count = nodes.len() as u32;
    for (node, bit, record) in leaves {
        let at = places.get(record as usize).copied().unwrap_or_default();
        if let Some(place) = nodes.get_mut(node).and_then(|node| node.get_mut(bit)) {
            *place = count + 16 + at;
        }
    }
    let mut file = Vec::new();
    for record in nodes.iter().flatten() {
        let record = if *record == NONE { count } else { *record };
        file.extend(record.to_be_bytes());
    }
    file.extend([0; 16]);
    file.extend(data);
    file.extend(b"\xab\xcd\xefMaxMind.com");
    map(&mut file, 9);
    for (key, value) in [
        ("binary_format_major_version", 2),
        ("binary_format_minor_version", 0),
        ("ip_version", version),
        ("node_count", count),
        ("record_size", 32),
        ("build_epoch", 1),
    ] {
        text(&mut file, key);
        number(&mut file, value);
    }
    text(&mut file, "database_type");
    text(&mut file, "Bench");
    text(&mut file, "description");
    map(&mut file, 0);
    text(&mut file, "languages");
    file.extend([0x00, 0x04]);
    file
}

fn map(out: &mut Vec<u8>, entries: u8) {
    out.push(0xe0 | entries);
}

fn text(out: &mut Vec<u8>, text: &str) {
    let length = text.len() as u8;
    if length < 29 {
        out.push(0x40 | length);
    } else {
        out.extend([0x5d, length - 29]);
    }
    out.extend(text.as_bytes());
}

fn number(out: &mut Vec<u8>, number: u32) {
    out.push(0xc4);
    out.extend(number.to_be_bytes());
}

/// In eight languages, English third.
fn names(out: &mut Vec<u8>, name: &str) {
    map(out, 8);
    for language in ["de", "en", "es", "fr", "ja", "pt-BR", "ru", "zh-CN"] {
        text(out, language);
        text(out, name);
    }
}

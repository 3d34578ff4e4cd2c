//! Parts that need no peer. The providers are tested against peers in `crates/culvert/tests/it/dns_records.rs`.

use crate::change::{Change, ZONES_MAX, zones_of};
use crate::error::DnsError;

#[test]
fn a_name_and_its_parents_can_be_zones() {
    let found: Vec<&str> = zones_of("_acme-challenge.a.example.com").collect();
    assert_eq!(
        found,
        [
            "_acme-challenge.a.example.com",
            "a.example.com",
            "example.com"
        ]
    );
    let long = vec!["a"; 200].join(".");
    assert_eq!(zones_of(&long).count(), ZONES_MAX);
    assert_eq!(zones_of("com").count(), 0);
}

#[test]
fn a_change_keeps_other_values() {
    let both = || vec!["one".to_owned(), "two".to_owned()];
    assert_eq!(Change::Add.of(both(), "three"), ["one", "two", "three"]);
    assert_eq!(Change::Add.of(both(), "one"), ["one", "two"]);
    assert_eq!(Change::Remove.of(both(), "one"), ["two"]);
    assert_eq!(Change::Remove.of(both(), "three"), ["one", "two"]);
}

#[test]
fn messages_of_others_are_short_and_plain() {
    let error = DnsError::new(format_args!("a\n\u{1b}[31m{}", "x".repeat(5000)));
    let text = error.about("b").to_string();
    assert!(text.starts_with("b: a[31mxx"), "{text}");
    assert_eq!(text.chars().count(), 600);
}

use super::*;

/// A denied port is that of the connection, not of the scheme that the host is checked with.
#[test]
fn denied_ports_are_those_of_the_connection() {
    let rules = Rules {
        deny_ports: vec![443],
        ..Rules::default()
    };
    let scheme = Scheme {
        name: "nats",
        port: 4222,
    };
    let parse = |url: &str| Peer::parse(url, &[scheme], true, &rules).map(|peer| peer.port);
    assert_eq!(parse("nats://hub.example"), Ok(4222));
    assert_eq!(parse("nats://hub.example:4443"), Ok(4443));
    assert!(parse("nats://hub.example:443").is_err());
    assert!(rules.url("https://hub.example/").is_err());
    assert!(rules.url("https://hub.example:8443/").is_ok());
}

use std::collections::{BTreeMap, BTreeSet};

use culvert_base::net::HostName;
use culvert_edge_config::{EndpointBinding, Timeouts};
use culvert_policy::scheme::Scheme;

use super::*;

/// The result of a look-up of each of `places`: IDs of the endpoints, and the pools of their upstreams.
fn found(
    live: &LiveSnapshot,
    places: &BTreeMap<String, EndpointAddress>,
) -> BTreeMap<String, BTreeSet<(String, bool)>> {
    let group = |place: &EndpointAddress| match place {
        EndpointAddress::Port(port) => live.tcp.get(port),
        EndpointAddress::Host(Scheme::Http, host) => live.http.find(host),
        EndpointAddress::Host(Scheme::Https, host) => live.https.find(host),
        EndpointAddress::Host(_, host) => live.tls.find(host),
        EndpointAddress::Internal(account, scheme, host, port) => {
            live.internal(account, *scheme, host, *port)
        }
        EndpointAddress::Kubernetes(account, host, port) => live.kubernetes(account, host, *port),
    };
    let found = places.iter().filter_map(|(name, place)| {
        let group = group(place)?;
        let members = group
            .members()
            .map(|member| (member.endpoint.id.clone(), member.pool.is_some()));
        Some((name.clone(), members.collect()))
    });
    found.collect()
}

/// An endpoint with this id, whose address and upstream come from `n`.
fn endpoint(id: usize, n: usize) -> Endpoint {
    let scheme = Scheme::ALL[n % 4];
    let binding = match n {
        n if n.is_multiple_of(3) => EndpointBinding::Internal,
        n if n.is_multiple_of(7) => {
            EndpointBinding::Kubernetes(Arc::new([format!("k8sop_{}", n % 2)]))
        }
        _ => EndpointBinding::Public,
    };
    let host = match n % 5 {
        0 => "*.a.example".to_owned(),
        _ => format!("h{}.a.example", n % 7),
    };
    Endpoint {
        merge_slashes: true,
        timeouts: Timeouts::default(),
        in_flight: None,
        maintenance: None,
        id: format!("ep_{id:02}"),
        account: format!("ac_{}", n % 2).into(),
        owner: "usr_1".into(),
        scheme,
        binding,
        host: HostName::parse(&host).unwrap(),
        port: u16::try_from(1_000 + n % 6).unwrap(),
        upstream: (!n.is_multiple_of(11)).then(|| {
            let url = format!("http://127.0.0.1:{}", 2_000 + n % 4);
            Upstream::parse(&url, "http1").unwrap()
        }),
        upstreams: None,
        policy: None,
    }
}

#[test]
fn changes_compile_to_the_tables_of_a_whole_snapshot() {
    let mut compiler = SnapshotCompiler::default();
    let mut live = compiler.compile(Snapshot::default()).unwrap();
    let mut snapshot = Snapshot::default();
    let mut places = BTreeMap::new();
    let mut seed: usize = 7;
    let mut next = |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for round in 0..600 {
        let mut change = Change::default();
        let mut again = Change::default();
        for id in BTreeSet::from([next(12), next(12)]) {
            if next(3) == 0 {
                change.remove(format!("ep_{id:02}"));
                again.remove(format!("ep_{id:02}"));
            } else {
                let one = endpoint(id, next(1_000));
                let place = EndpointAddress::of(&one);
                places.insert(format!("{place:?}"), place);
                change.put(one.clone());
                again.put(one);
            }
        }
        live = compiler.apply(&live, change).unwrap();
        snapshot = snapshot.changed(again);
        let mut whole = SnapshotCompiler::default();
        let expected = whole.compile(snapshot.clone()).unwrap();
        assert_eq!(found(&live, &places), found(&expected, &places), "{round}");
        let pools = |compiler: &SnapshotCompiler| -> BTreeMap<String, usize> {
            let accounts = compiler.pools.0.iter();
            let pools = accounts.flat_map(|(account, pools)| {
                let named = move |upstream: &Upstream| format!("{account} {upstream:?}");
                pools
                    .iter()
                    .map(move |(upstream, (_, count))| (named(upstream), *count))
            });
            pools.collect()
        };
        assert_eq!(pools(&compiler), pools(&whole), "{round}");
    }
    assert!(places.len() > 50, "{}", places.len());
}

#[test]
fn a_connection_pool_survives_a_change_of_its_endpoint() {
    let mut compiler = SnapshotCompiler::default();
    let live = compiler
        .compile(Snapshot::builder().endpoint(endpoint(1, 1)).build())
        .unwrap();
    let pool = Arc::clone(compiler.pools().next().unwrap().1);
    let mut change = Change::default();
    // Another address, the same account and upstream.
    change.put(endpoint(1, 1 + 4 * 7 * 15 * 11 * 4));
    let live = compiler.apply(&live, change).unwrap();
    assert!(Arc::ptr_eq(&pool, compiler.pools().next().unwrap().1));
    let mut change = Change::default();
    change.remove("ep_01".to_owned());
    compiler.apply(&live, change).unwrap();
    assert_eq!(compiler.pools().count(), 0);
}

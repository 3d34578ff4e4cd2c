//! The options of TLS to a service, for each kind of endpoint. One table: the page about them is made from it, and each
//! option that it names is one of the API, of the agent's commands and of its files.

use clap::Command;
use serde_json::Value;

use super::layers::root;

const PAGE: &str = "docs/how-to/upstream-tls.md";
/// The text before and behind the table.
const BEGIN: &str = "The table is compared with the API and the commands.\n\n";
const END: &str = "\n- `ssh -R`:";

/// An option, and how each kind of endpoint has it.
struct EndpointOption {
    doc: &'static str,
    /// The field of `upstream_tls`.
    field: &'static str,
    flag: &'static str,
    /// The key in files, below `upstream`.
    key: &'static str,
}

/// Why endpoints of `ssh -R` and of libraries have none of them.
const OF_CLIENT: &str = "none: its client connects to the service";

const OPTIONS: &[EndpointOption] = &[
    EndpointOption {
        doc: "verify the certificate; the default",
        field: "verify",
        flag: "upstream-tls-verify",
        key: "tls_verify",
    },
    EndpointOption {
        doc: "authorities that are trusted instead of those of the machine",
        field: "ca",
        flag: "upstream-ca",
        key: "tls_verify_cas",
    },
    EndpointOption {
        doc: "name to ask for and to verify",
        field: "server_name",
        flag: "upstream-server-name",
        key: "tls_server_name",
    },
    EndpointOption {
        doc: "SHA-256 of the certificate or of its public key",
        field: "pins",
        flag: "upstream-pin",
        key: "tls_pins",
    },
    EndpointOption {
        doc: "certificate to present to the service",
        field: "client_certificate_id",
        flag: "upstream-cert",
        key: "tls_certificate",
    },
];

fn table() -> String {
    let head = "| | cloud endpoint: `upstream_tls` | agent | agent's file: `upstream` | `ssh -R`, libraries |\n|---|---|---|---|---|\n";
    let rows = OPTIONS.iter().map(|option| {
        let EndpointOption {
            doc,
            field,
            flag,
            key,
        } = option;
        format!("| {doc} | `{field}` | `--{flag}` | `{key}` | {OF_CLIENT} |\n")
    });
    head.to_owned() + &rows.collect::<String>()
}

#[test]
fn the_page_has_the_table() {
    let path = root().join(PAGE);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let wanted = format!("{before}{BEGIN}{}{END}{after}", table());
    if text != wanted {
        std::fs::write(&path, wanted).unwrap();
        panic!("{PAGE} was rewritten, look at it and commit it");
    }
}

#[test]
fn each_kind_of_endpoint_has_each_option() {
    let text = std::fs::read_to_string(root().join("docs/openapi.json")).unwrap();
    let api: Value = serde_json::from_str(&text).unwrap();
    let schemas = &api["components"]["schemas"];
    let fields = schemas["EndpointUpstreamTls"]["properties"]
        .as_object()
        .unwrap();
    let named: Vec<&str> = OPTIONS.iter().map(|option| option.field).collect();
    let mut shown: Vec<&str> = fields.keys().map(String::as_str).collect();
    let mut sorted = named.clone();
    shown.sort_unstable();
    sorted.sort_unstable();
    assert_eq!(shown, sorted, "each field is in the table");
    for schema in ["Endpoint", "EndpointCreate", "EndpointUpdate"] {
        let field = &schemas[schema]["properties"]["upstream_tls"];
        assert!(
            field.to_string().contains("EndpointUpstreamTls"),
            "{schema}: {field}"
        );
    }
    for kind in [
        culvert_tunnel::client::Protocol::Http,
        culvert_tunnel::client::Protocol::Tcp,
        culvert_tunnel::client::Protocol::Tls,
    ] {
        let command = culvert_agent::config::plan::with_endpoint(Command::new("endpoint"), kind);
        for option in OPTIONS {
            let has_flag = command
                .get_arguments()
                .any(|arg| arg.get_long() == Some(option.flag));
            assert!(has_flag, "{kind:?}: --{}", option.flag);
        }
    }
}

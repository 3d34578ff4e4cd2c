//! Examples in the help text of commands.

use clap::Command;

/// The examples of each command: the command line, and what it does.
type Examples = &'static [(&'static str, &'static str)];

/// Every visible command and its subcommands by their path, sorted. The operations of `culvert api` have generated ones.
const EXAMPLES: &[(&str, Examples)] = &[
    (
        "admin",
        &[
            (
                "culvert admin backup /var/backups/culvert",
                "Copy the data of a server that may run",
            ),
            (
                "culvert admin check",
                "Check the database and the audit log",
            ),
            (
                "culvert admin create-key",
                "Create another key of an admin if all are lost",
            ),
        ],
    ),
    (
        "admin acknowledge-restore",
        &[(
            "culvert admin acknowledge-restore",
            "Continue the audit log of a database that you restored",
        )],
    ),
    (
        "admin backup",
        &[
            (
                "culvert admin backup /var/backups/culvert",
                "Copy the data of a server that may run",
            ),
            (
                "culvert admin backup backup-1 --master-key-to /mnt/keys/master.key",
                "Copy the master key too, to another place",
            ),
        ],
    ),
    (
        "admin check",
        &[(
            "culvert admin check --data-dir restored",
            "Check a restored data directory before a server uses it",
        )],
    ),
    (
        "admin create-key",
        &[(
            "culvert admin create-key > key",
            "Save the token of a new key if all are lost",
        )],
    ),
    (
        "admin generate-token",
        &[(
            "culvert admin generate-token > token",
            "Save a token for CULVERT_BOOTSTRAP__API_KEY",
        )],
    ),
    (
        "admin lift-api-restriction",
        &[(
            "culvert admin lift-api-restriction",
            "Let every address call the API again",
        )],
    ),
    (
        "admin move",
        &[
            (
                "culvert admin move --to postgres://culvert@db.example.com/culvert",
                "Migrate to a database",
            ),
            ("culvert admin move --undo", "Use the SQLite data again"),
        ],
    ),
    (
        "admin rebuild-audit-tree",
        &[(
            "culvert admin rebuild-audit-tree",
            "Replace damaged parts of the tree of the audit log",
        )],
    ),
    (
        "admin rotate-audit-key",
        &[(
            "culvert admin rotate-audit-key > last.checkpoint",
            "Replace the key, and keep the head that both keys signed",
        )],
    ),
    (
        "admin rotate-master-key",
        &[(
            "culvert admin rotate-master-key",
            "Encrypt all secrets with a new key while no server runs",
        )],
    ),
    (
        "api",
        &[
            ("culvert api endpoints list --table", "List endpoints"),
            (
                "culvert endpoints list --table",
                "Short for the same command",
            ),
            (
                "culvert api endpoints create --url https://app.example.com --upstream-url localhost:3000",
                "Forward to a service that the server reaches",
            ),
            (
                "culvert api credentials create",
                "Create a token for agents",
            ),
        ],
    ),
    (
        "apply",
        &[
            (
                "culvert apply --file objects.yaml",
                "Show the plan, ask, and change the server",
            ),
            (
                "culvert apply --file objects/ --yes",
                "Change it without a question",
            ),
        ],
    ),
    (
        "audit",
        &[
            (
                "culvert audit verify",
                "Check that no event of the log was changed or removed",
            ),
            ("culvert audit who ep_2a3b", "Show who changed an object"),
        ],
    ),
    (
        "audit check-proof",
        &[(
            "culvert audit check-proof event.tlog-proof --origin-key origin.example.com+1a2b3c4d+AbCd",
            "Verify a proof with the key of the log",
        )],
    ),
    (
        "audit checkpoint",
        &[(
            "culvert audit checkpoint > kept.checkpoint",
            "Keep a head of the log, on another machine",
        )],
    ),
    (
        "audit export",
        &[(
            "culvert audit export --from 2026-01-01T00:00:00Z > events.jsonl",
            "Save the events since a time",
        )],
    ),
    (
        "audit key",
        &[(
            "culvert audit key > origin.key",
            "Save the key for those who check proofs",
        )],
    ),
    (
        "audit prove",
        &[(
            "culvert audit prove ev_2a3b > event.tlog-proof",
            "Save the proof of an event",
        )],
    ),
    (
        "audit verify",
        &[
            (
                "culvert audit verify",
                "Check that no event of the log was changed or removed",
            ),
            (
                "culvert audit verify --head 1100:5ae8d0c41b7f",
                "Check that the log still has a head that you recorded",
            ),
        ],
    ),
    (
        "audit who",
        &[("culvert audit who ep_2a3b", "Show who changed an object")],
    ),
    (
        "completions",
        &[
            (
                "culvert completions bash > /etc/bash_completion.d/culvert",
                "Install them for bash",
            ),
            (
                "culvert completions fish > ~/.config/fish/completions/culvert.fish",
                "Install them for fish",
            ),
            (
                "culvert completions zsh > ~/.zfunc/_culvert",
                "Install them for zsh, if the folder is in its fpath",
            ),
        ],
    ),
    (
        "config",
        &[
            (
                "culvert config check",
                "Validate the settings of the server",
            ),
            ("culvert config show", "Print the settings in effect"),
            (
                "culvert config add-authtoken --server tunnel.example.com --ca ca.pem",
                "Save the token of agents, and where they connect to",
            ),
        ],
    ),
    (
        "config add-api-key",
        &[("culvert config add-api-key < key", "Save a key from a file")],
    ),
    (
        "config add-authtoken",
        &[(
            "culvert config add-authtoken --server tunnel.example.com --ca ca.pem < token",
            "Save the token of agents, and where they connect to",
        )],
    ),
    (
        "config add-connect-url",
        &[(
            "culvert config add-connect-url tunnel.example.com:8441",
            "Save where agents connect to",
        )],
    ),
    (
        "config check",
        &[
            (
                "culvert config check",
                "Validate the settings of the server",
            ),
            (
                "culvert config check --config agent.yml",
                "Validate the file of an agent",
            ),
        ],
    ),
    (
        "config show",
        &[
            ("culvert config show", "Print the settings in effect"),
            (
                "culvert config show --config culvert.toml",
                "Print those of another file",
            ),
        ],
    ),
    (
        "demo",
        &[
            ("culvert demo", "Run it until Ctrl+C"),
            ("culvert demo --once", "Exit after the first event"),
        ],
    ),
    (
        "diff",
        &[(
            "culvert diff --file objects.yaml",
            "Print differences; exit with 3 if there are some",
        )],
    ),
    (
        "doctor",
        &[
            (
                "culvert doctor",
                "Examine the installation of ./culvert.toml or /etc/culvert/culvert.toml",
            ),
            (
                "sudo -u culvert culvert doctor",
                "Examine that of the package",
            ),
            (
                "culvert doctor https://shop.example.com",
                "Examine a URL as its clients see it",
            ),
        ],
    ),
    (
        "events",
        &[
            ("culvert events tail", "Print events as they occur"),
            ("culvert events kinds", "List types of events"),
        ],
    ),
    (
        "events kinds",
        &[("culvert events kinds", "List types of events")],
    ),
    (
        "events query",
        &[
            (
                "culvert events query 5xx shop.example.com last 24h",
                "Find failed requests to a host",
            ),
            (
                "culvert events query --type api_key_created.v0 --limit 20",
                "Find events of a type",
            ),
        ],
    ),
    (
        "events replay",
        &[(
            "culvert events replay --destination ed_2a3b --from 2026-01-01T00:00:00Z --wait",
            "Send the events since a time to a destination again",
        )],
    ),
    (
        "events schema",
        &[(
            "culvert events schema http_request_complete.v0",
            "Print the schema of a type",
        )],
    ),
    (
        "events tail",
        &[
            ("culvert events tail", "Print events as they occur"),
            (
                "culvert events tail --type http_request_complete.v0 --fields http.request.url.path",
                "Print one field of requests",
            ),
        ],
    ),
    (
        "health",
        &[(
            "culvert health",
            "Exit with 0 if the server of these settings is ready",
        )],
    ),
    (
        "http",
        &[
            (
                "culvert http 3000",
                "Give the service at port 3000 of this machine a public URL",
            ),
            (
                "culvert http 3000 --subdomain app",
                "Choose the name below the platform domain",
            ),
            (
                "culvert http 3000 --basic-auth me:password-1",
                "Require a user and a password",
            ),
            (
                "culvert http 3000 --server tunnel.example.com --ca ca.pem",
                "Use a server on another machine",
            ),
        ],
    ),
    (
        "import",
        &[(
            "culvert import frpc.toml --out imported",
            "Write files for `culvert apply` and the agent",
        )],
    ),
    (
        "login",
        &[
            (
                "culvert login https://api.example.com:8445",
                "Ask for the key, check and save it",
            ),
            (
                "culvert login http://127.0.0.1:8420 < culvert-data/bootstrap-key",
                "Save the first key",
            ),
        ],
    ),
    ("logout", &[("culvert logout", "Remove the saved key")]),
    (
        "man",
        &[(
            "culvert man /usr/local/share/man/man1",
            "Write a page for each command",
        )],
    ),
    (
        "openapi",
        &[("culvert openapi > openapi.json", "Save the document")],
    ),
    (
        "policy",
        &[
            (
                "culvert policy check policy.yaml",
                "Print the problems of a traffic policy with their lines",
            ),
            (
                "culvert policy check --scheme tcp --format json policies/*.yaml",
                "Check policies of TCP endpoints for another program",
            ),
        ],
    ),
    (
        "policy check",
        &[(
            "culvert policy check policy.yaml",
            "Print the problems of a traffic policy with their lines",
        )],
    ),
    (
        "policy lsp",
        &[(
            "culvert policy lsp",
            "Serve an editor on standard input and output",
        )],
    ),
    (
        "serve",
        &[
            (
                "culvert serve",
                "Run with data in ./culvert-data and all defaults",
            ),
            (
                "culvert serve --config /etc/culvert/culvert.toml",
                "Run with a settings file",
            ),
            (
                "culvert serve --edge-domain tunnel.example.com --agents-names tunnel.example.com",
                "Name the platform domain and the host of agents",
            ),
        ],
    ),
    (
        "service",
        &[(
            "sudo culvert service install serve",
            "Install a unit that runs the server",
        )],
    ),
    (
        "service install",
        &[
            (
                "sudo culvert service install serve",
                "Install a unit that runs the server",
            ),
            (
                "culvert service install --user --config agent.yml",
                "Run an agent as a service of this user",
            ),
        ],
    ),
    (
        "service status",
        &[(
            "culvert service status",
            "Show the services of this machine",
        )],
    ),
    (
        "service uninstall",
        &[(
            "sudo culvert service uninstall",
            "Stop the service, and keep its data",
        )],
    ),
    (
        "setup",
        &[
            ("sudo culvert setup", "Ask for everything"),
            (
                "culvert setup --yes setup.toml --dry-run",
                "Show what these values lead to",
            ),
        ],
    ),
    (
        "start",
        &[
            (
                "culvert start --config agent.yml",
                "Start all endpoints of the file",
            ),
            ("culvert start --config agent.yml web", "Start one of them"),
        ],
    ),
    (
        "status",
        &[(
            "culvert status",
            "Show the state of the server, with the saved or the first key",
        )],
    ),
    (
        "tcp",
        &[
            ("culvert tcp 5432", "Give a database a public address"),
            (
                "culvert tcp 22 --remote-addr tunnel.example.com:20022",
                "Choose the address",
            ),
        ],
    ),
    (
        "tls",
        &[
            (
                "culvert tls 443",
                "Forward TLS to a service that terminates it",
            ),
            (
                "culvert tls 8080 --crt cert.pem --key key.pem",
                "Terminate TLS in the agent",
            ),
        ],
    ),
    (
        "upgrade",
        &[(
            "culvert upgrade --check",
            "Say what the first start of this version changes",
        )],
    ),
    ("version", &[("culvert version", "Print the version")]),
    (
        "whoami",
        &[("culvert whoami", "Show whose key is used, and its rights")],
    ),
    (
        "witness",
        &[(
            "culvert witness serve --name witness.example.com/one --listen 0.0.0.0:8443",
            "Run a witness",
        )],
    ),
    (
        "witness add",
        &[(
            "culvert witness add origin.example.com+1a2b3c4d+AbCd",
            "Sign heads of the log with this key",
        )],
    ),
    (
        "witness remove",
        &[(
            "culvert witness remove origin.example.com",
            "Sign no more heads of the log",
        )],
    ),
    (
        "witness serve",
        &[(
            "culvert witness serve --name witness.example.com/one --listen 0.0.0.0:8443",
            "Run a witness",
        )],
    ),
];

/// Adds the examples of a command, and those of its subcommands, below their other help.
pub(super) fn with_examples(command: Command) -> Command {
    let path = command.get_name().to_owned();
    at(command, &path)
}

/// The same for the command with this path.
fn at(mut command: Command, path: &str) -> Command {
    let children = command.get_subcommands().map(Command::get_name);
    let children: Vec<String> = children.map(str::to_owned).collect();
    for child in children {
        let below = format!("{path} {child}");
        command = command.mut_subcommand(child, |it| at(it, &below));
    }
    let examples = examples_of(&command, path);
    if examples.is_empty() {
        return command;
    }
    let mut text = match command.get_after_help() {
        Some(before) => format!("{before}\n\n"),
        None => String::new(),
    };
    text.push_str("Examples:");
    for (line, what) in examples {
        text.push_str(&format!("\n  # {what}\n  {line}"));
    }
    command.after_help(text)
}

/// The examples of a command: those of the table, or for an operation of the API the one that its form gives.
fn examples_of(command: &Command, path: &str) -> Vec<(String, String)> {
    if let Some((_, examples)) = EXAMPLES.iter().find(|(name, _)| *name == path) {
        let owned = |(line, what): &(&str, &str)| ((*line).to_owned(), (*what).to_owned());
        return examples.iter().map(owned).collect();
    }
    let is_operation = path.starts_with("api ") && !command.has_subcommands();
    is_operation
        .then(|| operation(command, path))
        .into_iter()
        .collect()
}

/// The example of an operation of the API.
fn operation(command: &Command, path: &str) -> (String, String) {
    let mut line = format!("culvert {path}");
    for argument in command.get_positionals() {
        line.push_str(&format!(" {}", argument.get_id().as_str().to_uppercase()));
    }
    let has = |name: &str| command.get_arguments().any(|it| it.get_id() == name);
    let what = match (has("json"), has("all-pages")) {
        (true, _) => {
            line.push_str(" --json @body.json");
            "Take the fields from a file; each has a flag too"
        }
        (false, true) => {
            line.push_str(" --all-pages --table");
            "Print all of them as a table"
        }
        (false, false) => "Print the response as JSON",
    };
    (line, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All visible commands with their paths, in the order of the table; without the operations of the API.
    fn paths(command: &Command, above: &str, into: &mut Vec<String>) {
        for child in command.get_subcommands().filter(|it| !it.is_hide_set()) {
            let path = format!("{above}{}", child.get_name());
            if path != "api" {
                paths(child, &format!("{path} "), into);
            }
            into.push(path);
        }
    }

    /// Whether the command line accepts an example.
    fn check(root: &mut Command, line: &str) {
        // What follows a redirection is a file of the shell.
        let plain = line.split(['<', '>']).next().unwrap();
        let words: Vec<String> = plain.split_whitespace().map(str::to_owned).collect();
        let at = words.iter().position(|word| word == "culvert").unwrap();
        // `sudo -u culvert culvert`
        let at = at + usize::from(words.get(at + 1).is_some_and(|it| it == "culvert"));
        let words = super::super::expanded(root, &words[at + 1..]);
        let all = std::iter::once("culvert").chain(words.iter().map(String::as_str));
        let parsed = root.try_get_matches_from_mut(all);
        assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
    }

    #[test]
    fn every_command_has_examples_that_the_command_line_accepts() {
        let mut root = super::super::command();
        let mut shown = Vec::new();
        paths(&root, "", &mut shown);
        shown.sort();
        let listed: Vec<&str> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        assert_eq!(listed, shown);
        for (line, _) in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            check(&mut root, line);
        }
    }

    #[test]
    fn every_operation_of_the_api_has_an_example_that_the_command_line_accepts() {
        let mut root = super::super::command();
        let api = root.find_subcommand("api").unwrap().clone();
        let mut leaves = 0;
        for group in api.get_subcommands() {
            let children: Vec<&Command> = match group.has_subcommands() {
                true => group.get_subcommands().collect(),
                false => vec![group],
            };
            for leaf in children {
                let help = leaf.get_after_help().unwrap().to_string();
                let line = help.lines().last().unwrap().trim();
                let end = format!(" {}", leaf.get_name());
                assert!(
                    line.starts_with("culvert api ") && line.contains(&end),
                    "{help}"
                );
                check(&mut root, line);
                leaves += 1;
            }
        }
        assert!(leaves > 100, "{leaves}");
    }
}

//! Examples in the help text of commands.

use clap::Command;

/// The examples of each command: the command line, and what it does.
type Examples = &'static [(&'static str, &'static str)];

/// Every visible command, sorted by name.
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
];

/// Adds the examples of a command below its other help.
pub(super) fn with_examples(command: Command) -> Command {
    let examples = EXAMPLES
        .iter()
        .find(|(name, _)| *name == command.get_name());
    let Some((_, examples)) = examples else {
        return command;
    };
    let mut text = match command.get_after_help() {
        Some(before) => format!("{before}\n\n"),
        None => String::new(),
    };
    text.push_str("Examples:");
    for (line, what) in *examples {
        text.push_str(&format!("\n  # {what}\n  {line}"));
    }
    command.after_help(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_examples_that_the_command_line_accepts() {
        let root = super::super::command();
        let shown = root.get_subcommands().filter(|it| !it.is_hide_set());
        let names: Vec<&str> = shown.map(Command::get_name).collect();
        let listed: Vec<&str> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        assert_eq!(listed, names);
        for (name, examples) in EXAMPLES {
            for (line, _) in *examples {
                // What follows a redirection is a file of the shell.
                let line = line.split(['<', '>']).next().unwrap();
                let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
                let at = words.iter().position(|word| word == "culvert").unwrap();
                // `sudo -u culvert culvert`
                let at = at + usize::from(words.get(at + 1).is_some_and(|it| it == "culvert"));
                let words = super::super::expanded(&root, &words[at + 1..]);
                let all = std::iter::once("culvert").chain(words.iter().map(String::as_str));
                let parsed = super::super::command().try_get_matches_from(all);
                assert!(parsed.is_ok(), "{name}: {line}: {}", parsed.unwrap_err());
            }
        }
    }
}

//! The integration tests: the real server, in this process or as the real binary, driven at the edges
//! that users touch. SQLite always; PostgreSQL where `CULVERT_TEST_POSTGRES_URL` or the local default is
//! reachable, else each such test reports that half as ignored.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "one test binary: nothing is public, what is skipped is said, and a test that cannot go on should stop"
)]

mod access_on_nodes;
mod acme;
mod agent_clients;
mod agent_matrix;
mod agent_options;
mod agent_sessions;
mod agents;
mod alerts;
mod applied;
mod apply;
mod apply_secrets;
mod attempts;
mod audit_key_given;
mod audit_log;
mod audit_proofs;
mod audit_restored;
mod audit_witnesses;
mod backup;
mod captures;
mod certificate_checks;
mod clients;
mod command_line;
mod command_login;
mod command_service;
mod config_check;
mod console_sign_in;
mod crowds;
mod custom_domain;
mod data_directory;
mod database_errors;
mod demo;
mod destination_states;
mod destinations;
mod dns_records;
mod doctor;
mod documents;
mod event_log;
mod event_nodes;
mod event_search_rights;
mod events_arrive;
mod every_kind;
mod fail_over;
mod faults;
mod formats;
mod full_disk;
mod go_agent;
mod growing;
mod guides;
mod harness;
mod import_cycles;
mod ip_restrictions;
mod kept_events;
mod kill;
mod kubernetes;
mod layers;
mod leaked_tokens;
mod lifecycle;
mod list_filters;
mod listed;
mod login;
mod messages;
mod mistakes;
mod move_to_postgres;
mod ngrok_config;
mod nodes;
mod open_files;
mod outage;
mod own_agent;
mod own_certificates;
mod packaging;
mod policy;
mod policy_files;
mod proxies;
mod public_ports;
mod races;
mod read_back;
mod referrers;
mod refused_traffic;
mod reload;
mod repeated;
mod reserved_addresses;
mod restart;
mod rotate;
mod secrets;
mod server_events;
mod shape;
mod ssh_reverse;
mod statistics;
mod stop;
mod supervision;
mod tail;
mod traffic_replay;
mod unauthenticated_agents;
mod verify_webhook;
mod without_database;
mod witness;
mod words;
mod workflows;

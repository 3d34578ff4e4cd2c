//! Names below the platform domain that the installation itself uses. Accounts can neither serve nor reserve
//! them.

use culvert_base::net::HostName;
use culvert_resources::settings::Settings;
use url::Url;

/// First labels below the platform domain that belong to the installation whatever `edge.reserved_names` says. The names
/// below them belong to it too, such as `1.tcp.`.
const LABELS: [&str; 2] = ["acme-challenge", "tcp"];

/// The label under which authorities look up the proof of domain ownership.
const CHALLENGE: &str = "_acme-challenge";

/// Whether a name outside of the platform's domain, or a name that a wildcard covers, is one of the installation's.
/// Only admins reserve it.
pub fn is_own_elsewhere(settings: &Settings, name: &HostName) -> bool {
    let base = name.strip_prefix("*.").unwrap_or(name);
    names(settings)
        .filter(|own| !own.is_within(&settings.edge_domain))
        .any(|own| *own == *base || name.is_wildcard() && own.is_within(base))
}

/// Whether a name, or a name that a wildcard covers, belongs to the installation: the names above, the host
/// of the management API, and the names that agents connect to.
pub(crate) fn is_own(settings: &Settings, name: &HostName) -> bool {
    let base = name.strip_prefix("*.").unwrap_or(name);
    let platform = &*settings.edge_domain;
    let above = base
        .strip_suffix(platform)
        .and_then(|rest| rest.strip_suffix('.'));
    let label = above.map(|above| above.rsplit_once('.').map_or(above, |(_, last)| last));
    if label.is_some_and(|label| is_reserved(settings, label)) {
        return true;
    }
    if above.is_some_and(|above| above.split('.').any(|label| label == CHALLENGE)) {
        return true;
    }
    names(settings)
        .filter(|own| own.is_within(platform) && **own != *platform)
        .any(|own| *own == *base || name.is_wildcard() && own.is_within(base))
}

fn is_reserved(settings: &Settings, label: &str) -> bool {
    LABELS.contains(&label) || settings.reserved_names.iter().any(|name| name == label)
}

/// A sentence for the refusal of one of the installation's names.
pub(crate) fn refusal(settings: &Settings, name: &HostName) -> String {
    let mut labels: Vec<&str> = settings.reserved_names.iter().map(|it| &**it).collect();
    labels.extend(LABELS);
    labels.sort_unstable();
    labels.dedup();
    format!(
        "The name `{name}` is reserved for the installation, like those of its listeners and these directly below `{}` (`edge.reserved_names`): {}.",
        settings.edge_domain,
        labels.join(", ")
    )
}

/// The configured names of the installation, and the host of the management API.
fn names(settings: &Settings) -> impl Iterator<Item = HostName> {
    let api = Url::parse(&settings.base_url).ok();
    let api = api.as_ref().and_then(Url::host_str).map(str::to_owned);
    let own = settings.own_names.iter().cloned().chain(api);
    own.filter_map(|own| HostName::parse(&own).ok())
}

//! Known paths that are only refused (contract: management API 2.27, 2.28): paths that the public service
//! retired, and paths that a self-hosted installation does not need.

use culvert_base::{Code, code};

/// First path segments, and the code for every call of them.
const RETIRED: &[(&str, Code)] = &[
    ("abuse_reports", code::ABUSE_REPORTS_RETIRED),
    ("backends", code::EDGES_RETIRED),
    ("edges", code::EDGES_RETIRED),
    (
        "endpoint_configurations",
        code::ENDPOINT_CONFIGURATIONS_RETIRED,
    ),
];

/// The code for every call of `path` and of all paths below it, if it is such a path.
pub fn retired(path: &str) -> Option<Code> {
    let first = path.strip_prefix('/')?.split('/').next()?;
    RETIRED
        .iter()
        .find_map(|(name, code)| (*name == first).then_some(*code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_retired_with_its_subpaths() {
        for (path, code) in [
            ("/edges", Some(7008)),
            ("/edges/", Some(7008)),
            ("/edges/https/edghts_1/routes", Some(7008)),
            ("/backends/failover", Some(7008)),
            ("/endpoint_configurations/ec_1", Some(1608)),
            ("/abuse_reports/abrp_1", Some(221)),
            ("/edgesx", None),
            ("/x/edges", None),
            ("edges", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(retired(path).map(Code::number), code, "{path}");
        }
    }
}

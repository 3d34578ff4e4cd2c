//! Paths and methods to what answers them (contract: management API 1.1, 1.2 rows 1 and 2).
//!
//! The table is control's operations plus the few paths that are not operations. Matching knows only
//! what is listed: a trailing slash, an empty segment or another letter case is another path.

use culvert_base::{Code, Fault};
use culvert_control::{Operation, retired};
use http::{HeaderValue, Method};

use crate::query;

/// The live tail of events.
pub const TAIL_PATH: &str = "/events/tail";
/// The OpenAPI document.
pub const OPENAPI_PATH: &str = "/openapi.json";
/// Whether the process lives.
pub const ALIVE_PATH: &str = "/healthz";
/// Whether every part is usable.
pub const READY_PATH: &str = "/readyz";

/// The methods that clients used on retired paths.
const RETIRED_METHODS: &str = "GET, POST, PUT, PATCH, DELETE";

/// What answers a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Route {
    Operation(&'static Operation),
    /// Every method is refused with this, once the caller is known.
    Retired(Code),
    Tail,
    OpenApi,
    Alive,
    Ready,
}

/// Everything that answers, by path.
#[derive(Debug)]
pub(crate) struct Routes(matchit::Router<Place>);

/// One path.
#[derive(Debug)]
struct Place {
    routes: Vec<(Method, Route)>,
    methods: HeaderValue,
}

/// What a path and a method led to.
#[derive(Debug)]
pub(crate) enum Found {
    /// A route and the values of its path's parameters.
    Route(Route, Vec<String>),
    /// The path has other methods, as an `allow` header lists them.
    OtherMethods(HeaderValue),
    /// No such path.
    Nothing,
}

impl Routes {
    /// The table over `operations`. Fails when two of them want the same path and method.
    pub(crate) fn new(operations: &'static [Operation]) -> Result<Self, Fault> {
        let fixed = [
            (TAIL_PATH, Route::Tail),
            (OPENAPI_PATH, Route::OpenApi),
            (ALIVE_PATH, Route::Alive),
            (READY_PATH, Route::Ready),
        ];
        let listed = operations.iter().map(|operation| {
            let method = match operation.method {
                culvert_control::Method::Get => Method::GET,
                culvert_control::Method::Post => Method::POST,
                culvert_control::Method::Patch => Method::PATCH,
                culvert_control::Method::Delete => Method::DELETE,
            };
            (operation.path.as_str(), method, Route::Operation(operation))
        });
        let rows = fixed
            .into_iter()
            .map(|(path, route)| (path, Method::GET, route))
            .chain(listed);

        let mut places: Vec<(String, Vec<(Method, Route)>)> = Vec::new();
        for (path, method, route) in rows {
            let pattern = unnamed(path);
            let index = match places.iter().position(|(other, _)| *other == pattern) {
                Some(index) => index,
                None => {
                    places.push((pattern, Vec::new()));
                    places.len() - 1
                }
            };
            let Some((pattern, routes)) = places.get_mut(index) else {
                continue;
            };
            if routes.iter().any(|(other, _)| *other == method) {
                return Err(Fault::bare(format!("listing {method} {pattern} twice")));
            }
            routes.push((method, route));
        }

        let mut router = matchit::Router::new();
        for (pattern, routes) in places {
            let names: Vec<&str> = routes.iter().map(|(method, _)| method.as_str()).collect();
            let methods = HeaderValue::from_str(&names.join(", "))
                .map_err(|error| Fault::new("listing methods", error))?;
            router
                .insert(pattern, Place { routes, methods })
                .map_err(|error| Fault::new("listing a path", error))?;
        }
        Ok(Self(router))
    }

    /// What answers `method` on `path`, which is the path as sent.
    pub(crate) fn find(&self, method: &Method, path: &str) -> Found {
        let path = folded(path);
        let Ok(matched) = self.0.at(path) else {
            return match retired(path) {
                // Of `OPTIONS` only preflights are known.
                Some(code) if method != Method::OPTIONS => {
                    Found::Route(Route::Retired(code), Vec::new())
                }
                _ => Found::Nothing,
            };
        };
        let place = matched.value;
        match place.routes.iter().find(|(listed, _)| listed == method) {
            Some((_, route)) => Found::Route(
                *route,
                matched
                    .params
                    .iter()
                    .map(|(_, value)| query::segment(value))
                    .collect(),
            ),
            None => Found::OtherMethods(place.methods.clone()),
        }
    }

    /// The methods of `path`, if it is known.
    pub(crate) fn methods(&self, path: &str) -> Option<HeaderValue> {
        let path = folded(path);
        match self.0.at(path) {
            Ok(matched) => Some(matched.value.methods.clone()),
            Err(_) => retired(path).map(|_| HeaderValue::from_static(RETIRED_METHODS)),
        }
    }
}

/// Two leading slashes are one: a client that joins a base ending in `/` with a path sends two.
fn folded(path: &str) -> &str {
    match path.strip_prefix('/') {
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    }
}

/// A path pattern whose parameters are numbered, so that two operations may name the same segment
/// differently.
fn unnamed(path: &str) -> String {
    let mut n_parameters = 0;
    let segments: Vec<String> = path
        .split('/')
        .map(|segment| {
            if segment.starts_with('{') {
                n_parameters += 1;
                format!("{{p{n_parameters}}}")
            } else {
                segment.to_owned()
            }
        })
        .collect();
    segments.join("/")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn routes() -> Routes {
        Routes::new(culvert_control::operations()).unwrap()
    }

    fn told(path: &str) -> String {
        match routes().find(&Method::GET, path) {
            Found::Route(Route::Operation(operation), values) => {
                format!("{} {}", unnamed(&operation.path), values.join(","))
            }
            Found::Route(route, _) => format!("{route:?}"),
            Found::OtherMethods(methods) => methods.to_str().unwrap().to_owned(),
            Found::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn only_what_is_listed_is_known() {
        for (path, expected) in [
            ("/healthz", "Alive"),
            ("//healthz", "Alive"),
            ("/api_keys", "/api_keys "),
            ("//api_keys", "/api_keys "),
            ("/api_keys/ak%5F1", "/api_keys/{p1} ak_1"),
            ("/api_keys/a%2Fb", "/api_keys/{p1} a/b"),
            ("/api_keys/%ff", "/api_keys/{p1} %ff"),
            ("///api_keys", "nothing"),
            ("/api_keys/", "nothing"),
            ("/api_keys//", "nothing"),
            ("/api_keys/x/y", "nothing"),
            ("/API_KEYS", "nothing"),
            ("/{id}", "nothing"),
            ("/p1", "nothing"),
            ("", "nothing"),
            ("*", "nothing"),
            ("//", "/ "),
        ] {
            assert_eq!(told(path), expected, "{path}");
        }
    }

    #[test]
    fn a_source_type_with_its_dot_is_one_segment() {
        assert_eq!(
            told("/event_subscriptions/esb_1/sources/http_request_complete.v0"),
            "/event_subscriptions/{p1}/sources/{p2} esb_1,http_request_complete.v0"
        );
    }

    #[test]
    fn the_methods_of_a_path_are_told() {
        let methods = |path: &str| {
            routes()
                .methods(path)
                .map(|m| m.to_str().unwrap().to_owned())
        };
        assert_eq!(methods("/nope"), None);
        assert_eq!(methods("/healthz").unwrap(), "GET");
        let mut of_keys: Vec<String> = methods("/api_keys/x")
            .unwrap()
            .split(", ")
            .map(str::to_owned)
            .collect();
        of_keys.sort();
        assert_eq!(of_keys, ["DELETE", "GET", "PATCH"]);
    }

    proptest! {
        #[test]
        fn any_path_is_found_or_not(path in "(/[a-z_{}%*.:]{0,12}){0,6}.{0,8}") {
            let known = matches!(routes().find(&Method::GET, &path), Found::Route(..) | Found::OtherMethods(_));
            prop_assert_eq!(known, routes().methods(&path).is_some());
        }
    }
}

//! Routing of paths and methods (contract: management API 1.1, 1.2 rows 1 and 2).
//!
//! The table contains control's operations and a few other paths. Matching is exact: a trailing slash, an empty
//! segment or different letter case is another path.

use culvert_base::{Code, Fault};
use culvert_resources::operation::{self, EVENTS_PATH, Operation};
use http::{HeaderValue, Method};

use crate::query;
use crate::tombstones::retired;

/// Path of the live event tail.
pub const TAIL_PATH: &str = "/events/tail";
/// Path of the stream of kept events.
pub const FOLLOW_PATH: &str = "/events/follow";
/// The paths of the audit log as a transparency log: `checkpoint`, and `tile/` with the address of a tile.
pub const AUDIT_LOG_PATHS: &str = "/audit/log/{*path}";
/// Path of the OpenAPI 3.1 document.
pub const OPENAPI_PATH: &str = "/openapi.json";
/// Path of the same document in OpenAPI 3.0.
pub const OPENAPI_3_0_PATH: &str = "/openapi-3.0.json";
/// Path of the liveness check.
pub const ALIVE_PATH: &str = "/healthz";
/// Path of the readiness check.
pub const READY_PATH: &str = "/readyz";

/// A path that calls an operation with a query parameter set to `true`. Its responses are of another kind than those
/// of the operation without the parameter: client generators read one kind per method and path, so the OpenAPI
/// document lists this path, and the operation without the parameter.
#[derive(Debug)]
pub struct Preset {
    /// Path and method.
    pub path: &'static str,
    /// The method of both.
    pub method: operation::Method,
    /// Path of the operation that it calls.
    pub of: &'static str,
    /// The query parameter that it sets.
    pub parameter: &'static str,
    /// Its ID in the OpenAPI document.
    pub id: &'static str,
    /// What it does, in one sentence.
    pub doc: &'static str,
}

/// All of them.
pub static PRESETS: [Preset; 2] = [
    Preset {
        path: "/api_keys/dry_run",
        method: operation::Method::Post,
        of: "/api_keys",
        parameter: "dry_run",
        id: "api_keys_dry_run",
        doc: "Shows what an API key could do, and stores nothing. Equals `POST /api_keys?dry_run=true`.",
    },
    Preset {
        path: FOLLOW_PATH,
        method: operation::Method::Get,
        of: EVENTS_PATH,
        parameter: "follow",
        id: "events_follow",
        doc: "Streams kept events as server-sent events, oldest first, and continues with new ones. The stream begins at \
              `cursor`, `from` or now, and resumes with `Last-Event-ID`. Equals `GET /events?follow=true`.",
    },
];

/// The methods that clients used on retired paths.
const RETIRED_METHODS: &str = "GET, POST, PUT, PATCH, DELETE";

/// The handler of a request.
#[derive(Debug)]
pub enum Route<S: 'static> {
    /// An operation of the table.
    Operation(&'static Operation<S>),
    /// An operation of the table with a query parameter set.
    Preset(&'static Operation<S>, &'static Preset),
    /// All methods return this error, after authentication.
    Retired(Code),
    /// The live event tail.
    Tail,
    /// The audit log as a transparency log.
    AuditLog,
    /// The OpenAPI 3.1 document.
    OpenApi,
    /// The same document in OpenAPI 3.0.
    OpenApi30,
    /// The liveness check.
    Alive,
    /// The readiness check.
    Ready,
}

/// The routes of a path.
type Methods<S> = Vec<(Method, Route<S>)>;

impl<S> Clone for Route<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Route<S> {}

/// All routes by path.
#[derive(Debug)]
pub struct Routes<S: 'static>(matchit::Router<PathRoutes<S>>);

/// The routes of one path.
#[derive(Debug)]
struct PathRoutes<S: 'static> {
    routes: Vec<(Method, Route<S>)>,
    methods: HeaderValue,
}

/// The result of a look-up.
#[derive(Debug)]
pub enum Found<S: 'static> {
    /// A route, with the values of the path parameters.
    Route(Route<S>, Vec<String>),
    /// The path exists with other methods.
    OtherMethods(OtherMethods),
    /// The path does not exist.
    Nothing,
}

/// A path that exists with other methods.
#[derive(Debug)]
pub struct OtherMethods {
    /// The methods, as in an `allow` header.
    pub allow: HeaderValue,
    /// The kind of the object in the path, such as `api_key`, if it names one.
    pub kind: Option<&'static str>,
    /// The value of the first path parameter.
    pub id: Option<String>,
}

impl<S> Route<S> {
    /// Whether `HEAD` is answered like `GET`. Streams have no end.
    fn has_head(&self) -> bool {
        match self {
            Self::Tail | Self::Retired(_) => false,
            Self::Preset(_, preset) => preset.path != FOLLOW_PATH,
            _ => true,
        }
    }
}

impl<S> Routes<S> {
    /// The table for `operations` and the fixed paths. Fails on duplicate paths and methods.
    pub fn new(operations: &'static [Operation<S>]) -> Result<Self, Fault> {
        let fixed = [
            (TAIL_PATH, Route::Tail),
            (AUDIT_LOG_PATHS, Route::AuditLog),
            (OPENAPI_PATH, Route::OpenApi),
            (OPENAPI_3_0_PATH, Route::OpenApi30),
            (ALIVE_PATH, Route::Alive),
            (READY_PATH, Route::Ready),
        ];
        let listed = operations.iter().map(|operation| {
            let method = method_of(operation.method);
            (operation.path.as_str(), method, Route::Operation(operation))
        });
        let presets = PRESETS.iter().filter_map(|preset| {
            let is_called = |it: &&Operation<S>| it.path == preset.of && it.method == preset.method;
            let operation = operations.iter().find(is_called)?;
            let method = method_of(preset.method);
            Some((preset.path, method, Route::Preset(operation, preset)))
        });
        let rows = fixed
            .into_iter()
            .map(|(path, route)| (path, Method::GET, route))
            .chain(listed)
            .chain(presets);

        let mut places: Vec<(String, Methods<S>)> = Vec::new();
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
            let mut names: Vec<&str> = routes.iter().map(|(method, _)| method.as_str()).collect();
            if routes
                .iter()
                .any(|(method, route)| *method == Method::GET && route.has_head())
            {
                names.push(Method::HEAD.as_str());
            }
            names.push(Method::OPTIONS.as_str());
            let methods = HeaderValue::from_str(&names.join(", "))
                .map_err(|error| Fault::new("listing methods", error))?;
            router
                .insert(pattern, PathRoutes { routes, methods })
                .map_err(|error| Fault::new("listing a path", error))?;
        }
        Ok(Self(router))
    }

    /// The route of `method` and `path`, which is not decoded.
    pub fn find(&self, method: &Method, path: &str) -> Found<S> {
        let path = folded(path);
        let Ok(matched) = self.0.at(path) else {
            return match retired(path) {
                // `OPTIONS` is supported only for preflight requests.
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
            None => Found::OtherMethods(OtherMethods {
                allow: place.methods.clone(),
                kind: place.routes.iter().find_map(|(_, route)| match route {
                    Route::Operation(operation) => Some(operation.object?.kind),
                    _ => None,
                }),
                id: matched
                    .params
                    .iter()
                    .next()
                    .map(|(_, id)| query::segment(id)),
            }),
        }
    }

    /// Whether `path` has `HEAD` beside `GET`.
    pub fn has_head(&self, path: &str) -> bool {
        match self.find(&Method::GET, path) {
            Found::Route(route, _) => route.has_head(),
            Found::OtherMethods(_) | Found::Nothing => false,
        }
    }

    /// The methods of `path`, if it exists.
    pub fn methods(&self, path: &str) -> Option<HeaderValue> {
        let path = folded(path);
        match self.0.at(path) {
            Ok(matched) => Some(matched.value.methods.clone()),
            Err(_) => retired(path).map(|_| HeaderValue::from_static(RETIRED_METHODS)),
        }
    }
}

fn method_of(method: operation::Method) -> Method {
    match method {
        operation::Method::Get => Method::GET,
        operation::Method::Post => Method::POST,
        operation::Method::Patch => Method::PATCH,
        operation::Method::Delete => Method::DELETE,
    }
}

/// Removes one of two leading slashes, which a client sends that joins a base URL ending in `/` with a path.
fn folded(path: &str) -> &str {
    match path.strip_prefix('/') {
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    }
}

/// Replaces the names of path parameters by numbers, so that operations may use different names for the same segment.
fn unnamed(path: &str) -> String {
    let mut n_parameters = 0;
    let segments: Vec<String> = path
        .split('/')
        .map(|segment| {
            if segment.starts_with("{*") {
                // All that remains of the path.
                segment.to_owned()
            } else if segment.starts_with('{') {
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

    fn routes() -> Routes<culvert_control::Control> {
        Routes::new(culvert_control::operations()).unwrap()
    }

    fn found(path: &str) -> String {
        match routes().find(&Method::GET, path) {
            Found::Route(Route::Operation(operation), values) => {
                format!("{} {}", unnamed(&operation.path), values.join(","))
            }
            Found::Route(route, _) => format!("{route:?}"),
            Found::OtherMethods(other) => other.allow.to_str().unwrap().to_owned(),
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
            ("/openapi-3.0.json", "OpenApi30"),
            ("/api_keys/dry_run", "POST, OPTIONS"),
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
            assert_eq!(found(path), expected, "{path}");
        }
    }

    #[test]
    fn a_source_type_with_its_dot_is_one_segment() {
        assert_eq!(
            found("/event_subscriptions/esb_1/sources/http_request_complete.v0"),
            "/event_subscriptions/{p1}/sources/{p2} esb_1,http_request_complete.v0"
        );
    }

    #[test]
    fn the_methods_of_a_path_are_reported() {
        let methods = |path: &str| {
            routes()
                .methods(path)
                .map(|m| m.to_str().unwrap().to_owned())
        };
        assert_eq!(methods("/nope"), None);
        assert_eq!(methods("/healthz").unwrap(), "GET, HEAD, OPTIONS");
        assert_eq!(methods("/events/tail").unwrap(), "GET, OPTIONS");
        assert_eq!(methods(FOLLOW_PATH).unwrap(), "GET, OPTIONS");
        assert!(routes().has_head("/events") && !routes().has_head(FOLLOW_PATH));
        let mut of_keys: Vec<String> = methods("/api_keys/x")
            .unwrap()
            .split(", ")
            .map(str::to_owned)
            .collect();
        of_keys.sort();
        assert_eq!(of_keys, ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH"]);
        match routes().find(&Method::PUT, "/api_keys/ak_1") {
            Found::OtherMethods(other) => {
                assert_eq!(other.kind, Some("api_key"));
                assert_eq!(other.id.as_deref(), Some("ak_1"));
            }
            found => panic!("{found:?}"),
        }
    }

    proptest! {
        #[test]
        fn any_path_is_found_or_not(path in "(/[a-z_{}%*.:]{0,12}){0,6}.{0,8}") {
            let known = matches!(routes().find(&Method::GET, &path), Found::Route(..) | Found::OtherMethods(_));
            prop_assert_eq!(known, routes().methods(&path).is_some());
        }
    }
}

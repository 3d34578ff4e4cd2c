//! The files of `dist/`. Written by the test `the_list_of_files_is_complete`.

use crate::File;

pub(crate) static FILES: [File; 40] = [
    File::new(
        "agent/agent.html",
        "text/html; charset=utf-8",
        include_bytes!("../dist/agent/agent.html"),
    ),
    File::new(
        "agent/assets/agent.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/agent/assets/agent.css"),
    ),
    File::new(
        "agent/assets/agent.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/agent/assets/agent.js"),
    ),
    File::new(
        "agent/assets/first-paint.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/agent/assets/first-paint.js"),
    ),
    File::new(
        "agent/assets/icon.svg",
        "image/svg+xml",
        include_bytes!("../dist/agent/assets/icon.svg"),
    ),
    File::new(
        "agent/assets/start.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/agent/assets/start.css"),
    ),
    File::new(
        "assets/access.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/access.js"),
    ),
    File::new(
        "assets/agent-extra.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/agent-extra.js"),
    ),
    File::new(
        "assets/agents-extra.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/agents-extra.js"),
    ),
    File::new(
        "assets/app.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/assets/app.css"),
    ),
    File::new(
        "assets/app.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/app.js"),
    ),
    File::new(
        "assets/charts.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/charts.js"),
    ),
    File::new(
        "assets/code-editor-diff.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/code-editor-diff.js"),
    ),
    File::new(
        "assets/code-editor.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/code-editor.js"),
    ),
    File::new(
        "assets/connect-page.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/connect-page.js"),
    ),
    File::new(
        "assets/console.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/console.js"),
    ),
    File::new(
        "assets/editor.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/editor.js"),
    ),
    File::new(
        "assets/events.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/events.js"),
    ),
    File::new(
        "assets/first-paint.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/first-paint.js"),
    ),
    File::new(
        "assets/forms.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/forms.js"),
    ),
    File::new(
        "assets/grantee-cell.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/grantee-cell.js"),
    ),
    File::new(
        "assets/grants.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/grants.js"),
    ),
    File::new(
        "assets/icon.svg",
        "image/svg+xml",
        include_bytes!("../dist/assets/icon.svg"),
    ),
    File::new(
        "assets/live.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/live.js"),
    ),
    File::new(
        "assets/lost-nodes.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/lost-nodes.js"),
    ),
    File::new(
        "assets/nodes-page.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/nodes-page.js"),
    ),
    File::new(
        "assets/overview-page.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/overview-page.js"),
    ),
    File::new(
        "assets/palette.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/palette.js"),
    ),
    File::new(
        "assets/panels.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/panels.js"),
    ),
    File::new(
        "assets/queries.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/queries.js"),
    ),
    File::new(
        "assets/resources.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/resources.js"),
    ),
    File::new(
        "assets/restriction.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/restriction.js"),
    ),
    File::new(
        "assets/rolldown-runtime.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/rolldown-runtime.js"),
    ),
    File::new(
        "assets/shared.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/shared.js"),
    ),
    File::new(
        "assets/start.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/assets/start.css"),
    ),
    File::new(
        "assets/start.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/start.js"),
    ),
    File::new(
        "assets/style.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/style.js"),
    ),
    File::new(
        "assets/vendor.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/vendor.js"),
    ),
    File::new(
        "assets/virtual.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/virtual.js"),
    ),
    File::new(
        "index.html",
        "text/html; charset=utf-8",
        include_bytes!("../dist/index.html"),
    ),
];

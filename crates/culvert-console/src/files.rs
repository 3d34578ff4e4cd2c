//! The files of `dist/`. Written by the test `the_list_of_files_is_complete`.

use crate::File;

pub(crate) static FILES: [File; 40] = [
    File::new(
        "agent/agent.html",
        "text/html; charset=utf-8",
        include_bytes!("../dist/agent/agent.html"),
    )
    .with_brotli(include_bytes!("../dist/agent/agent.html.br")),
    File::new(
        "agent/assets/agent.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/agent/assets/agent.css"),
    )
    .with_brotli(include_bytes!("../dist/agent/assets/agent.css.br")),
    File::new(
        "agent/assets/agent.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/agent/assets/agent.js"),
    )
    .with_brotli(include_bytes!("../dist/agent/assets/agent.js.br")),
    File::new(
        "agent/assets/first-paint.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/agent/assets/first-paint.js"),
    )
    .with_brotli(include_bytes!("../dist/agent/assets/first-paint.js.br")),
    File::new(
        "agent/assets/icon.svg",
        "image/svg+xml",
        include_bytes!("../dist/agent/assets/icon.svg"),
    )
    .with_brotli(include_bytes!("../dist/agent/assets/icon.svg.br")),
    File::new(
        "agent/assets/start.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/agent/assets/start.css"),
    )
    .with_brotli(include_bytes!("../dist/agent/assets/start.css.br")),
    File::new(
        "assets/access.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/access.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/access.js.br")),
    File::new(
        "assets/agent-extra.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/agent-extra.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/agent-extra.js.br")),
    File::new(
        "assets/agents-extra.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/agents-extra.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/agents-extra.js.br")),
    File::new(
        "assets/app.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/assets/app.css"),
    )
    .with_brotli(include_bytes!("../dist/assets/app.css.br")),
    File::new(
        "assets/app.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/app.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/app.js.br")),
    File::new(
        "assets/checklist.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/checklist.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/checklist.js.br")),
    File::new(
        "assets/code-editor-diff.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/code-editor-diff.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/code-editor-diff.js.br")),
    File::new(
        "assets/code-editor.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/code-editor.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/code-editor.js.br")),
    File::new(
        "assets/connect-page.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/connect-page.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/connect-page.js.br")),
    File::new(
        "assets/editor.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/editor.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/editor.js.br")),
    File::new(
        "assets/events.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/assets/events.css"),
    )
    .with_brotli(include_bytes!("../dist/assets/events.css.br")),
    File::new(
        "assets/events.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/events.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/events.js.br")),
    File::new(
        "assets/first-paint.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/first-paint.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/first-paint.js.br")),
    File::new(
        "assets/first.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/first.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/first.js.br")),
    File::new(
        "assets/forms.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/forms.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/forms.js.br")),
    File::new(
        "assets/grantee-cell.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/grantee-cell.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/grantee-cell.js.br")),
    File::new(
        "assets/grants.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/grants.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/grants.js.br")),
    File::new(
        "assets/icon.svg",
        "image/svg+xml",
        include_bytes!("../dist/assets/icon.svg"),
    )
    .with_brotli(include_bytes!("../dist/assets/icon.svg.br")),
    File::new(
        "assets/invitation.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/invitation.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/invitation.js.br")),
    File::new(
        "assets/live.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/assets/live.css"),
    )
    .with_brotli(include_bytes!("../dist/assets/live.css.br")),
    File::new(
        "assets/live.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/live.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/live.js.br")),
    File::new(
        "assets/more.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/assets/more.css"),
    )
    .with_brotli(include_bytes!("../dist/assets/more.css.br")),
    File::new(
        "assets/mutations.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/mutations.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/mutations.js.br")),
    File::new(
        "assets/nodes-page.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/nodes-page.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/nodes-page.js.br")),
    File::new(
        "assets/palette.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/palette.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/palette.js.br")),
    File::new(
        "assets/panels.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/panels.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/panels.js.br")),
    File::new(
        "assets/resources.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/resources.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/resources.js.br")),
    File::new(
        "assets/restriction.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/restriction.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/restriction.js.br")),
    File::new(
        "assets/shared.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/shared.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/shared.js.br")),
    File::new(
        "assets/start.css",
        "text/css; charset=utf-8",
        include_bytes!("../dist/assets/start.css"),
    )
    .with_brotli(include_bytes!("../dist/assets/start.css.br")),
    File::new(
        "assets/start.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/start.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/start.js.br")),
    File::new(
        "assets/virtual.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../dist/assets/virtual.js"),
    )
    .with_brotli(include_bytes!("../dist/assets/virtual.js.br")),
    File::new(
        "index.html",
        "text/html; charset=utf-8",
        include_bytes!("../dist/index.html"),
    )
    .with_brotli(include_bytes!("../dist/index.html.br")),
    File::new(
        "signed-in.html",
        "text/html; charset=utf-8",
        include_bytes!("../dist/signed-in.html"),
    )
    .with_brotli(include_bytes!("../dist/signed-in.html.br")),
];

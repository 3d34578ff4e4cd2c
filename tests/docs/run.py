"""Runs the code blocks of one document, in order, in a fresh folder, as a reader would.

Usage: run.py DOCUMENT CULVERT

DOCUMENT is a Markdown file, CULVERT the program. The caller gives the process a network and a mount
namespace of its own, so that the ports and host names of the text are free.

What happens with a block depends on its language:

  sh      runs in the document's shell (bash, stops at the first command that fails)
  text    behind a block of sh: the output that the block must print; `…` stands for any text
  yaml, json
          a traffic policy (`on_tcp_connect`, `on_http_request`, …): the server must accept it for an endpoint
          (`POLICY_NAMES` holds `NAME=ID` pairs: what the ids in the text are on that server)
  toml    a settings file: `culvert config check` must accept it
  none    a figure

HTML comments, which readers do not see, say more:

  <!-- test:before          shell lines that run before the next block
  …
  -->
  <!-- test:after           shell lines that run behind the last block, mostly checks
  …
  -->
  <!-- test:background TEXT -->   the next block goes on in the background; TEXT is in its output when it is up
  <!-- test:file NAME -->         the next block is the content of a file
  <!-- test:output NAME -->       the next block is what that file holds; `…` stands for any text
  <!-- test:elsewhere TEST -->    TEST of `crates/culvert/tests/it`, such as `packaging::a_deb_is_…`, runs the next block
  <!-- test:skip REASON -->       the next block cannot run here

A block that nothing above covers fails the document.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\s*$")
COMMENT = re.compile(r"^<!-- test:(?P<kind>\w+) ?(?P<rest>.*)$")

# Waits up to a minute until a file holds a text.
PRELUDE = r"""
set -euo pipefail
shopt -s expand_aliases
until_in() {
  for _ in $(seq 600); do grep -qF -- "$2" "$1" 2>/dev/null && return; sleep 0.1; done
  echo "\`$2\` does not appear in:"; cat "$1"; return 1
}
until_open() {
  for _ in $(seq 600); do (exec 3<>/dev/tcp/127.0.0.1/"$1") 2>/dev/null && return; sleep 0.1; done
  echo "nothing listens on port $1"; return 1
}
policy_is_accepted() {
  local key; key=$(cat "$POLICY_SERVER/bootstrap-key")
  python3 - "$1" "$key" <<'PY'
import json, os, sys, urllib.request
text = open(sys.argv[1]).read()
for pair in os.environ.get("POLICY_NAMES", "").split():
    text = text.replace(*pair.split("=", 1))
body = json.dumps({"url": "https://", "upstream_url": "http://127.0.0.1:9", "traffic_policy": text}).encode()
call = urllib.request.Request("http://127.0.0.1:18420/endpoints", body,
    {"authorization": "Bearer " + sys.argv[2], "content-type": "application/json"})
try:
    urllib.request.urlopen(call)
except urllib.error.HTTPError as refused:
    sys.exit(refused.read().decode())
PY
}
"""

POLICY_SERVER = r"""
export POLICY_SERVER=$PWD/.policy-server
culvert serve --data-dir "$POLICY_SERVER" --api-addr 127.0.0.1:18420 --edge-http-addr 127.0.0.1:0 \
  --edge-https-addr 127.0.0.1:0 --agents-addr 127.0.0.1:0 --agents-ssh-addr 127.0.0.1:0 \
  --metrics-addr 127.0.0.1:0 > .policy-server.log 2>&1 &
until_in .policy-server.log "culvert ready"
"""


class Block:
    def __init__(self, line, language, text, notes):
        self.line, self.language, self.text, self.notes = line, language, text, notes


def blocks_of(path):
    """The blocks of a document with the notes before them, and the checks behind the last one."""
    blocks, notes, lines = [], [], iter(enumerate(open(path, encoding="utf-8"), 1))
    for number, line in lines:
        comment, fence = COMMENT.match(line), FENCE.match(line)
        if comment:
            rest = comment["rest"]
            while "-->" not in rest:
                rest += "\n" + next(lines)[1].rstrip("\n")
            notes.append((comment["kind"], rest.split("-->")[0].strip()))
        elif fence:
            indent, text = len(fence["indent"]), []
            for _, inner in lines:
                if inner.strip() == "```":
                    break
                text.append(inner[indent:] if inner[:indent].isspace() else inner)
            blocks.append(Block(number, fence["language"], "".join(text), notes))
            notes = []
    return blocks, notes


def is_policy(block):
    return block.language in ("yaml", "json") and re.search(r"\bon_(tcp_connect|http_\w+)\b", block.text)


def script_of(document, blocks, last, folder):
    """The bash script that runs a document, the outputs that must have come of it (`[(file, expected, line)]`), the
    number of skipped blocks, and the tests that run others."""
    script, expected, run = [PRELUDE], [], None
    if any(is_policy(block) for block in blocks):
        script.append(POLICY_SERVER)
    skipped, elsewhere = 0, []

    def checks(notes, line):
        for kind, text in notes:
            if kind in ("before", "after"):
                script.append(f'step="{document}:{line} ({kind})"\n{text}\n')
            elif kind not in ("background", "elsewhere", "file", "output", "skip"):
                sys.exit(f"{document}:{line}: `test:{kind}` is unknown")

    for number, block in enumerate(blocks):
        notes, name = dict(block.notes), f"{folder}/.block-{number}"
        checks(block.notes, block.line)
        script.append(f'step="{document}:{block.line}"; echo "$step"\n')
        open(name, "w", encoding="utf-8").write(block.text)
        if "skip" in notes:
            if not notes["skip"]:
                sys.exit(f"{document}:{block.line}: `test:skip` needs a reason")
            skipped += 1
        elif "elsewhere" in notes:
            elsewhere.append(notes["elsewhere"])
        elif "file" in notes:
            script.append(f'mkdir -p "$(dirname {notes["file"]})"; cp {name} {notes["file"]}\n')
        elif "output" in notes:
            expected.append((notes["output"], block.text, block.line))
        elif "background" in notes:
            script.append(f"(source {name}) > {name}.out 2>&1 &\nuntil_in {name}.out '{notes['background']}'\n")
            run = name
        elif block.language == "sh":
            script.append(f"failed={name}.out; source {name} > {name}.out 2>&1; failed=\n")
            run = name
        elif block.language == "text" and run:
            expected.append((f"{run}.out", block.text, block.line))
        elif is_policy(block):
            script.append(f"policy_is_accepted {name}\n")
        elif block.language == "toml":
            script.append(f"culvert config check --config {name} > {name}.out\n")
        elif block.language:
            sys.exit(f"{document}:{block.line}: no rule says how this block is tested")
    checks(last, "end")
    return "".join(script), expected, skipped, elsewhere


def is_like(output, wanted):
    """Whether an output holds the wanted lines, one behind the other, with `…` for any text."""
    parts = [re.escape(part) for part in wanted.strip().split("…")]
    return re.search(r"[^\n]*?".join(parts), output) is not None


def main():
    document, culvert = sys.argv[1], os.path.abspath(sys.argv[2])
    blocks, last = blocks_of(document)
    document_path = os.path.abspath(document)
    # Servers that the script leaves running may still write there; they end with the namespace.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        # A reader has built the program; the path is the one that the README names.
        os.makedirs("target/release")
        os.makedirs(".bin")
        os.symlink(culvert, "target/release/culvert")
        os.symlink(culvert, ".bin/culvert")
        with open(".bin/cargo", "w") as cargo:
            cargo.write("#!/bin/sh\nexit 0\n")
        os.chmod(".bin/cargo", 0o755)
        script, expected, skipped, elsewhere = script_of(os.path.relpath(document_path, os.path.dirname(document_path)), blocks, last, folder)
        script = 'step=start failed=\ntrap \'code=$?; kill $(jobs -p) 2>/dev/null || true; ' \
            '[ $code = 0 ] || { echo "failed at $step"; [ -z "$failed" ] || cat "$failed"; }\' EXIT\n' + script
        open(".script", "w", encoding="utf-8").write(script)
        environment = {
            "PATH": f"{folder}/.bin:{os.environ['PATH']}",
            "HOME": folder,
            "LANG": "C.UTF-8",
            "DOCUMENTS": os.path.dirname(document_path),
        }
        # A file, since what the script leaves running would hold a pipe open.
        with open(".said", "w+", encoding="utf-8") as said:
            try:
                code = subprocess.run(["bash", ".script"], env=environment, stdin=subprocess.DEVNULL,
                    stdout=said, stderr=said, timeout=120).returncode
            except subprocess.TimeoutExpired:
                code = "it did not end"
            said.seek(0)
            if code != 0:
                sys.exit(f"{document}: {code}\n{said.read()[-6000:]}")
        for name, wanted, line in expected:
            output = open(name, encoding="utf-8", errors="replace").read()
            if not is_like(output, wanted):
                sys.exit(f"{document}:{line}: the output is another:\n{output[-4000:]}")
    notes = last + [note for block in blocks for note in block.notes]
    hidden = sum(kind in ("before", "after") for kind, _ in notes)
    print(json.dumps({"blocks": len(blocks), "hidden": hidden, "skipped": skipped, "elsewhere": elsewhere}))


main()

"""Runs the code blocks of one document, in order, as a reader would who pastes them.

Usage: run.py DOCUMENT [CULVERT]

DOCUMENT is a Markdown file. With CULVERT, that program is in the `PATH`, and the reader begins in an empty folder; the
caller gives the process a network and a mount namespace of its own, so that the ports and host names of the text are
free. Without, the machine has an installed package and the programs of `reader`, a file beside this one, and the reader
begins at home. The text names the programs that its blocks use.

Nothing runs that the text does not show. What happens with a block depends on its language:

  sh      runs in the reader's terminal (bash, stops at the first command that fails)
  text    behind a block of sh: the output that the block must print; `…` stands for any text
  yaml, json
          a traffic policy (`on_tcp_connect`, `on_http_request`, …): a server must accept it for an endpoint. It has
          the vault secrets that the policy names; `ca_…` and `ipp_example` are objects of it
  toml    a settings file: `culvert config check` must accept it
  none    a figure

Two sentences of the text are instructions for the reader and for this program:

  Stop the server with Ctrl+C    interrupts the last program in another terminal with `culvert serve`; also `the agent`
  *Not run by the tests: REASON.*    before a block: it cannot run here, and is counted

Comments say how to read a block. They contain no commands:

  <!-- test:background TEXT -->   the next block runs in a terminal of its own, which shows TEXT when it is up
  <!-- test:file NAME -->         the next block is the content of a file, whose name is in the text before it
  <!-- test:output NAME -->       the next block is what that file holds in the end; without NAME, what the last terminal
                                  of its own shows
  <!-- test:again -->             a reader repeats the next block until its output is the one below it
  <!-- test:elsewhere TEST -->    TEST of `crates/culvert/tests/it`, such as `packaging::a_deb_is_…`, runs the next block
  <!-- template: NAME -->         the policy editor offers the next block under this name

Any other comment, and a block that nothing above covers, fails the document.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\s*$")
NOTE = re.compile(
    r"^<!-- test:(?:(?P<again>again)|background (?P<background>\S.*)|file (?P<file>[\w./-]+)"
    r"|output(?P<output>(?: [\w./-]+)?)|elsewhere (?P<elsewhere>[\w:]+)) -->$"
)
TEMPLATE = re.compile(r"^<!-- template: \S.* -->$")
UNTESTED = re.compile(r"^ *\*Not run by the tests: (?P<reason>.+)\.\*$")
STOP = re.compile(r"Stop the (?P<what>\w+) with Ctrl\+C")
# What the programs of a reader's terminals are called, and the command that starts them.
STARTED = {"server": r"culvert serve\b", "agent": r"culvert (http|tcp|tls|start)\b", "stream": r"culvert events tail\b"}
# Seconds until something must have happened.
PATIENCE = 60

PRELUDE = r"""
set -eu
shopt -s expand_aliases
until_like() { python3 "$RUNNER" --like "$@" || { echo "it does not appear:"; cat "$2"; echo "in:"; cat "$1"; return 1; }; }
# The environment of a new terminal.
initial=()
while IFS= read -r -d '' one; do initial+=("$one"); done < <(env -0)
"""

# Runs a block in a terminal of its own, in the folder where the reader began.
TERMINAL = r"""
(cd {folder}; exec setsid env -i --default-signal=INT "${{initial[@]}}" bash {block} > {block}.out 2>&1 < /dev/null) &
terminal_{number}=$!
until_like {block}.out {block}.up
"""

# A server that accepts the policies of the text. It is no part of what the reader runs.
POLICY_SERVER = r"""
export POLICY_SERVER=$PWD/.policy-server
culvert serve --data-dir "$POLICY_SERVER" --api-addr 127.0.0.1:18420 --edge-http-addr 127.0.0.1:0 \
  --edge-https-addr 127.0.0.1:0 --agents-addr 127.0.0.1:0 --agents-ssh-addr 127.0.0.1:0 \
  --metrics-addr 127.0.0.1:0 > .policy-server.log 2>&1 &
echo "culvert ready" > .policy-server.up
until_like .policy-server.log .policy-server.up
"""


class Block:
    def __init__(self, line, language, text, notes, prose):
        self.line, self.language, self.text, self.notes, self.prose = line, language, text, notes, prose


def blocks_of(path):
    """The blocks of a document, each with the notes and the lines of text before it."""
    blocks, notes, prose, lines = [], {}, [], iter(enumerate(open(path, encoding="utf-8"), 1))
    for number, line in lines:
        note, fence = NOTE.match(line), FENCE.match(line)
        if TEMPLATE.match(line):
            continue
        if "<!--" in line:
            if not note or notes:
                sys.exit(f"{path}:{number}: the comment is none of those that the runner reads: {line.strip()}")
            notes = {kind: text.strip() for kind, text in note.groupdict().items() if text is not None}
        elif fence:
            indent, text = len(fence["indent"]), []
            for _, inner in lines:
                if inner.strip() == "```":
                    break
                text.append(inner[indent:] if inner[:indent].isspace() else inner)
            blocks.append(Block(number, fence["language"], "".join(text), notes, prose))
            notes, prose = {}, []
        else:
            prose.append(line.rstrip("\n"))
    if notes:
        sys.exit(f"{path}: no block follows {notes}")
    return blocks


def reason_of(block):
    """Why a block does not run here, as the reader sees it."""
    lines = [line for line in block.prose if line.strip()]
    said = UNTESTED.match(lines[-1]) if lines else None
    return said and said["reason"]


def is_policy(block):
    return block.language in ("yaml", "json") and re.search(r"\bon_(tcp_connect|http_\w+)\b", block.text)


def wait_for(path, wanted, folder):
    """The lines that wait until a file holds a text."""
    name = f"{folder}/.wanted-{wanted.line}"
    open(name, "w", encoding="utf-8").write(wanted.text)
    return f"until_like {shlex.quote(path)} {name}\n"


def check_programs(document, blocks):
    """Fails a document whose blocks use a program of the reader that the text before them does not name."""
    rows = [line.split() for line in open(os.path.join(os.path.dirname(__file__), "reader"), encoding="utf-8")]
    said = ""
    for block in blocks:
        said += "\n".join(block.prose)
        for program in (row[0] for row in rows if row[0] != "#"):
            is_used = re.search(rf"(?:^|[|;(]|&&|\b(?:do|until|sudo)\b)\s*{program}\s", block.text, re.M)
            if block.language == "sh" and is_used and not reason_of(block) and f"`{program}`" not in said:
                sys.exit(f"{document}:{block.line}: the text before it does not name `{program}`")


def script_of(document, blocks, folder):
    """The bash script of a document, the number of blocks that do not run, and the tests that run others."""
    script, run, terminals = [PRELUDE], None, []
    skipped, elsewhere = 0, []
    fail = lambda block, why: sys.exit(f"{document}:{block.line}: {why}")

    if any(is_policy(block) for block in blocks):
        script.append(POLICY_SERVER)
    for number, block in enumerate(blocks):
        notes, name = block.notes, f"{folder}/.block-{number}"
        open(name, "w", encoding="utf-8").write(block.text)
        for stop in STOP.finditer("\n".join(block.prose)):
            started = [it for it in terminals if re.search(STARTED[stop["what"]], it[1])]
            if not started:
                fail(block, f"no {stop['what']} runs")
            script.append(f'step="{document}:{block.line} (Ctrl+C)"; kill -INT -- -$terminal_{started[-1][0]}\n')
            script.append(f"wait $terminal_{started[-1][0]} || true\n")
            terminals.remove(started[-1])
        script.append(f'step="{document}:{block.line}"; echo "$step"\n')
        behind = blocks[number + 1] if number + 1 < len(blocks) else None
        if reason_of(block):
            skipped += 1
            run = None
        elif "elsewhere" in notes:
            elsewhere.append(notes["elsewhere"])
            run = None
        elif "file" in notes:
            file = notes["file"]
            if f"`{file}`" not in "\n".join(block.prose) and file not in block.text.partition("\n")[0]:
                fail(block, f"the text before it does not name `{file}`")
            script.append(f'mkdir -p "$(dirname {file})"; cp {name} {file}\n')
        elif "output" in notes:
            if not notes["output"] and not terminals:
                fail(block, "no terminal is open")
            script.append(wait_for(notes["output"] or f"{folder}/.block-{terminals[-1][0]}.out", block, folder))
        elif "background" in notes:
            open(f"{name}.up", "w", encoding="utf-8").write(notes["background"])
            script.append(TERMINAL.format(folder=folder, block=name, number=number))
            terminals.append((number, block.text))
            run = None
        elif block.language == "sh":
            paste = f"source {name} > {name}.out 2>&1"
            if "again" in notes:
                if not behind or behind.language != "text":
                    fail(block, "no output follows that ends the repetition")
                open(f"{name}.wanted", "w", encoding="utf-8").write(behind.text)
                # Until then, the command may fail too.
                paste = f"deadline=$((SECONDS + {PATIENCE}))\n" \
                    f"until ({paste}) && python3 \"$RUNNER\" --like {name}.out {name}.wanted 0; do\n" \
                    f"  [ $SECONDS -lt $deadline ]; sleep 0.2\ndone"
            script.append(f"failed={name}.out\n{paste}\nfailed=\n")
            run = f"{name}.out"
        elif block.language == "text" and run:
            script.append(f"until_like {run} {name} 0\n")
        elif is_policy(block):
            script.append(f'python3 "$RUNNER" --policy {name}\n')
        elif block.language == "toml":
            script.append(f"culvert config check --config {name} > {name}.out\n")
        elif block.language:
            fail(block, "no rule says how this block is tested")
    return "".join(script), skipped, elsewhere


def is_like(output, wanted):
    """Whether an output holds the wanted lines, one behind the other, with `…` for any text."""
    parts = [re.escape(part) for part in wanted.strip().split("…")]
    return re.search(r"[^\n]*?".join(parts), output) is not None


def like(output, wanted, patience=PATIENCE):
    """Waits until a file holds the text of another one."""
    wanted, deadline = open(wanted, encoding="utf-8").read(), time.monotonic() + float(patience)
    while True:
        if os.path.exists(output) and is_like(open(output, encoding="utf-8", errors="replace").read(), wanted):
            return
        if time.monotonic() >= deadline:
            sys.exit(1)
        time.sleep(0.1)


def check_policy(path):
    """Has the server of policies accept one, with what it refers to."""
    text, key = open(path, encoding="utf-8").read(), open(os.environ["POLICY_SERVER"] + "/bootstrap-key").read().strip()

    def call(method, path, **body):
        request = urllib.request.Request("http://127.0.0.1:18420" + path, json.dumps(body).encode() if body else None,
            {"authorization": f"Bearer {key}", "content-type": "application/json"}, method=method)
        return json.load(urllib.request.urlopen(request))

    try:
        if "ca_…" in text:
            pem = open(os.environ["POLICY_SERVER"] + "/ca.pem").read()
            text = text.replace("ca_…", call("POST", "/certificate_authorities", ca_pem=pem)["id"])
        if "ipp_example" in text:
            text = text.replace("ipp_example", call("POST", "/ip_policies", description="of the text")["id"])
        vaults = {vault["name"]: vault["id"] for vault in call("GET", "/vaults")["vaults"]}
        known = {(secret["vault"]["id"], secret["name"]) for secret in call("GET", "/vault_secrets")["secrets"]}
        for vault, name in sorted(set(re.findall(r"""secrets\.get\(['"](\w+)['"], ['"](\w+)['"]\)""", text))):
            if vault not in vaults:
                vaults[vault] = call("POST", "/vaults", name=vault)["id"]
            if (vaults[vault], name) not in known:
                call("POST", "/vault_secrets", vault_id=vaults[vault], name=name, value="a long password")
        call("POST", "/endpoints", url="https://", upstream_url="http://127.0.0.1:9", traffic_policy=text)
    except urllib.error.HTTPError as refused:
        sys.exit(refused.read().decode())


def run(document, culvert):
    document = os.path.abspath(document)
    name, blocks = os.path.basename(document), blocks_of(document)
    # Servers that the script leaves running may still write there; they end with the namespace.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", folder), "LANG": "C.UTF-8"}
        # How the programs of this machine are set up is no part of what a reader types.
        environment |= {name: os.environ[name] for name in ("CONTAINERS_CONF",) if name in os.environ}
        place = folder
        if culvert:
            os.mkdir(f"{folder}/.bin")
            os.symlink(culvert, f"{folder}/.bin/culvert")
            environment |= {"PATH": f"{folder}/.bin:{os.environ['PATH']}", "HOME": folder}
        else:
            place = environment["HOME"]
            check_programs(name, blocks)
        environment["RUNNER"] = os.path.abspath(__file__)
        os.chdir(place)
        script, skipped, elsewhere = script_of(name, blocks, folder if culvert else place)
        script = 'step=start failed=\nexec 9>&1\ntrap \'code=$?; exec >&9 2>&9; kill $(jobs -p) 2>/dev/null || true; ' \
            '[ $code = 0 ] || { echo "failed at $step"; [ -z "$failed" ] || cat "$failed"; }\' EXIT\n' + script
        open(f"{folder}/.script", "w", encoding="utf-8").write(script)
        # A file, since what the script leaves running would hold a pipe open.
        with open(f"{folder}/.said", "w+", encoding="utf-8") as said:
            try:
                code = subprocess.run(["bash", f"{folder}/.script"], env=environment, stdin=subprocess.DEVNULL,
                    stdout=said, stderr=said, timeout=300).returncode
            except subprocess.TimeoutExpired:
                code = "it did not end"
            said.seek(0)
            if code != 0:
                sys.exit(f"{document}: {code}\n{said.read()[-6000:]}")
    print(json.dumps({"blocks": len(blocks), "skipped": skipped, "elsewhere": elsewhere}))


if sys.argv[1] == "--like":
    like(*sys.argv[2:])
elif sys.argv[1] == "--policy":
    check_policy(sys.argv[2])
else:
    run(sys.argv[1], os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else None)

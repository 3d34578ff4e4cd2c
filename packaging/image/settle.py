"""settle.py ARCHIVE: removes from an image archive what differs from build to build, the names of the container that
built it, so that the same inputs make the same bytes."""

import hashlib
import io
import json
import os
import sys
import tarfile

path = sys.argv[1]
with tarfile.open(path) as given, tarfile.open(path + ".settled", "w") as settled:

    def add(name, size, content):
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = size, 0o644
        settled.addfile(entry, content)

    [manifest] = json.load(given.extractfile("manifest.json"))
    config = json.load(given.extractfile(manifest["Config"]))
    config.pop("container", None)
    for part in ("config", "container_config"):
        config.get(part, {}).pop("Hostname", None)
    text = json.dumps(config, separators=(",", ":"), sort_keys=True).encode()
    manifest["Config"] = hashlib.sha256(text).hexdigest() + ".json"
    for layer in manifest["Layers"]:
        add(layer, given.getmember(layer).size, given.extractfile(layer))
    add(manifest["Config"], len(text), io.BytesIO(text))
    listed = json.dumps([manifest], separators=(",", ":"), sort_keys=True).encode()
    add("manifest.json", len(listed), io.BytesIO(listed))
os.replace(path + ".settled", path)

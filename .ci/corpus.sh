#!/bin/sh
# Runs the tests of other people's evaluation tasks in their own images, on every
# backend of this machine; docs/internal/corpus.md has the tasks and their sources.
#
#   CAISSON_CORPUS   the directory with the tasks, each under its name
#
# It needs root, an engine with apt's sources within its reach, python3, and
# mmdebstrap where the engine has no debian:bookworm-slim.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}" "${CAISSON_CORPUS:=}"
export CAISSON_CORPUS
python3 - e2e/testdata/corpus/tasks.json <<'END' || exit 2
import json, os, sys
corpus, missing = os.environ["CAISSON_CORPUS"], []
for task in json.load(open(sys.argv[1])):
    if not corpus or not os.path.exists(os.path.join(corpus, task["name"], "Dockerfile")):
        missing.append("  %s: %s of github.com/%s at %s" % (task["name"], task["directory"], task["repository"], task["commit"]))
for source in json.load(open(os.path.join(os.path.dirname(sys.argv[1]), "batch.json"))):
    name = "batch/" + source["repository"].replace("/", "+")
    if not corpus or not os.path.isdir(os.path.join(corpus, name)):
        missing.append("  %s: all of github.com/%s at %s" % (name, source["repository"], source["commit"]))
if missing:
    print("CAISSON_CORPUS must name a directory with these, each a directory of its name:", *missing, sep="\n", file=sys.stderr)
    sys.exit(1)
END
docker image inspect debian:bookworm-slim >/dev/null 2>&1 || {
	command -v mmdebstrap >/dev/null || {
		echo "the base images need mmdebstrap (apt-get install mmdebstrap), or debian:bookworm-slim in the engine" >&2
		exit 2
	}
	mmdebstrap --variant=minbase --include=ca-certificates bookworm | docker import --change 'CMD ["bash"]' - debian:bookworm-slim
}
export E2E_BIN="$PWD/bin"
"$GO" vet -tags corpus ./e2e
"$GO" test -tags corpus -count=1 -timeout 6h -v -run '^(TestCorpus|TestCorpusTasks|TestCorpusBatch|TestForgedTools)$' ./e2e

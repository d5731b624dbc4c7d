#!/bin/sh
# The demo: one real task in a real sandbox, without a key, an engine or a
# network. The model's words are replayed; the tools really run. It works on a
# copy, so that the checkout stays as it is, and removes everything it made.
#
#	sh examples/demo.sh [EXAMPLE [BACKEND]]     greeting gvisor
set -eu

example=${1:-greeting}
backend=${2:-gvisor}
root=$(CDPATH='' cd "$(dirname "$0")/.." && pwd -P)
from=$root/examples/$example
caisson=$root/bin/caisson

if [ ! -d "$from/workspace" ]; then
	echo "demo: there is no example $example; there are greeting and wordcount" >&2
	exit 2
fi
if [ ! -x "$caisson" ]; then
	echo "demo: $caisson is not there; run: make build" >&2
	exit 2
fi

# A symlink in the path of the temporary directory would be refused as a workspace.
tmp=$(CDPATH='' cd "$(mktemp -d)" && pwd -P)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
cp -R "$from/workspace" "$tmp/workspace"
mkdir -m 700 "$tmp/state"

heading() { printf '\n== %s\n\n' "$1"; }

heading "The task, in the embedded $backend sandbox"
cat "$from/task.txt"

heading "What the agent does"
status=0
XDG_STATE_HOME=$tmp/state "$caisson" run --backend "$backend" --policy sandboxed \
	--workspace "$tmp/workspace" --model "replay/$from/script.yaml" -o "$tmp/answer" \
	-f "$from/task.txt" >/dev/null || status=$?
trace=$(echo "$tmp"/state/caisson/sessions/*/trace.jsonl)

if [ "$status" -eq 0 ]; then
	heading "Its answer"
	cat "$tmp/answer"
fi

heading "What ran, as seen from inside and read back from the runtime"
# One record of the trace, a field a line; the limits stay together.
grep '"kind":"sandbox.started"' "$trace" | sed -e 's/.*"attestation":{//' -e 's/},"start_ms".*//' >"$tmp/attestation"
sed -e 's/,"limits":{[^}]*}//' -e 's/,"\([a-z_0-9]*\)":/\
"\1":/g' "$tmp/attestation" | sed -e 's/^/  /'
sed -n -e 's/.*\("limits":{[^}]*}\).*/  \1/p' "$tmp/attestation"

heading "What changed"
diff -ru "$from/workspace" "$tmp/workspace" | sed -e "s|$from/||" -e "s|$tmp/|after/|" || true

heading "With a real model"
cat <<END
  export OPENAI_API_KEY=...            # or OPENAI_BASE_URL=http://127.0.0.1:11434/v1 for a local server
  cp -R examples/$example/workspace /tmp/$example
  bin/caisson run --workspace /tmp/$example --policy sandboxed --model openai/gpt-6.2-sol -f examples/$example/task.txt

  bin/caisson doctor                   # what this machine can run, with cause and hint
END
exit "$status"

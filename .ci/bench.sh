#!/bin/sh
# Measures Caisson and its peers in one run on this machine and prints the
# ratios. A backend or peer that is not here is left out.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}" "${BENCHTIME:=1s}"
"$GO" build -C .ci -o bin/benchtable ./benchtable
output=$(mktemp)
trap 'rm -f "$output"' EXIT
E2E_BIN="$PWD/bin" "$GO" test -run '^$' -bench . -benchtime "$BENCHTIME" -timeout 30m ./e2e >"$output" 2>&1 || {
	cat "$output" >&2
	exit 1
}
.ci/bin/benchtable <"$output" 2>/dev/null
echo
"$GO" version
uname -srm
grep -m 1 'model name' /proc/cpuinfo || true

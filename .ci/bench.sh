#!/bin/sh
# Measures Caisson and its peers in one run on this machine and prints the
# ratios. A backend or peer that is not here is left out.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}" "${BENCHTIME:=1s}"
"$GO" build -C .ci -o bin/benchtable ./benchtable
output=$(mktemp)
trap 'rm -f "$output"' EXIT
export E2E_BIN="$PWD/bin"
status=0
for package in ./e2e ./sandbox/docker ./sandbox/oci; do
	pattern=.
	[ "$package" = ./e2e ] || pattern=BenchmarkStart
	echo "measuring $package" >&2
	"$GO" test -run '^$' -bench "$pattern" -benchtime "$BENCHTIME" -timeout 30m "$package" >>"$output" 2>&1 || status=$?
done
[ "$status" = 0 ] || cat "$output" >&2
.ci/bin/benchtable <"$output" 2>/dev/null
echo
"$GO" version
uname -srm
grep -m 1 'model name' /proc/cpuinfo || true
exit "$status"

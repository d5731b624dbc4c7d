#!/bin/sh
# Builds gVisor's runsc from its own module: runsc.sh MODULE OUTPUT. The
# version it prints is the module's version, because gVisor stamps none itself.
# STOCK=1 builds gVisor's own main instead, which the benchmarks compare with.
set -eu
module=$1
output=$2
# The underscore keeps the go command out of it.
kept=$(cd "$(dirname "$0")" && pwd)/bin/_filters
cd "$module"
version=$("$GO" list -m -f '{{.Version}}' gvisor.dev/gvisor)
export CGO_ENABLED=0
set -- -trimpath -buildvcs=false -ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$version" -o "$output"
if [ "${STOCK:-}" = 1 ]; then
	exec "$GO" build "$@" gvisor.dev/gvisor/runsc
fi
# The seccomp filters are compiled here and not at each start, unless this
# machine can't run what it builds (docs/design/guest.md#runtimes).
if [ "$("$GO" env GOOS GOARCH)" = "$("$GO" env GOHOSTOS GOHOSTARCH)" ]; then
	temporary=$(mktemp -d)
	trap 'rm -rf "$temporary"' EXIT
	"$GO" build -trimpath -buildvcs=false -ldflags "-s -w" -o "$temporary/precompile" ./precompile
	# That takes a minute. The same program writes the same filters, so they are kept.
	filters=$kept/$(sha256sum <"$temporary/precompile" | cut -d' ' -f1).go
	if [ ! -s "$filters" ]; then
		"$temporary/precompile" "$temporary/filters.go"
		mkdir -p "$kept"
		cp "$temporary/filters.go" "$filters.$$"
		mv "$filters.$$" "$filters"
	fi
	printf '{"Replace": {"%s": "%s"}}\n' "$PWD/filters_generated.go" "$filters" >"$temporary/overlay.json"
	set -- "$@" -overlay "$temporary/overlay.json"
fi
"$GO" build "$@" .

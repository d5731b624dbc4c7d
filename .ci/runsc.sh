#!/bin/sh
# Builds runsc from gVisor's module and our patch: runsc.sh MODULE OUTPUT. The
# version it prints is the module's version, because gVisor stamps none itself.
# STOCK=1 builds gVisor's own main without the patch, which the benchmarks
# compare with.
set -eu
module=$1
output=$2
# The underscores keep the go command out of them.
bin=$(cd "$(dirname "$0")" && pwd)/bin
kept=$bin/_filters
cd "$module"
version=$("$GO" list -m -f '{{.Version}}' gvisor.dev/gvisor)
export CGO_ENABLED=0
set -- -trimpath -buildvcs=false -ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$version" -o "$output"
if [ "${STOCK:-}" = 1 ]; then
	exec "$GO" build "$@" gvisor.dev/gvisor/runsc
fi
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
# The patch is for one version. Read it again before you rename it for another
# (docs/design/guest.md#runtimes).
patch=$PWD/gvisor-$version.patch
if [ ! -f "$patch" ]; then
	echo "runsc.sh: there is no patch for gVisor $version: adapt $(ls gvisor-*.patch) and rename it" >&2
	exit 1
fi
"$GO" mod download gvisor.dev/gvisor
source=$("$GO" list -m -f '{{.Dir}}' gvisor.dev/gvisor)
patched=$bin/_gvisor/$version-$(cat "$patch" hostns/*.go | sha256sum | cut -c 1-16)
if [ ! -d "$patched" ]; then
	rm -rf "$bin/_gvisor"
	mkdir -p "$bin/_gvisor"
	cp -R "$source" "$temporary/gvisor"
	chmod -R u+w "$temporary/gvisor"
	cp -R hostns "$temporary/gvisor/runsc/"
	GIT_CEILING_DIRECTORIES=$temporary git -C "$temporary/gvisor" apply --whitespace=nowarn "$patch"
	mv "$temporary/gvisor" "$patched"
fi
cp go.mod go.sum "$temporary"
# The program has the directory's name in it: a relative one is the same in every clone.
"$GO" mod edit -replace "gvisor.dev/gvisor=$(realpath --relative-to=. "$patched")" "$temporary/go.mod"
set -- "$@" -modfile "$temporary/go.mod"
# The seccomp filters are compiled here and not at each start, unless this
# machine can't run what it builds (docs/design/guest.md#runtimes).
if [ "$("$GO" env GOOS GOARCH)" = "$("$GO" env GOHOSTOS GOHOSTARCH)" ]; then
	"$GO" build -trimpath -buildvcs=false -ldflags "-s -w" -modfile "$temporary/go.mod" -o "$temporary/precompile" ./precompile
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

#!/bin/sh
# The checks that need no engine and no container: formatting, vet on the
# platforms that are supported, the linters, the layers, the short tests.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}"
unformatted=$(git ls-files '*.go' | xargs gofmt -l)
[ -z "$unformatted" ] || {
	echo "not formatted (make fmt):" >&2
	echo "$unformatted" >&2
	exit 1
}
"$GO" vet ./...
GOOS=linux GOARCH=arm64 CGO_ENABLED=0 "$GO" vet ./...
"$GO" tool -modfile=.ci/tools/go.mod golangci-lint run ./...
"$GO" test -count=1 -run 'TestLayers' ./e2e/
"$GO" test -short ./...

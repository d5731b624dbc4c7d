#!/bin/sh
# Prints the statement coverage of each package and the whole.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}" "${PKG:=./...}"
profile=$(mktemp)
trap 'rm -f "$profile"' EXIT
export E2E_BIN="$PWD/bin"
# shellcheck disable=SC2086 # PKG may be a list
"$GO" test -coverprofile="$profile" $PKG
"$GO" tool cover -func="$profile" | tail -n 1

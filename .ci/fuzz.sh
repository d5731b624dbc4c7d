#!/bin/sh
# Fuzzes every target of the packages in PKG for FUZZTIME each.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}" "${PKG:=./...}" "${FUZZTIME:=10s}"
found=0
# shellcheck disable=SC2086 # PKG may be a list
for package in $("$GO" list $PKG); do
	for target in $("$GO" test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		found=1
		echo "$package $target"
		"$GO" test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$package"
	done
done
[ "$found" = 1 ] || {
	echo "no fuzz target in $PKG" >&2
	exit 1
}

#!/bin/sh
# Fuzzes every target of the packages in PKG for FUZZTIME each. A target that
# the source has and this platform doesn't build, or one without a seed, is an
# error: it would never find anything.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}" "${PKG:=./...}" "${FUZZTIME:=10s}"
listed=
# shellcheck disable=SC2086 # PKG may be a list
for package in $("$GO" list $PKG); do
	for target in $("$GO" test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		listed="$listed $package:$target"
	done
done
[ -n "$listed" ] || {
	echo "no fuzz target in $PKG" >&2
	exit 1
}
if [ "$PKG" = ./... ]; then
	written=$(git ls-files -co --exclude-standard '*_test.go' | xargs grep -ho '^func Fuzz[A-Za-z0-9_]*(f \*testing.F)' | wc -l)
	built=$(echo "$listed" | wc -w)
	[ "$written" -eq "$built" ] || {
		echo "the source has $written fuzz targets, $built are built here" >&2
		exit 1
	}
fi
for t in $listed; do
	package=${t%:*} target=${t##*:}
	"$GO" test -count=1 -v -run "^$target\$" "$package" | grep -q "RUN *$target/" || {
		echo "$package $target: no seed in its corpus, or they fail" >&2
		exit 1
	}
done
for t in $listed; do
	package=${t%:*} target=${t##*:}
	echo "$package $target"
	# By default one new input is minimized for up to 60 s, longer than the whole run.
	"$GO" test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 100x "$package"
done

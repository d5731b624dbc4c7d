#!/bin/sh
# Runs all tests of all modules and prints what came of them (.ci/testsum).
#
#   INSTALL=1            bring an engine and runc first; stop what was started
#   REQUIRE_BACKENDS=…   every skip is a failure (CI sets docker,gvisor,runc)
#   VET=off              don't vet the packages that make lint vets
#   RACE=1               under the race detector, which needs cgo
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}"

. .ci/engine.sh
if [ "${INSTALL:-}" = 1 ]; then
	trap engine_stop EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	engine_install
	engine_start
fi

race=
if [ "${RACE:-}" = 1 ]; then
	command -v "${CC:-gcc}" >/dev/null || command -v clang >/dev/null || {
		echo "make race: the race detector needs cgo: install gcc or clang" >&2
		exit 2
	}
	export CGO_ENABLED=1
	race=-race
else
	export CGO_ENABLED=0
fi

vet=
[ -z "${VET:-}" ] || vet=-vet=$VET
strict=
[ -z "${REQUIRE_BACKENDS:-}" ] || strict=-strict
export E2E_BIN="$PWD/bin"
# Without symbols a third of the time to link a hundred test programs is saved.
link='-ldflags=-s -w'

"$GO" build -C .ci -o bin/testsum ./testsum
# The time limits are three times what the slowest package needs, so that a test
# that hangs fails well before CI gives up.
# The end-to-end tests list what is left on the machine, so they run alone.
# Tests that call t.Parallel, and the packages with a runtime, wait for most of
# their time: several at once need less than one that works. The longest packages
# start first, so that the others run beside them.
longest='/sandbox/(oci|docker|sandboxtest)$'
packages=$("$GO" list ./... | grep -v /e2e)
packages="$(echo "$packages" | grep -E "$longest") $(echo "$packages" | grep -vE "$longest")"
# Many tests have deadlines, which a machine that others use misses at times: a few
# that fail run once more, alone, and are listed.
# shellcheck disable=SC2086 # word splitting is meant
.ci/bin/testsum $strict -retry 4 -go "$GO" -- \
	-C .ci -count=1 ./... -- \
	-C .ci/otel -count=1 ./... -- \
	-C .ci/ollamawire -count=1 ./... -- \
	-C .ci/junit -count=1 ./... -- \
	-C .ci/s3 -count=1 ./... -- \
	-C .ci/deploy -count=1 ./... -- \
	-C sandbox/oci/runsc -count=1 ./... -- \
	-count=1 -timeout=25m -p=3 -parallel=4 $vet $race "$link" $packages -- \
	-count=1 -timeout=30m -parallel=6 $vet $race "$link" ./e2e/...

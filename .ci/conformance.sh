#!/bin/sh
# Runs the conformance suite on BACKEND (docker, gvisor or runc), or on all: the
# checks, as root and as an ordinary user, the hardening table, and hostile
# sessions beside a neighbour. Faults that are added to runc, and to docker's copies, show
# that the checks can fail.
#
#   RACE=1   under the race detector, which needs cgo
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}" "${BACKEND:=}"
export E2E_BIN="$PWD/bin"
tests='^Test(Conformance|ConformanceCopy|Faults|FaultsOfCopies|ConformanceRunsc|ConformanceRemapped|ConformanceMember|Neighbours|OrdinaryUser|EngineCalls)$'
case $BACKEND in
"") packages="./sandbox/docker ./sandbox/oci" run=$tests ;;
docker) packages=./sandbox/docker run=$tests ;;
gvisor | runc) packages=./sandbox/oci run="$tests/^$BACKEND\$" ;;
*)
	echo "BACKEND is docker, gvisor or runc, not $BACKEND" >&2
	exit 2
	;;
esac
[ -z "$BACKEND" ] || export REQUIRE_BACKENDS="$BACKEND"
race=
if [ "${RACE:-}" = 1 ]; then
	command -v "${CC:-gcc}" >/dev/null || command -v clang >/dev/null || {
		echo "RACE=1: the race detector needs cgo: install gcc or clang" >&2
		exit 2
	}
	export CGO_ENABLED=1
	race=-race
fi
# shellcheck disable=SC2086 # word splitting is meant
exec "$GO" tool -modfile=.ci/tools/go.mod gotestsum -f standard-quiet -- -count=1 -timeout=60m $race -run "$run" $packages

#!/bin/sh
# Runs the conformance suite on BACKEND (docker, gvisor or runc), or on all.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}" "${BACKEND:=}"
export E2E_BIN="$PWD/bin"
case $BACKEND in
"") packages="./sandbox/docker ./sandbox/oci ./sandbox/sandboxtest" run=Conformance ;;
docker) packages=./sandbox/docker run=Conformance ;;
gvisor) packages=./sandbox/oci run='Conformance/gvisor' ;;
runc) packages=./sandbox/oci run='Conformance/runc' ;;
*)
	echo "BACKEND is docker, gvisor or runc, not $BACKEND" >&2
	exit 2
	;;
esac
[ -z "$BACKEND" ] || export REQUIRE_BACKENDS="$BACKEND"
# shellcheck disable=SC2086 # word splitting is meant
"$GO" test -count=1 -timeout 30m -v -run "$run" $packages

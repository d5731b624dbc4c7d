#!/bin/sh
# Builds gVisor's runsc from its own module: runsc.sh MODULE OUTPUT. The
# version it prints is the module's version, because gVisor stamps none itself.
set -eu
module=$1
output=$2
cd "$module"
version=$("$GO" list -m -f '{{.Version}}' gvisor.dev/gvisor)
CGO_ENABLED=0 "$GO" build -trimpath -buildvcs=false \
	-ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$version" \
	-o "$output" .

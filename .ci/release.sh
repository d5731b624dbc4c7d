#!/bin/sh
# Builds one file that holds caisson, caisson-guest and gVisor's runsc, for GOARCH:
# $DIST/caisson-linux-GOARCH, with its checksum; DIST is dist. The programs are compressed
# with gzip, and unpacked to the user's cache when one is needed first.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}" "${VERSION:=unknown}" "${DIST:=dist}"
export GO
goarch=$("$GO" env GOARCH)
embedded=$PWD/sandbox/programs/files
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
trap 'exit 1' INT TERM HUP
mkdir -p "$build/programs" "$build/files" "$DIST"

CGO_ENABLED=0 "$GO" build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o "$build/programs/caisson-guest" ./cmd/caisson-guest
echo "building gVisor's runsc: 1-2 minutes the first time"
sh .ci/runsc.sh sandbox/oci/runsc "$build/programs/runsc"
for program in "$build"/programs/*; do
	name=${program##*/}
	gzip -nc "$program" >"$build/files/$name.gz"
	printf '%s  %s\n' "$(sha256sum <"$program" | cut -d' ' -f1)" "$name" >>"$build/files/SHA256SUMS"
done
# An overlay shows the files to the compiler without writing to the source tree.
for file in "$build"/files/*; do
	printf '"%s/%s": "%s"\n' "$embedded" "${file##*/}" "$file"
done | paste -sd, - | sed 's/.*/{"Replace": {&}}/' >"$build/overlay.json"
output=$DIST/caisson-linux-$goarch
CGO_ENABLED=0 "$GO" build -trimpath -buildvcs=false -tags embed_programs -overlay "$build/overlay.json" -ldflags "-s -w -X main.version=$VERSION" -o "$output" ./cmd/caisson
name=${output##*/}
(cd "$DIST" && sha256sum "$name" >"$name.sha256")
ls -l "$output"

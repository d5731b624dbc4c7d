#!/bin/sh
# Downloads one file, URL, and installs it as DEST/caisson if its SHA-256 is the one given.
set -eu
: "${URL:?}" "${SHA256:?}" "${DEST:?}"
mkdir -p "$DEST"
file=$DEST/caisson.download
trap 'rm -f "$file"' EXIT
curl --fail --silent --show-error --location --proto '=https,file' --output "$file" -- "$URL"
printf '%s  %s\n' "$SHA256" "$file" | sha256sum --check --quiet -
chmod 755 "$file"
mv "$file" "$DEST/caisson"

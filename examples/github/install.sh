#!/bin/sh
# Downloads one file, URL, and installs it as DEST/caisson if its SHA-256 is the one given
# and, with ATTESTED_BY, a workflow of that repository attested that it built the file.
set -eu
: "${URL:?}" "${SHA256:?}" "${DEST:?}"
mkdir -p "$DEST"
file=$DEST/caisson.download
trap 'rm -f "$file"' EXIT
curl --fail --silent --show-error --location --proto '=https,file' --output "$file" -- "$URL"
printf '%s  %s\n' "$SHA256" "$file" | sha256sum --check --quiet -
if [ -n "${ATTESTED_BY:-}" ]; then
	gh attestation verify "$file" --repo "$ATTESTED_BY"
fi
chmod 755 "$file"
mv "$file" "$DEST/caisson"

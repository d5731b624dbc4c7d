#!/bin/sh
# Makes a release: everything in dist (docs/design/guest.md#releases).
#
#   ARCHS="amd64 arm64"    the architectures; by default only the machine's
#   CAISSON_SIGNING_KEY=…  an armored OpenPGP secret key without a passphrase; without one nothing is signed
#   IMAGE=0                no container image: mmdebstrap isn't needed
#   DEBIAN_MIRROR=…        where the image's packages come from, such as a snapshot of Debian
#   DIST=…                 a directory instead of dist
set -eu
cd "$(dirname "$0")/.."
umask 022
: "${GO:=go}" "${VERSION:=unknown}" "${DIST:=dist}" "${IMAGE:=1}" "${ARCHS:=$("${GO:-go}" env GOARCH)}"
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
case ${VERSION#v} in
[0-9]*.[0-9]*.[0-9]*) version=${VERSION#v} ;;
*) version=0.0.0-g$VERSION ;; # before the first tag
esac
version=$(echo "$version" | sed 's/-/./2g') # an rpm's has no hyphen after the one of a prerelease
build=$(mktemp -d)
trap '[ ! -d "$build/gnupg" ] || gpgconf --homedir "$build/gnupg" --kill all; rm -rf "$build"' EXIT
trap 'exit 1' INT TERM HUP
export GO VERSION SOURCE_DATE_EPOCH SIGN= BUILD="$build" PACKAGE_VERSION="$version" LC_ALL=C TZ=UTC
export GOFLAGS="${GOFLAGS:-} -trimpath -buildvcs=false" CGO_ENABLED=0
fail() {
	echo "release.sh: $1" >&2
	exit 2
}
needed='git gzip zstd dpkg-deb'
[ "$IMAGE" = 0 ] || needed="$needed mmdebstrap"
[ -z "${CAISSON_SIGNING_KEY:-}" ] || needed="$needed gpg"
for program in $needed; do
	command -v "$program" >/dev/null || fail "$program is missing: install Debian's package $(echo "$program" | sed s/dpkg-deb/dpkg/)"
done
if [ -n "${CAISSON_SIGNING_KEY:-}" ]; then
	mkdir -m 700 "$build/gnupg"
	# With the commit's time, the same files have the same signatures.
	SIGN="gpg --homedir $build/gnupg --batch --quiet --no-tty --digest-algo SHA512 --faked-system-time $SOURCE_DATE_EPOCH!"
	printf '%s\n' "$CAISSON_SIGNING_KEY" | $SIGN --import && $SIGN --detach-sign </dev/null >/dev/null ||
		fail "CAISSON_SIGNING_KEY can't sign: it must be an armored secret key without a passphrase, older than the commit"
	unset CAISSON_SIGNING_KEY
fi
"$GO" build -C .ci/release -o "$build/release" .

# build ARCH: caisson has the other two inside, compressed, and unpacks them to the user's cache.
build() {
	export GOARCH="$1"
	out=$build/$1
	mkdir -p "$out" "$build/files"
	"$GO" build -ldflags "-s -w -X main.version=$VERSION" -o "$out/caisson-guest" ./cmd/caisson-guest
	echo "building gVisor's runsc for $1: 1-2 minutes the first time"
	sh .ci/runsc.sh sandbox/oci/runsc "$out/runsc"
	(cd "$out" && sha256sum caisson-guest runsc) >"$build/files/SHA256SUMS"
	for program in caisson-guest runsc; do zstd -q -19 --long=27 -T1 -c "$out/$program" >"$build/files/$program.zst"; done
	# An overlay shows the files to the compiler without writing to the source tree.
	for file in "$build"/files/*; do
		printf '"%s/%s": "%s"\n' "$PWD/sandbox/programs/files" "${file##*/}" "$file"
	done | paste -sd, - | sed 's/.*/{"Replace": {&}}/' >"$build/overlay.json"
	"$GO" build -tags embed_programs -overlay "$build/overlay.json" -ldflags "-s -w -X main.version=$VERSION" -o "$out/caisson" ./cmd/caisson
	unset GOARCH
}
for arch in $ARCHS; do build "$arch"; done
"$GO" test ./cmd/caisson -vet=off -count=1 -run '^TestManPages$' -man "$build/man/man1" >/dev/null
mkdir -p "$build/completions/bash" "$build/completions/zsh" "$build/completions/fish" "$build/man.gz"
program=$build/$("$GO" env GOHOSTARCH)/caisson
[ -e "$program" ] || "$GO" build -o "$program" ./cmd/caisson
"$program" completion bash >"$build/completions/bash/caisson"
"$program" completion zsh >"$build/completions/zsh/_caisson"
"$program" completion fish >"$build/completions/fish/caisson.fish"
for page in "$build"/man/man1/*; do gzip -9nc "$page" >"$build/man.gz/${page##*/}.gz"; done
printf 'caisson (%s) stable; urgency=medium\n\n  * https://github.com/caisson-run/caisson/blob/main/CHANGELOG.md\n\n -- %s  %s\n' \
	"$(echo "$version" | sed 's/-/~/')" "$(sed -n 's/^maintainer: //p' .ci/release/nfpm.yaml)" \
	"$(date -d "@$SOURCE_DATE_EPOCH" -R)" | gzip -9n >"$build/changelog.gz"
# shellcheck disable=SC2086 # a word for each architecture
(cd .ci/release && "$build/release" modules "$version" "$build" $ARCHS)

rm -rf "$DIST"/caisson* "$DIST"/SHA256SUMS* "$DIST/install.sh" "$DIST/apt" # the site may be there, too
mkdir -p "$DIST/apt/pool"
DIST=$(cd "$DIST" && pwd)
# archive DIRECTORY NAME: a tar of a file in it, the same for the same content.
archive() { tar -C "$1" --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r-w --mtime="@$SOURCE_DATE_EPOCH" -cf - "$2"; }
mv "$build/sbom.json" "$DIST/caisson-$version.cdx.json"
dists=$DIST/apt/dists/stable layers=
for arch in $ARCHS; do
	top=$build/$arch/caisson-$version-linux-$arch
	mkdir "$top"
	cp -R "$build/$arch/caisson" "$build/man" "$build/completions" "$build/THIRD_PARTY" LICENSE "$top"
	archive "$build/$arch" "${top##*/}" | gzip -9n >"$DIST/${top##*/}.tar.gz"
	deb=caisson_${version}_$arch.deb
	rpm=caisson-$version-1.$(echo "$arch" | sed 's/amd64/x86_64/; s/arm64/aarch64/').rpm
	find "$build" -path "$build/gnupg" -prune -o -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
	ARCH=$arch "$build/release" package deb .ci/release/nfpm.yaml "$DIST/$deb"
	ARCH=$arch "$build/release" package rpm .ci/release/nfpm.yaml "$DIST/$rpm"
	ln "$DIST/$deb" "$DIST/apt/pool"
	mkdir -p "$dists/main/binary-$arch"
	(
		dpkg-deb --field "$DIST/$deb"
		printf 'Filename: pool/%s\nSize: %s\nSHA256: %s\n' "$deb" "$(wc -c <"$DIST/$deb")" "$(sha256sum <"$DIST/$deb" | cut -d' ' -f1)"
	) >"$dists/main/binary-$arch/Packages"
	[ "$IMAGE" != 0 ] || continue
	# A CI system starts its own shell in the image and checks out there.
	mmdebstrap --quiet --variant=minbase --architectures="$arch" --include=ca-certificates,git --skip=output/dev \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-include=/usr/share/doc/*/copyright' bookworm "$build/$arch/debian.tar" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
	dpkg-deb --fsys-tarfile "$DIST/$deb" >"$build/$arch/caisson.tar"
	layers="$layers $arch $build/$arch/debian.tar $build/$arch/caisson.tar"
done
if [ "$IMAGE" != 0 ]; then
	# shellcheck disable=SC2086 # each is a word
	"$build/release" image "$version" "$build/oci" $layers
	archive "$build/oci" . >"$DIST/caisson-$version-oci.tar"
fi
(
	printf 'Origin: Caisson\nLabel: Caisson\nSuite: stable\nCodename: stable\nDate: %s\nArchitectures: %s\nComponents: main\nSHA256:\n' \
		"$(date -d "@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S UTC')" "$ARCHS"
	cd "$dists"
	for index in main/*/Packages; do echo " $(sha256sum <"$index" | cut -d' ' -f1) $(wc -c <"$index") $index"; done
) >"$build/Release"
if [ -n "$SIGN" ]; then
	$SIGN --armor --export >"$DIST/caisson.asc"
	grep -q '@VERSION@' install.sh && grep -qx '@KEY@' install.sh || fail 'install.sh lacks @VERSION@, or a line @KEY@'
	sed -e "s/@VERSION@/$version/g" -e "/^@KEY@$/{r $DIST/caisson.asc" -e 'd;}' install.sh >"$DIST/install.sh"
	chmod 755 "$DIST/install.sh"
	$SIGN --clearsign <"$build/Release" >"$dists/InRelease"
else
	cp "$build/Release" "$dists/Release"
	echo 'nothing is signed, and there is no install.sh: CAISSON_SIGNING_KEY is not set' >&2
fi
cd "$DIST"
find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%P\n' | sort | xargs sha256sum >"$build/SHA256SUMS"
mv "$build/SHA256SUMS" .
[ -z "$SIGN" ] || $SIGN --armor --detach-sign <SHA256SUMS >SHA256SUMS.asc
find . -maxdepth 1 -type f -printf '%s %P\n' | sort -k2 | awk '{ printf "%8.1f MB  %s\n", $1 / 1e6, $2 }'

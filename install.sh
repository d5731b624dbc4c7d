#!/bin/sh
# Installs Caisson @VERSION@ for the user who runs it, without root:
#
#   curl -fsSL https://github.com/caisson-run/caisson/releases/download/v@VERSION@/install.sh | sh
#
# It downloads the release, checks its signature with the key below and its checksum, and unpacks it
# to ~/.local. It runs nothing of what it downloads, and changes no profile.
#
#   PREFIX=DIR        installs to DIR instead of ~/.local
#   CAISSON_URL=URL   downloads from a mirror of the release's files
set -eu

fail() { # CAUSE HINT
	printf 'install.sh: %s\n%s\n' "$1" "$2" >&2
	exit 1
}

# The release has its version and its key here. In the repository both are missing, and the GitHub
# action names them.
release() {
	version='@VERSION@'
	cat >key.asc <<'KEY'
@KEY@
KEY
	case $version in
	@*)
		version=${CAISSON_VERSION:-}
		[ -n "$version" ] && [ -r "${CAISSON_KEY:-}" ] ||
			fail 'this file is not from a release' 'Download install.sh from https://github.com/caisson-run/caisson/releases.'
		cat "$CAISSON_KEY" >key.asc
		;;
	esac
	url=${CAISSON_URL:-https://github.com/caisson-run/caisson/releases/download/v$version}
	case $(uname -sm) in
	'Linux x86_64') arch=amd64 ;;
	'Linux aarch64' | 'Linux arm64') arch=arm64 ;;
	*) fail "there is no release for $(uname -sm)" 'Caisson needs Linux on x86_64 or aarch64.' ;;
	esac
	name=caisson-$version-linux-$arch
}

download() { # FILE
	echo "downloading $url/$1"
	if command -v curl >/dev/null; then
		curl -fsSL -o "$1" -- "$url/$1"
	elif command -v wget >/dev/null; then
		wget -q -O "$1" "$url/$1"
	else
		fail 'there is no program to download with' 'Install curl or wget.'
	fi || fail "$url/$1 can't be downloaded" 'Check the address and the network.'
}

# check_signature refuses SHA256SUMS unless it has a signature by the key.
check_signature() {
	# A message with a text of its own could pass as the signature of another file.
	[ "$(head -n 1 SHA256SUMS.asc)" = '-----BEGIN PGP SIGNATURE-----' ] && [ "$(grep -c '^-----BEGIN' SHA256SUMS.asc)" = 1 ] ||
		fail 'SHA256SUMS.asc is not one signature' "Don't use this copy; download the release again."
	if command -v gpgv >/dev/null; then
		unarmored_key
		set -- gpgv --homedir . --keyring ./key.gpg
	elif command -v gpg >/dev/null; then
		unarmored_key
		set -- gpg --homedir . --batch --no-default-keyring --keyring ./key.gpg --trust-model always --verify
	elif command -v sqv >/dev/null; then
		set -- sqv --keyring key.asc
	else
		fail "there is no program to check the signature with" 'Install gpgv (Debian, Ubuntu, Alpine) or gnupg (others).'
	fi
	"$@" SHA256SUMS.asc SHA256SUMS >log 2>&1 || {
		cat log >&2
		fail 'SHA256SUMS is not signed by the key of Caisson' "Don't use this copy; download the release again."
	}
	echo "SHA256SUMS has a good signature"
}

unarmored_key() {
	sed -e '1,/^$/d' -e '/^[=-]/,$d' key.asc | base64 -d >key.gpg
}

check_sum() { # FILE
	sum=$(grep -E "^[0-9a-f]{64}  $1\$" SHA256SUMS) || fail "SHA256SUMS has no $1" "The files at $url are not of one release."
	[ "$(sha256sum <"$1")" = "${sum%% *}  -" ] || fail "$1 has another checksum than in SHA256SUMS" "Don't use this copy; download the release again."
	echo "$1 has the signed checksum"
}

# put moves a file of the release to its place, at once.
put() { # FILE DIRECTORY [NAME]
	mkdir -p "$prefix/$2"
	mv -f "$name/$1" "$prefix/$2/${3:-${1##*/}}"
}

main() {
	umask 022
	prefix=${PREFIX:-$HOME/.local}
	mkdir -p "$prefix" && prefix=$(cd "$prefix" && pwd) && dir=$(mktemp -d "$prefix/.caisson.XXXXXX") ||
		fail "$prefix can't be written" 'Name a directory with PREFIX=DIR.'
	trap 'rm -rf "$dir"' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	cd "$dir"
	release
	download SHA256SUMS
	download SHA256SUMS.asc
	check_signature
	download "$name.tar.gz"
	check_sum "$name.tar.gz"
	tar -xzf "$name.tar.gz"
	for page in "$name"/man/man1/*.1; do
		put "${page#"$name"/}" share/man/man1
	done
	put completions/bash/caisson share/bash-completion/completions
	put completions/zsh/_caisson share/zsh/site-functions
	put completions/fish/caisson.fish share/fish/vendor_completions.d
	put LICENSE share/doc/caisson
	put THIRD_PARTY share/doc/caisson
	put caisson bin
	cat <<END
installed Caisson $version as $prefix/bin/caisson, with completions and man pages in $prefix/share

Next:    $prefix/bin/caisson doctor
Remove:  cd $prefix && rm -r bin/caisson share/man/man1/caisson*.1 share/bash-completion/completions/caisson \\
           share/zsh/site-functions/_caisson share/fish/vendor_completions.d/caisson.fish share/doc/caisson
END
	case :$PATH: in
	*":$prefix/bin:"*) ;;
	*) echo "Your PATH lacks $prefix/bin." ;;
	esac
}

main "$@"

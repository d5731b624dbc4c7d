#!/bin/sh
# Runs tests that depend on the machine in a root file system that nothing has used
# before, with an engine of its own and without a network. Needs root and mmdebstrap.
#
#   INSTALL=1   bring mmdebstrap first
#   RUN=REGEXP  run other tests of e2e
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}" "${RUN:=^Test(BuildNetwork|BuildNetworkRefused|Doctor|GreetingOnEachBackend|ImageSources|SandboxExec)$}"
. .ci/engine.sh
[ "${INSTALL:-}" != 1 ] || engine_install mmdebstrap:mmdebstrap
root=$(mktemp -d /var/tmp/caisson-fresh.XXXXXX)
trap 'rm -rf --one-file-system "$root"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mmdebstrap --quiet --variant=minbase --include=docker.io,runc,iproute2,procps,git,curl,python3-minimal bookworm "$root"
CGO_ENABLED=0 "$GO" test -c -vet=off -ldflags='-s -w' -o "$root/e2e.test" ./e2e
mkdir "$root/caisson"
# The namespaces end with their first process, and mounts and network with them.
unshare --mount --net --ipc --uts --pid --fork --kill-child sh -eu -s "$root" "$RUN" <<'EOF'
mount --bind "$1" "$1"
cd "$1"
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs -o ro sys sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount -t tmpfs tmp tmp
mount -t tmpfs run run
mount --bind "$OLDPWD" caisson
mount -o remount,bind,ro caisson
mkdir old
pivot_root . old # in a chroot nothing can make a user namespace
umount --lazy old
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -eu -s "$2" <<'INSIDE'
ip link set lo up
dockerd >/var/log/dockerd 2>&1 </dev/null &
tries=0
until curl -sf -m 2 -o /dev/null --unix-socket /var/run/docker.sock http://engine/_ping; do
	tries=$((tries + 1))
	[ "$tries" -le 60 ] || { tail -n 20 /var/log/dockerd >&2; exit 1; }
	sleep 1
done
cd /caisson/e2e
E2E_BIN=/caisson/bin REQUIRE_BACKENDS=docker,gvisor,runc /e2e.test -test.timeout=20m -test.run="$1" </dev/null
INSIDE
EOF

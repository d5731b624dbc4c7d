# shellcheck shell=sh
# Sourced by test.sh and bench.sh: brings a Docker engine, runc and the programs
# that tests need to a Debian or Ubuntu machine, starts an engine if none answers,
# and stops the one that it started.

engine_pid=
engine_log=

engine_answers() {
	engine_host=${DOCKER_HOST:-unix:///var/run/docker.sock}
	case $engine_host in
	unix://*) curl -sf -m 2 -o /dev/null --unix-socket "${engine_host#unix://}" http://engine/_ping ;;
	*) curl -sf -m 2 -o /dev/null "http://${engine_host#tcp://}/_ping" ;;
	esac
}

# What tests need besides, as PROGRAM:PACKAGE. Without one of them a test is
# skipped, which REQUIRE_BACKENDS makes a failure.
engine_programs="runc:runc npm:npm git:git hg:mercurial busybox:busybox dash:dash tmux:tmux pgrep:procps vi:vim-tiny
	perl:perl python3:python3 pip3:python3-pip cargo:cargo curl:curl make:make setpriv:util-linux ldd:libc-bin"

# engine_install installs what is missing, and nothing where nothing is.
# Arguments are more programs, in the form of engine_programs.
engine_install() {
	wanted=
	command -v dockerd >/dev/null || engine_answers || wanted="$wanted docker.io"
	for program in $engine_programs "$@"; do
		command -v "${program%:*}" >/dev/null || wanted="$wanted ${program#*:}"
	done
	[ -n "$wanted" ] || return 0
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "INSTALL=1 needs root on Debian or Ubuntu to install:$wanted" >&2
		return 1
	fi
	echo "installing:$wanted"
	# Without this the package would start a service that nothing stops.
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$policy" ]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod +x "$policy"
		engine_policy=$policy
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt-get -o Acquire::Retries=3 update -qq </dev/null
	# shellcheck disable=SC2086 # word splitting is meant
	apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends $wanted </dev/null >/dev/null
	engine_policy_remove
}

engine_policy_remove() {
	[ -z "${engine_policy:-}" ] || rm -f "$engine_policy"
	engine_policy=
}

# engine_start starts dockerd unless an engine answers or is about to.
engine_start() {
	engine_answers && return 0
	if [ -f /var/run/docker.pid ] && kill -0 "$(cat /var/run/docker.pid)" 2>/dev/null; then
		echo "waiting for the engine that is starting"
	else
		engine_log=$(mktemp "${TMPDIR:-/tmp}/caisson-dockerd.XXXXXX")
		echo "starting dockerd, log in $engine_log"
		dockerd >"$engine_log" 2>&1 </dev/null &
		engine_pid=$!
	fi
	tries=0
	until engine_answers; do
		tries=$((tries + 1))
		if [ "$tries" -gt 60 ] || { [ -n "$engine_pid" ] && ! kill -0 "$engine_pid" 2>/dev/null; }; then
			echo "the engine does not answer; the end of its log:" >&2
			[ -z "$engine_log" ] || tail -n 20 "$engine_log" >&2
			return 1
		fi
		sleep 1
	done
}

# engine_stop stops the dockerd that engine_start started, and no other.
engine_stop() {
	engine_policy_remove
	[ -n "$engine_pid" ] || return 0
	kill "$engine_pid" 2>/dev/null || true
	tries=0
	while kill -0 "$engine_pid" 2>/dev/null; do
		tries=$((tries + 1))
		[ "$tries" -le 30 ] || kill -KILL "$engine_pid" 2>/dev/null || true
		[ "$tries" -le 35 ] || break
		sleep 1
	done
	engine_pid=
	[ "${status:-1}" != 0 ] || rm -f "$engine_log" # of a failure, somebody may want it
}

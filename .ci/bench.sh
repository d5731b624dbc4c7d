#!/bin/sh
# Measures Caisson and its peers in one run on this machine and prints the
# targets with what was measured. A backend or peer that is missing is
# named, and its rows have no result; INSTALL=1 brings an engine and the peers
# first. WRITE=1 also writes the tables, their pictures and the machine to
# docs/benchmarks.md and beside it.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}" "${BENCHTIME:=3s}" "${KILLS:=100x}" "${STARTS:=40x}" "${SEARCHES:=11x}" "${WRITE:=}"
for program in bin/caisson bin/caisson-guest; do
	[ -x "$program" ] || {
		echo "$program is missing: run make bench" >&2
		exit 2
	}
done
. .ci/engine.sh
output=$(mktemp)
trap 'rm -f "$output"; engine_stop' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ "${INSTALL:-}" = 1 ]; then
	engine_install rg:ripgrep fdfind:fd-find slirp4netns:slirp4netns pasta:passt
	engine_start
fi
missing=
for program in docker runc bin/runsc bin/runsc-stock rg fdfind slirp4netns pasta; do
	command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
"$GO" build -C .ci -o bin/benchtable ./benchtable
export E2E_BIN="$PWD/bin"
status=0
measure() { # package, pattern, time
	echo "measuring $1 $2" >&2
	"$GO" test -run '^$' -bench "$2" -benchtime "$3" -timeout 30m "$1" >>"$output" 2>&1 || status=$?
}
measure ./e2e '^Benchmark(Exec|Read|Output|Warm)$' "$BENCHTIME"
measure ./e2e '^BenchmarkStartup$' 40x
measure ./e2e '^BenchmarkFresh$' "$STARTS"
measure ./e2e '^BenchmarkSearch$' "$SEARCHES"
measure ./e2e '^BenchmarkSession$' 3x
measure ./e2e '^BenchmarkResume$' 11x
measure ./e2e '^BenchmarkGrowth$' 7x
measure ./e2e '^BenchmarkChat$' 11x
measure ./e2e '^BenchmarkChatResizes$' 1x
measure ./e2e '^BenchmarkTerminal$' 20x
measure ./e2e '^BenchmarkKill$/^(docker|gvisor|runc)$' "$KILLS"
measure ./e2e '^BenchmarkIdle$' 1x
measure ./e2e '^BenchmarkIsolation$' 11x
measure ./e2e '^BenchmarkNetwork$' 5x
measure ./e2e '^BenchmarkFlood$' 3x
measure ./e2e '^BenchmarkTrials$' 3x
measure ./e2e '^BenchmarkTrialMemory$' 1x
measure ./tools/dispatch '^BenchmarkRound$' "$BENCHTIME"
measure ./runner '^BenchmarkLoop$' 10x
measure ./runner/record '^BenchmarkRecorder$' 5000x
measure ./runner/server '^BenchmarkReconnect$' "$BENCHTIME"
measure ./sandbox/docker '^BenchmarkStart$' "$STARTS"
measure ./sandbox/oci '^BenchmarkStart$' "$STARTS"
[ "$status" = 0 ] || cat "$output" >&2

machine=$(
	echo "Measured $(date -u +%Y-%m-%d) on"
	echo
	echo "- $(uname -srm), $(getconf _NPROCESSORS_ONLN) processors,$(sed -n 's/^model name[^:]*://p' /proc/cpuinfo 2>/dev/null | head -n 1), $(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo 2>/dev/null) of memory"
	if [ -f /sys/fs/cgroup/cgroup.controllers ]; then echo "- cgroup v2"; else echo "- cgroup v1"; fi
	echo "- $("$GO" version | cut -d ' ' -f 3), caisson $(git describe --tags --always --dirty 2>/dev/null || echo unknown)"
	for program in runc bin/runsc; do
		command -v "$program" >/dev/null 2>&1 && echo "- $("$program" --version 2>/dev/null | head -n 1)"
	done
	command -v docker >/dev/null 2>&1 && docker version --format '- Docker {{.Server.Version}}' 2>/dev/null
	echo "- load when it was over: $(cut -d ' ' -f 1-3 /proc/loadavg 2>/dev/null)"
)
set --
[ -z "$WRITE" ] || set -- -o docs/benchmarks.md -machine "$machine"
.ci/bin/benchtable "$@" <"$output" 2>/dev/null || status=$?
printf '\n%s\n\n' "$machine"
[ -z "$missing" ] || echo "Missing, so that rows have no result:$missing."
echo "Leaks after 1,000 sessions with 5 % killed at random: a run of its own, see docs/testing.md."
exit "$status"

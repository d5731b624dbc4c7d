#!/bin/sh
# Runs all tests of all modules and prints what failed, what was skipped and why, and
# what passed only when it was repeated.
#
#   INSTALL=1            bring an engine and runc first; stop what was started
#   REQUIRE_BACKENDS=…   every skip is a failure (CI sets docker,gvisor,runc)
#   SAMPLE=1             tests of a matrix, of backends for example, run at one point of it
#   VET=off              don't vet the packages that make lint vets
#   RACE=1               under the race detector, which needs cgo
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}"

. .ci/engine.sh
logs=$(mktemp -d)
modules=
# Ends a process and all that it started: end_tree PID.
end_tree() {
	set -- "$1" $(cat /proc/"$1"/task/*/children 2>/dev/null)
	kill "$1" 2>/dev/null || true
	shift
	for child; do end_tree "$child"; done
}
trap '[ -z "$modules" ] || end_tree "$modules"; rm -rf "$logs"; engine_stop' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ "${INSTALL:-}" = 1 ]; then
	engine_install chromium:chromium
	engine_start
fi

race=
if [ "${RACE:-}" = 1 ]; then
	command -v "${CC:-gcc}" >/dev/null || command -v clang >/dev/null || {
		echo "make race: the race detector needs cgo: install gcc or clang" >&2
		exit 2
	}
	export CGO_ENABLED=1
	race=-race
else
	export CGO_ENABLED=0
fi

vet=
[ -z "${VET:-}" ] || vet=-vet=$VET
export E2E_BIN="$PWD/bin"
# Without symbols a third of the time to link a hundred test programs is saved.
link='-ldflags=-s -w'

"$GO" build -C .ci/tools -o ../bin/gotestsum gotest.tools/gotestsum
PATH="$("$GO" env GOROOT)/bin:$PWD/.ci/bin:$PATH" # gotestsum runs the go command of the PATH
status=0 run=0 slowly=
# Runs the tests of a directory's packages: run_tests DIRECTORY PACKAGES [FLAG]...
# Many tests have deadlines, which a machine that others use misses at times: if a few
# fail, each runs once more, alone.
run_tests() {
	directory=$1 patterns=$2 run=$((run + 1))
	shift 2
	(cd "$directory" && $slowly gotestsum -f standard-quiet --jsonfile "$logs/$run.json" --rerun-fails=1 \
		--rerun-fails-report "$logs/$run.repeated" --packages "$patterns" -- -count=1 "$@") || status=1
	# A package that fails without a failed test, because a goroutine is left, would pass
	# when none of its tests runs again.
	failures=$(grep '"Action":"fail"' "$logs/$run.json" || true)
	# After a crash of the runtime, tests that had not run would not be missed either.
	! grep '"Output":"fatal error: ' "$logs/$run.json" || status=1
	for package in $(echo "$failures" | sed -n 's/.*"Package":"\([^"]*\)","Elapsed".*/\1/p'); do
		echo "$failures" | grep -q "\"Package\":\"$package\",\"Test\"" || {
			echo "FAIL	$package, without a failed test"
			status=1
		}
	done
}

# The end-to-end tests list what is left on the machine, so they run alone. The other
# packages wait for most of their time, so several run at once, the longest first. The
# time limits are three times what these need.
longest=
for package in sandbox/oci sandbox/docker runner/batch cmd/caisson runner runner/server; do
	longest="$longest $("$GO" list ./$package)"
done
packages="$longest $("$GO" list ./... | grep -v /e2e | grep -vxF "$(printf '%s\n' $longest)")"
# What the other modules and the end-to-end tests compile takes the processors while the
# packages wait. Some tests of e2e only read the source.
source='^Test(Anchors|CommandLineText|CorpusTable|Design.*|DocumentLinks|GuestLinksLittle|InitAllocations|Layers.*|Libraries.*|RootPackageIsSmall|.*Table|TablesSeeFaults)$'
# They are nice, so that no test of the others misses a deadline for them. Their own tests have
# deadlines too, and are nice only to the compiler, if the user may lower a niceness.
(
	slowly='nice -n 15'
	[ "$(id -u)" = 0 ] && run_as='-exec=nice -n -12' || run_as=
	for module in .ci .ci/intoto .ci/otel .ci/ollamawire .ci/junit .ci/s3 .ci/deploy sandbox/oci/runsc; do
		run_tests $module ./... -timeout=45m ${run_as:+"$run_as"} # some build servers
	done
	run_tests . ./e2e $vet $race "$link" -run "$source"
	exit "$status"
) >"$logs/modules" 2>&1 &
modules=$! run=100
run_tests . "$packages" -timeout=45m -p=2 -parallel=3 $vet $race "$link"
# A browser keeps the processors busy, and a code to sign in lives for a minute, so its tests
# run beside the last modules only, which wait.
run_tests .ci/browser ./... -timeout=30m
wait "$modules" || status=1
modules=
cat "$logs/modules"
run_tests . ./e2e/... -timeout=45m -parallel=3 $vet $race "$link" -skip "$source"

cat "$logs"/*.json >"$logs/all"
gotestsum tool slowest --jsonfile "$logs/all" --threshold 1s --num 20
repeated=$(cat "$logs"/*.repeated 2>/dev/null || true)
[ -z "$repeated" ] || printf '\nfailed, and repeated alone:\n%s\n' "$repeated"
tests() { grep '"Test":' "$logs/all" | grep -c "\"Action\":\"$1\"" || true; }
passed=$(tests pass) skipped=$(tests skip)
printf '\n%s passed, %s skipped\n' "$passed" "$skipped"
[ "$passed" -gt 0 ] || status=1
[ -z "${REQUIRE_BACKENDS:-}" ] || [ "$skipped" = 0 ] || status=1
exit "$status"

#!/bin/sh
# The tests of greet.sh. Needs a POSIX shell and nothing else.
cd "$(dirname "$0")" || exit 2
failed=0

check() {
	want=$1
	shift
	got=$(sh greet.sh "$@")
	if [ "$got" = "$want" ]; then
		echo "ok    greet.sh $*"
	else
		echo "FAIL  greet.sh $*"
		echo "      want: $want"
		echo "      got:  $got"
		failed=1
	fi
}

check "Hello, Ada!" Ada
check "Hello, Ada!
Hello, Grace!" Ada Grace
check "Hello, Grace Hopper!" "Grace Hopper"
exit $failed

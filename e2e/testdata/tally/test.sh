#!/bin/sh
# Says PASS, or what is wrong.
got=$(sh tally.sh 2 3 4)
if [ "$got" != 9 ]; then
	echo "FAIL: tally.sh 2 3 4 is $got, want 9"
	exit 1
fi
echo PASS

#!/bin/sh
# Greets people: greet.sh NAME...
for name in $*; do
	echo "Hello, $name!"
done

// Programs that the Makefile and the scripts of this folder run, of the standard library
// alone.
module github.com/caisson-run/caisson/ci

go 1.26.5

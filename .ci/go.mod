// A program that bench.sh runs, of the standard library
// alone.
module github.com/caisson-run/caisson/ci

go 1.26.5

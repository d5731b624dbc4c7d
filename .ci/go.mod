// The program that bench.sh runs. It needs the standard library only.
module github.com/caisson-run/caisson/ci

go 1.26.5

// The programs that the scripts of this folder use: standard library only, so
// that running the tests downloads nothing for them.
module github.com/caisson-run/caisson/ci

go 1.26.5

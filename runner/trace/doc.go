// Package trace reads sessions back: it finds and lists them, reads one with
// bounded memory however long it is, verifies it, and renders it for people, as
// one HTML page and as an ATIF trajectory. It only reads; what a trace holds is
// foreign to it, and may be hostile, damaged or huge.
//
// It is rank 4, below runner.
package trace

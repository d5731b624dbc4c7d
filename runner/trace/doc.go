// Package trace finds and lists sessions, reads one with bounded memory however
// long it is, verifies it, and renders it for people, as one HTML page and as
// an ATIF trajectory. It only reads. The content of a trace is untrusted: it
// may be hostile, damaged or huge.
//
// It is rank 9, above runner.
package trace

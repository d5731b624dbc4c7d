package oci

import (
	"errors"
	"fmt"
	"os"
)

// streams are the container's ends of its standard streams. They must be pipes:
// gVisor writes to a regular file at its own offset and overwrites what is
// there.
type streams struct{ stdin, stdout, stderr *os.File }

func (s streams) close() error {
	return errors.Join(s.stdin.Close(), s.stdout.Close(), s.stderr.Close())
}

// stdio is our end: the guest's connection, and its standard error, which
// matters only when it dies.
type stdio struct {
	in, out *os.File
	stderr  *tail
}

// openStdio makes the pipes. Close the streams once the runtime has them, and
// the stdio at the end.
func openStdio() (*stdio, streams, error) {
	var ends [6]*os.File
	for i := 0; i < len(ends); i += 2 {
		r, w, err := os.Pipe()
		if err != nil {
			for _, f := range ends[:i] {
				_ = f.Close() // nothing was written
			}
			return nil, streams{}, fmt.Errorf("make pipes: %w", err)
		}
		ends[i], ends[i+1] = r, w
	}
	s := &stdio{in: ends[1], out: ends[2], stderr: readTail(ends[4])}
	return s, streams{stdin: ends[0], stdout: ends[3], stderr: ends[5]}, nil
}

func (s *stdio) Read(p []byte) (int, error) { return s.out.Read(p) }

func (s *stdio) Write(p []byte) (int, error) { return s.in.Write(p) }

// Close closes both directions, which makes the guest exit. A second call
// returns an error.
func (s *stdio) Close() error { return errors.Join(s.in.Close(), s.out.Close()) }

// Stderr returns the beginning of standard error, without gVisor's log.
func (s *stdio) Stderr() string {
	_, others := s.stderr.split()
	return string(others)
}

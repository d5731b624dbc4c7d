// Package ci keeps a CI system's runner from obeying Caisson's output. Runners look for
// commands in a step's output, such as "::set-output name=x::y" or
// "##vso[task.setvariable]", and texts of models and programs may have some.
package ci

import (
	"crypto/rand"
	"encoding/hex"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// closeTimeout bounds how long [Guard.Close] waits for a reader that doesn't read.
const closeTimeout = time.Second

// Guard guards standard output and standard error. It escapes the beginnings of
// commands on both. On GitHub it also stops commands from the first line of standard
// error to the last: "stop-commands" applies to both streams.
type Guard struct {
	stdout, stderr *Stream
	// stop and resume are lines of standard error, or "".
	stop, resume string
	begun        sync.Once
	patience     time.Duration
}

// New returns a guard for the CI system named by the environment, or nil.
func New(getenv func(string) string, stdout, stderr io.Writer) *Guard {
	github := getenv("GITHUB_ACTIONS") != ""
	if !github && getenv("TF_BUILD") == "" && getenv("TEAMCITY_VERSION") == "" {
		return nil
	}
	g := &Guard{patience: closeTimeout}
	shared := &output{}
	g.stdout = &Stream{guard: g, w: stdout, out: shared}
	g.stderr = &Stream{guard: g, w: stderr, out: shared}
	if !sameFile(stdout, stderr) { // otherwise a marker could be split between the two
		g.stderr.out = &output{}
	}
	g.stdout.out.scan.reset()
	g.stderr.out.scan.reset()
	if github {
		g.stop, g.resume = newStop()
	}
	return g
}

// newStop returns lines that stop and resume commands, with a new token.
func newStop() (stop, resume string) {
	var token [16]byte
	_, _ = rand.Read(token[:])
	text := hex.EncodeToString(token[:])
	return "::stop-commands::" + text + "\n", "::" + text + "::\n"
}

// RunCommands writes workflow commands, one a line, for GitHub's runner to obey,
// between lines that resume and stop commands. Nothing else is written between them. It
// does nothing for other systems.
func (g *Guard) RunCommands(lines []string) {
	if len(lines) == 0 {
		return
	}
	g.writeFirst()
	if g.stdout.out != g.stderr.out {
		g.stdout.out.mu.Lock()
		defer g.stdout.out.mu.Unlock()
	}
	o := g.stderr.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if g.resume == "" || o.closed {
		return
	}
	text := g.resume + strings.Join(lines, "\n") + "\n"
	if !o.scan.atLineStart() {
		text = "\n" + text
	}
	var stop string
	stop, g.resume = newStop()
	_, _ = io.WriteString(g.stderr.w, text+stop) // nothing can be done about an error
	o.scan.startLine()
}

// Stdout returns the guarded standard output.
func (g *Guard) Stdout() *Stream { return g.stdout }

// Stderr returns the guarded standard error.
func (g *Guard) Stderr() *Stream { return g.stderr }

// WriteJSON announces that standard output is JSON. Markers are then escaped
// everywhere, in a way that parsers undo.
func (g *Guard) WriteJSON() {
	g.stdout.out.mu.Lock()
	defer g.stdout.out.mu.Unlock()
	g.stdout.json = true
}

// KeepFiles announces that standard output is data, such as a patch. It is then not
// changed if it goes to a regular file, which no runner reads.
func (g *Guard) KeepFiles() {
	f, ok := g.stdout.w.(*os.File)
	if !ok {
		return
	}
	info, err := f.Stat()
	g.stdout.out.mu.Lock()
	defer g.stdout.out.mu.Unlock()
	g.stdout.exact = err == nil && info.Mode().IsRegular()
}

// Escaped returns the number of markers that were escaped in text on standard output.
// Nothing undoes that.
func (g *Guard) Escaped() int {
	g.stdout.out.mu.Lock()
	defer g.stdout.out.mu.Unlock()
	return g.stdout.escaped
}

// Close writes the last line of standard error. Later output is discarded. Close
// returns within a second.
func (g *Guard) Close() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.writeLast()
	}()
	select {
	case <-done:
	case <-time.After(g.patience):
	}
}

func (g *Guard) writeLast() {
	g.begun.Do(func() { g.stop, g.resume = "", "" })
	o := g.stderr.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.closed = true
	if g.resume == "" {
		return
	}
	line := g.resume
	if !o.scan.atLineStart() {
		line = "\n" + line
	}
	_, _ = io.WriteString(g.stderr.w, line) // nothing can be done about an error
}

// writeFirst writes the first line of standard error.
func (g *Guard) writeFirst() {
	g.begun.Do(func() {
		g.stderr.out.mu.Lock()
		defer g.stderr.out.mu.Unlock()
		if g.stop != "" {
			_, _ = io.WriteString(g.stderr.w, g.stop)
			g.stderr.out.scan.startLine()
		}
	})
}

// output is one file that the runner reads. Both streams share it if they are the same
// file.
type output struct {
	mu     sync.Mutex
	scan   scanner
	closed bool
}

// Stream is a guarded stream. It is safe for concurrent use.
type Stream struct {
	guard *Guard
	w     io.Writer
	out   *output
	json  bool
	exact bool
	// escaped counts escaped markers in text.
	escaped int
}

// Guard returns the stream's guard, nil for a nil Stream.
func (s *Stream) Guard() *Guard {
	if s == nil {
		return nil
	}
	return s.guard
}

func (s *Stream) Unwrap() io.Writer { return s.w }

// Write writes p with markers escaped.
func (s *Stream) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.guard.writeFirst()
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	if s.out.closed {
		return len(p), nil
	}
	text, n := s.out.scan.escapeText(p, s.json)
	switch {
	case s.exact:
		text = p
	case !s.json:
		s.escaped += n
	}
	if _, err := s.w.Write(text); err != nil {
		return 0, err
	}
	return len(p), nil
}

func sameFile(a, b io.Writer) bool {
	if a == b {
		return true
	}
	f, ok := a.(*os.File)
	g, also := b.(*os.File)
	if !ok || !also {
		return false
	}
	one, err := f.Stat()
	two, errTwo := g.Stat()
	return err == nil && errTwo == nil && os.SameFile(one, two)
}

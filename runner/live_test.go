package runner

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/sandbox"
)

func TestDifferencesOfALiveSession(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: write_file, input: {path: a.txt, content: \"new\\n\"}}]\n  - calls: [{tool: shell, input: {command: hang}}]\n  - text: Done.\n")
	b.file("a.txt", "old\n")
	started := make(chan struct{})
	b.backend.Scripts["hang"] = fakesandbox.WaitForEnd(started)
	s := b.opened()
	if d, err := s.Differences(t.Context()); err != nil || len(d.Changed) != 0 {
		t.Errorf("before a turn: %+v, %v", d, err)
	}
	turn, err := s.Start("go")
	if err != nil {
		t.Fatal(err)
	}
	<-started
	d, err := s.Differences(t.Context())
	if err != nil || len(d.Changed) != 1 || !d.Changed[0].HasDiff || !strings.Contains(d.Patch, "-old\n+new\n") {
		t.Errorf("while a turn runs: %+v, %v", d, err)
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("nobody waits"))
	if _, err := s.Differences(gone); err == nil {
		t.Error("a caller that is gone gets an answer")
	}
	turn.Cancel(errors.New("enough"))
	r := s.Close()
	if _, err := s.Differences(t.Context()); !errors.Is(err, ErrOver) {
		t.Errorf("after the end: %v", err)
	}
	if r.Patch != d.Patch {
		t.Errorf("the end's patch is\n%s", r.Patch)
	}
}

// TestDifferencesWhileItCloses: a comparison learns of the end, which waits for nobody else.
func TestDifferencesWhileItCloses(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: say}}]\n  - text: Done.\n")
	b.opts.Mode = sandbox.ModeBind
	b.backend.Scripts["say"] = fakesandbox.WriteText("x")
	s := b.opened()
	startTurn(t, s, "go")
	done := make(chan error)
	for range 8 {
		go func() {
			for {
				if _, err := s.Differences(context.Background()); err != nil {
					done <- err
					return
				}
			}
		}()
	}
	s.Close()
	for range 8 {
		if err := <-done; !errors.Is(err, ErrOver) {
			t.Errorf("compared while it closed: %v", err)
		}
	}
}

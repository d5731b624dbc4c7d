package runner

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

func (b *bench) copied() *bench {
	b.overlaid()
	b.opts.Mode = sandbox.ModeCopy
	return b
}

// slowModel answers call n once its function n returns.
type slowModel struct {
	loop.Model
	before map[int]func()
	calls  int
}

func (m *slowModel) Complete(ctx context.Context, req loop.Request, onDelta func(loop.Delta)) (loop.Response, error) {
	m.calls++
	if f := m.before[m.calls]; f != nil {
		f()
	}
	return m.Model.Complete(ctx, req, onDelta)
}

func waitFor(c <-chan struct{}) func() { return func() { <-c } }

// waitForCheckpoint returns a function that waits for a collection, until the session has noted
// it: another one waits for that.
func waitForCheckpoint(t *testing.T, s **Session, collected <-chan struct{}) func() {
	return func() {
		<-collected
		if err := (*s).sandbox.Collect(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

const lossTurns = `
  - calls: [{tool: shell, input: {command: work}}]
  - calls: [{tool: shell, input: {command: more}}, {tool: shell, input: {command: die}}]
  - calls: [{tool: shell, input: {command: check}}]
  - text: Done.
`

// lossBench returns a bench of lossTurns. collected receives after each collection.
func lossBench(t *testing.T, exceeded bool) (b *bench, collected chan struct{}) {
	b = newBench(t, "").copied()
	b.opts.Concurrency = 1
	b.file("original", "o\n")
	b.backend.Scripts["work"] = bash(t, "echo one >made; rm original")
	b.backend.Scripts["more"] = bash(t, "echo two >more")
	b.backend.Scripts["die"] = fakesandbox.EndSandbox(exceeded)
	collected = make(chan struct{}, 10)
	b.backend.OnCollect = func(_ *fakesandbox.Sandbox, do func() error) error {
		err := do()
		collected <- struct{}{}
		return err
	}
	return b, collected
}

// TestCheckpoint: after any loss, the fresh sandbox has the copy as of the last model call, and
// the model is told so.
func TestCheckpoint(t *testing.T) {
	for name, exceeded := range map[string]bool{"killed": false, "limit": true} {
		t.Run(name, func(t *testing.T) {
			b, collected := lossBench(t, exceeded)
			var s *Session
			b.opts.Profiles = []loop.Profile{{Model: &slowModel{Model: player(t, lossTurns), before: map[int]func(){2: waitForCheckpoint(t, &s, collected)}}}}
			b.backend.Scripts["check"] = bash(t, `test "$(cat made)" = one; test ! -e original; test ! -e more`)
			s = b.opened()
			if r := startTurn(t, s, "task"); r.Answer != "Done." {
				t.Errorf("%+v", r)
			}
			r := s.Close()
			records := b.checkSession(r)
			const back = "files of the workspace are back to what they were before the last 2 commands and changes of files"
			if !strings.Contains(told(records), back) {
				t.Errorf("the model is not told %q", back)
			}
			if lost := of[record.SandboxLost](t, records); len(lost) != 1 || !lost[0].Restarting || lost[0].Workspace != back {
				t.Errorf("lost: %+v", lost)
			}
			if r.Restarts != 1 || changedPaths(r) != "made original" {
				t.Errorf("%d restarts, changed %s", r.Restarts, changedPaths(r))
			}
		})
	}
}

// TestNoCheckpoint is the control: without checkpoints, a loss ends the run, or the fresh sandbox
// has the original directory.
func TestNoCheckpoint(t *testing.T) {
	b, _ := lossBench(t, false)
	b.opts.Profiles, b.opts.NoCheckpoints = []loop.Profile{{Model: player(t, lossTurns)}}, true
	s := b.opened()
	if r := startTurn(t, s, "task"); r.Reason != loop.StopSandboxLost {
		t.Errorf("%+v", r)
	}
	if r := s.Close(); !r.Incomplete || len(r.Changed) != 0 {
		t.Errorf("incomplete %t, changed %+v", r.Incomplete, r.Changed)
	}
	b, collected := lossBench(t, true)
	b.opts.Profiles, b.opts.NoCheckpoints = []loop.Profile{{Model: player(t, lossTurns)}}, true
	b.backend.Scripts["check"] = bash(t, `test ! -e made; test -e original`)
	s = b.opened()
	if r := startTurn(t, s, "task"); r.Answer != "Done." || len(collected) != 0 {
		t.Errorf("%+v with %d collections", r, len(collected))
	}
	if records := b.checkSession(s.Close()); !strings.Contains(told(records), "back to what they were when the session began") {
		t.Error("the model is not told")
	}
}

// TestCheckpointBesideCalls: a checkpoint that is running when the model answers continues during
// the calls. After a loss, the fresh sandbox waits for it, and the model is told that it may have
// a part of the calls' changes.
func TestCheckpointBesideCalls(t *testing.T) {
	b, _ := lossBench(t, false)
	b.backend.Scripts["check"] = bash(t, "test -e made")
	var collections atomic.Int32
	var collecting atomic.Bool
	began, ran, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	b.opts.Profiles = []loop.Profile{{Model: &slowModel{Model: player(t, lossTurns), before: map[int]func(){2: waitFor(began)}}}}
	more := b.backend.Scripts["more"]
	b.backend.Scripts["more"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		defer close(ran)
		return more(ctx, box, cmd)
	}
	die := b.backend.Scripts["die"]
	b.backend.Scripts["die"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		<-done
		return die(ctx, box, cmd)
	}
	b.backend.OnCollect = func(box *fakesandbox.Sandbox, do func() error) error {
		if collections.Add(1) > 1 {
			return do()
		}
		collecting.Store(true)
		defer collecting.Store(false)
		close(began)
		<-ran
		err := do()
		close(done)
		<-box.Done()
		for range 100_000 {
			runtime.Gosched() // a sandbox that doesn't wait starts now
		}
		return err
	}
	b.backend.OnCreate = func(_ context.Context, number int) error {
		if number > 0 && collecting.Load() {
			t.Error("a sandbox starts while changes are collected")
		}
		return nil
	}
	s := b.opened()
	startTurn(t, s, "task")
	records := b.checkSession(s.Close())
	if got := of[record.SandboxLost](t, records); len(got) != 1 || !got[0].Restarting || got[0].Workspace != "files of the workspace are back to what they were while or before the last 2 commands and changes of files ran" {
		t.Errorf("lost: %+v", got)
	}
}

// TestCheckpointFails: the session continues, with one warning in the records.
func TestCheckpointFails(t *testing.T) {
	b, _ := lossBench(t, false)
	b.backend.Scripts["die"], b.backend.Scripts["check"] = bash(t, ":"), bash(t, ":")
	failed := make(chan struct{}, 10)
	var all atomic.Int32
	b.backend.OnCollect = func(_ *fakesandbox.Sandbox, do func() error) error {
		if all.Add(1) > 2 {
			return do()
		}
		failed <- struct{}{}
		return errors.New("too many files")
	}
	b.opts.Profiles = []loop.Profile{{Model: &slowModel{Model: player(t, lossTurns), before: map[int]func(){2: waitFor(failed), 3: waitFor(failed)}}}}
	s := b.opened()
	if r := startTurn(t, s, "task"); r.Answer != "Done." {
		t.Errorf("%+v", r)
	}
	r := s.Close()
	warnings := 0
	for _, w := range of[record.Warning](t, b.checkSession(r)) {
		if strings.Contains(w.Message, "would lack the latest changes of the workspace: too many files") {
			warnings++
		}
	}
	if warnings != 1 || r.Incomplete || changedPaths(r) != "made more original" {
		t.Errorf("%d warnings, incomplete %t, changed %s", warnings, r.Incomplete, changedPaths(r))
	}
}

// TestUserMeetsLoss: if a user's command meets the loss, the model is told about the copy's state.
func TestUserMeetsLoss(t *testing.T) {
	b, collected := lossBench(t, false)
	var s *Session
	b.opts.Profiles = []loop.Profile{{Model: &slowModel{Model: player(t, "  - calls: [{tool: shell, input: {command: work}}]\n"+lastTurn+"  - calls: [{tool: shell, input: {command: check}}]\n"+lastTurn), before: map[int]func(){2: waitForCheckpoint(t, &s, collected)}}}}
	b.backend.Scripts["check"] = bash(t, `test "$(cat made)" = one`)
	s = b.opened()
	startTurn(t, s, "one")
	if _, err := s.Exec(t.Context(), UserCommand{Argv: []string{"die"}}); err == nil {
		t.Error("a command that met the loss succeeds")
	}
	startTurn(t, s, "two")
	if records := b.checkSession(s.Close()); !strings.Contains(told(records), "Note: the sandbox was lost and replaced by a fresh one; files of the workspace are back to what they were before the last command") {
		t.Error("the model is not told")
	}
}

// TestForkOfCopyFails where not all changes could be collected, and the session goes on.
func TestForkOfCopyFails(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: work}}]\n"+lastTurn+"  - calls: [{tool: shell, input: {command: check}}]\n"+lastTurn).copied()
	b.opts.NoCheckpoints = true
	b.backend.Scripts["work"], b.backend.Scripts["check"] = bash(t, "echo x >made"), bash(t, "test -e made")
	var once sync.Once
	b.backend.OnCollect = func(_ *fakesandbox.Sandbox, do func() error) (err error) {
		once.Do(func() { err = errors.New("closed") })
		return errors.Join(err, do())
	}
	s := b.opened()
	startTurn(t, s, "one")
	if forks, err := s.Fork(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "closed") || forks != nil {
		t.Errorf("%v, %v", forks, err)
	}
	startTurn(t, s, "two")
	if n := len(b.backend.Sandboxes); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
	if r := s.Close(); changedPaths(r) != "made" {
		t.Errorf("changed %s", changedPaths(r))
	}
}

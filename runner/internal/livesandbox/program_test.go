package livesandbox

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/internal/diskwatch"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

func TestDiskFullErrors(t *testing.T) {
	for cause, want := range map[error]string{
		errors.New("user"): "", &limits.ExceededError{Kind: limits.KindMemory, Limit: 1 << 30}: "",
		&limits.ExceededError{Kind: limits.KindDisk, Limit: 1 << 30}:           "less than 1024 MiB left",
		&limits.ExceededError{Kind: limits.KindDisk, Limit: 5000, Files: true}: "less than 5000 more files",
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if err := diskFull(ctx); (err != nil) != (want != "") || err != nil && (!strings.Contains(err.Error(), want) || !errors.Is(err, cause)) {
			t.Errorf("%v: %v", cause, err)
		}
	}
}

// TestProgramsThatDoNotRun: the sandbox refuses one, is lost, or keeps processes. The workspace is
// checked after programs that ran.
func TestProgramsThatDoNotRun(t *testing.T) {
	for name, c := range map[string]struct {
		refuses error
		fills   bool // the disk, before it starts
		script  fakesandbox.Script
		left    int
		last    bool // no other sandbox follows
		unready error
		after   int
		want    error
	}{
		"one that runs": {script: fakesandbox.WriteText("x"), after: 1},
		"one that ended before the disk was full": {script: fakesandbox.WriteText("x"), after: 1},
		"a refused one":               {refuses: sandbox.ErrInvalid, want: sandbox.ErrInvalid},
		"one on a full disk":          {refuses: sandbox.ErrInvalid, fills: true, want: &limits.ExceededError{}},
		"one that leaves one":         {script: fakesandbox.WriteText("x"), left: 1, after: 1},
		"one that leaves one at last": {script: fakesandbox.WriteText("x"), left: 1, last: true, want: tools.ErrSandboxLost},
		"one without a workspace":     {script: fakesandbox.WriteText("x"), unready: sandbox.ErrState, want: sandbox.ErrState},
		"one that is lost":            {script: fakesandbox.EndSandbox(true), want: &tools.Error{}, after: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := startedBackgrounds(t, map[string]fakesandbox.Script{"run": c.script})
			backend := b.x.sandbox.opts.Backend.(*fakesandbox.Backend)
			backend.Unkillable = map[string]int{"run": c.left}
			free := int64(4 * diskwatch.Reserve)
			var mu sync.Mutex
			b.x.disk = diskwatch.New(diskwatch.Reserve, func() diskwatch.Room {
				mu.Lock()
				defer mu.Unlock()
				return diskwatch.Room{Bytes: free, Files: -1}
			}, nil)
			var watched context.Context
			backend.OnStart = func(ctx context.Context, _ sandbox.Command) error {
				watched = ctx
				if c.fills {
					mu.Lock()
					free = 0
					mu.Unlock()
					<-ctx.Done()
				}
				return c.refuses
			}
			after, lost := 0, 0
			b.x.opts.AfterCommand = func(context.Context) {
				if after++; name == "one that ended before the disk was full" {
					mu.Lock()
					free = 0
					mu.Unlock()
					<-watched.Done()
				}
			}
			if _, err := b.x.waitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.x.sandbox.opts.Record = func(p record.Payload) error {
				if _, ok := p.(record.SandboxLost); ok {
					lost++
				}
				return nil
			}
			if c.last {
				b.x.sandbox.restarts, b.x.sandbox.opts.Fail = maxRestarts, func(error) {}
			}
			b.x.opts.WaitRecorded = func(context.Context) error { return c.unready }
			_, err := b.x.RunProgram(t.Context(), sandbox.Command{Argv: []string{"run"}, Stdout: io.Discard, Stderr: io.Discard})
			if (err != nil) != (c.want != nil) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if full, isFull := errors.AsType[*limits.ExceededError](err); c.fills && (!isFull || full.Kind != limits.KindDisk) || c.refuses != nil && !c.fills && !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if after != c.after || (lost == 1) != (c.left > 0 || name == "one that is lost") {
				t.Errorf("looked %d times, lost %d sandboxes", after, lost)
			}
		})
	}
}

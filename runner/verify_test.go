package runner

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/internal/diskwatch"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/verify"
	"go.uber.org/zap"
)

// TestChecksGetWhatACommandWrote: a check learns how its command ended, what it wrote, and where that
// was cut.
func TestChecksGetWhatACommandWrote(t *testing.T) {
	const captureBytes = 32 << 10 // of each end of the output
	long := strings.Repeat("x", 3*captureBytes)
	backend := &fakesandbox.Backend{Scripts: map[string]fakesandbox.Script{
		"short": func(_ context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
			_, _ = cmd.Stdout.Write([]byte("short"))
			return sandbox.ExitStatus{Code: 3}
		},
		"long": fakesandbox.WriteText(long),
	}}
	x := newTestExecutor(t, backend, nil)
	got, err := checker{x}.RunCheck(t.Context(), verify.Command{Script: "short"})
	if err != nil || got.Status != (sandbox.ExitStatus{Code: 3}) || got.Stdout != "short" || got.Cut {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = checker{x}.RunCheck(t.Context(), verify.Command{Script: "long"})
	if head, tail, _ := strings.Cut(got.Stdout, "\n"); err != nil || !got.Cut || got.Status.Code != 0 || got.Exceeded != nil || len(head) != captureBytes || len(tail) != captureBytes {
		t.Errorf("%d bytes, cut: %t, %v", len(got.Stdout), got.Cut, err)
	}
	backend.Scripts["whole"] = fakesandbox.WriteText(long[:captureBytes+1])
	if got, err := (checker{x}).RunCheck(t.Context(), verify.Command{Script: "whole"}); err != nil || got.Cut || got.Stdout != long[:captureBytes+1] {
		t.Errorf("%d bytes, cut: %t, %v", len(got.Stdout), got.Cut, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (checker{x}).RunCheck(ctx, verify.Command{Script: "short"}); err == nil {
		t.Error("a check that did not run has ended")
	}
	started := make(chan struct{})
	backend.Scripts["fill"] = fakesandbox.WaitForEnd(started)
	x = newTestExecutor(t, backend, func() diskwatch.Room {
		select {
		case <-started:
			return diskwatch.Room{Bytes: 1000, Files: -1}
		default:
			return diskwatch.Room{Bytes: 4 * diskwatch.Reserve, Files: -1}
		}
	})
	if got, err := (checker{x}).RunCheck(t.Context(), verify.Command{Script: "fill"}); err != nil || got.Exceeded == nil {
		t.Errorf("on a full disk: %+v, %v", got, err)
	}
}

// TestVerifyToolsNeedTime: a check's command needs at least a second.
func TestVerifyToolsNeedTime(t *testing.T) {
	for limit, fails := range map[time.Duration]bool{time.Second: false, time.Millisecond: true} {
		if _, err := newDefiner(ToolOptions{}, sandbox.Setup{Resources: limits.Resources{CommandTime: limit}}).verifyTools(); (err != nil) != fails {
			t.Errorf("%v: %v", limit, err)
		}
	}
}

// newTestExecutor returns an executor without a session.
func newTestExecutor(t *testing.T, backend *fakesandbox.Backend, room func() diskwatch.Room) *livesandbox.Executor {
	t.Helper()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	state := t.TempDir()
	if err := os.Mkdir(filepath.Join(state, record.SpillDir), 0o700); err != nil {
		t.Fatal(err)
	}
	box := livesandbox.New(t.Context(), livesandbox.Options{
		Backend: backend, Spec: sandbox.Spec{Workspace: sandbox.Workspace{Path: dir.Name(), Dir: dir}},
		Record: func(record.Payload) error { return nil }, Fail: func(err error) { t.Error(err) },
	})
	t.Cleanup(box.StopAndDestroy)
	return livesandbox.NewExecutor(box, livesandbox.ExecutorOptions{
		Dir: state, Room: room, WaitRecorded: func(context.Context) error { return nil }, AfterCommand: func(context.Context) {},
		RecordBackground: func(record.BackgroundEnded) error { return nil }, Log: zap.NewNop(),
	})
}

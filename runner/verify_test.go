//go:build linux

package runner

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/verify"
)

// TestChecksGetWhatACommandWrote: a check is given how its command ended and what
// it wrote, and is told where that was cut.
func TestChecksGetWhatACommandWrote(t *testing.T) {
	long := strings.Repeat("x", 3*captureBytes)
	b, _ := startedBackgrounds(t, map[string]fakesandbox.Script{
		"short": func(_ context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
			_, _ = cmd.Stdout.Write([]byte("short"))
			return sandbox.ExitStatus{Code: 3}
		},
		"long": fakesandbox.WriteText(long),
	})
	got, err := checker{b.x}.RunCheck(t.Context(), verify.Command{Script: "short"})
	if err != nil || got != (verify.Ended{ExitStatus: sandbox.ExitStatus{Code: 3}, Stdout: "short"}) {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = checker{b.x}.RunCheck(t.Context(), verify.Command{Script: "long"})
	if head, tail, _ := strings.Cut(got.Stdout, "\n"); err != nil || !got.Cut || got.Code != 0 || got.DiskFull || len(head) != captureBytes || len(tail) != captureBytes {
		t.Errorf("%d bytes, cut: %t, %v", len(got.Stdout), got.Cut, err)
	}
	b.x.sandbox.backend.(*fakesandbox.Backend).Scripts["whole"] = fakesandbox.WriteText(long[:captureBytes+1])
	if got, err := (checker{b.x}).RunCheck(t.Context(), verify.Command{Script: "whole"}); err != nil || got.Cut || got.Stdout != long[:captureBytes+1] {
		t.Errorf("%d bytes, cut: %t, %v", len(got.Stdout), got.Cut, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (checker{b.x}).RunCheck(ctx, verify.Command{Script: "short"}); err == nil {
		t.Error("a check that did not run has ended")
	}
	x := filling(t)
	if got, err := (checker{x}).RunCheck(t.Context(), verify.Command{Script: "fill"}); err != nil || !got.DiskFull {
		t.Errorf("on a full disk: %+v, %v", got, err)
	}
}

// TestVerifyToolsNeedTime: no command of a check can run in less than a second.
func TestVerifyToolsNeedTime(t *testing.T) {
	for limit, fails := range map[time.Duration]bool{time.Second: false, time.Millisecond: true} {
		ts := toolset{reader: fakesandbox.LostView{}, opts: Options{SandboxOptions: SandboxOptions{Resources: limits.Resources{CommandTime: limit}}}}
		if _, err := ts.verifyTools(); (err != nil) != fails {
			t.Errorf("%v: %v", limit, err)
		}
	}
}

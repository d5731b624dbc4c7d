package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/sandbox"
)

// noisy fills a pipe: each call's record has some 20 KB.
func noisy() string {
	var turns strings.Builder
	for i := range 12 {
		fmt.Fprintf(&turns, "  - calls: [{tool: shell, input: {command: \"yes %d | head -c 20000\"}}]\n", i)
	}
	return turns.String()
}

// TestARecordThatNobodyReadsHoldsNothingUp gives --json a pipe that is never read: the
// session continues to its end, obeys signals, and is recorded.
func TestARecordThatNobodyReadsHoldsNothingUp(t *testing.T) {
	for name, tc := range map[string]struct {
		turns  string
		args   []string
		signal bool
		want   int
	}{
		"to its answer": {noisy() + "  - text: done\n", nil, false, 0},
		"to its limit":  {noisy() + "  - calls: [{tool: shell, input: {command: sleep 60}}]\n  - text: done\n", []string{"--timeout", "2s", "--grace", "100ms"}, false, 53},
		"to a signal":   {noisy() + "  - calls: [{tool: shell, input: {command: sleep 60}}]\n  - text: done\n", nil, true, 130},
	} {
		t.Run(name, func(t *testing.T) {
			unread, stdout, err := os.Pipe()
			must(t, err)
			defer unread.Close() // this ends the blocked write
			defer stdout.Close()
			w := newWorld(t, tc.turns)
			w.app.stdout, w.app.patience = stdout, 500*time.Millisecond
			signals := make(chan os.Signal, 1)
			w.app.signals = signals
			w.app.backend = func(s caisson.BackendSettings) (sandbox.Backend, error) {
				return &fakeBackend{name: s.Name, started: func(argv []string) {
					if tc.signal && argv[len(argv)-1] == "sleep 60" {
						signals <- syscall.SIGINT
					}
				}}, nil
			}
			var stderr bytes.Buffer
			w.app.stderr = &stderr
			if got := w.run(append([]string{"--json"}, tc.args...)...); got != tc.want {
				t.Errorf("status %d, want %d", got, tc.want)
			}
			if tc.want != 0 && !strings.Contains(stderr.String(), "changes are in the workspace") && !strings.Contains(stderr.String(), "a limit was reached") {
				t.Errorf("standard error says %q", stderr.String())
			}
		})
	}
}

// TestThreeSignalsEndTheProgram: the third one waits for nothing.
func TestThreeSignalsEndTheProgram(t *testing.T) {
	signals, exited := make(chan os.Signal, 3), make(chan int, 1)
	a := &app{signals: signals, exit: func(status int) { exited <- status }}
	ctx, force, _, stop := a.handleInterrupts(t.Context(), func(string) {})
	defer stop()
	for range 3 {
		signals <- syscall.SIGTERM
	}
	if got := <-exited; got != 143 || ctx.Err() == nil {
		t.Errorf("status %d, cancelled %v", got, ctx.Err())
	}
	<-force
}

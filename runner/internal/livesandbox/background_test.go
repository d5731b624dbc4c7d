package livesandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/shell"
)

// logKey is a secret of the sessions here.
const logKey = "k3y-that-nobody-may-see"

// startedBackgrounds returns backgrounds over a fake sandbox, and what they record.
func startedBackgrounds(t *testing.T, scripts map[string]fakesandbox.Script) (*backgrounds, func() []record.BackgroundEnded) {
	t.Helper()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	state := t.TempDir()
	if err := os.Mkdir(state+"/"+record.SpillDir, 0o700); err != nil {
		t.Fatal(err)
	}
	box := New(t.Context(), Options{
		Backend: &fakesandbox.Backend{Scripts: scripts}, Spec: sandbox.Spec{Workspace: sandbox.Workspace{Path: dir.Name(), Dir: dir}},
		Record: func(record.Payload) error { return nil },
	})
	box.EnsureStarted()
	t.Cleanup(box.StopAndDestroy)
	var mu sync.Mutex
	var all []record.BackgroundEnded // read after close
	x := NewExecutor(box, ExecutorOptions{
		Dir: state, Secrets: []redact.Secret{{Name: "OPENAI_API_KEY", Value: logKey}}, WaitRecorded: noWait, AfterCommand: func(context.Context) {},
		RecordBackground: func(e record.BackgroundEnded) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, e)
			return nil
		},
		Log: zap.NewNop(),
	})
	t.Cleanup(x.background.endAll)
	return x.background, func() []record.BackgroundEnded {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

func TestBackgroundsAreBounded(t *testing.T) {
	serve := func(ctx context.Context, b *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		return fakesandbox.WaitForEnd(make(chan struct{}))(ctx, b, cmd)
	}
	b, ended := startedBackgrounds(t, map[string]fakesandbox.Script{"serve": serve})
	var handles []string
	for range maxBackground {
		h, err := b.Begin(t.Context(), shell.Command{Script: "serve"})
		if err != nil {
			t.Fatal(err)
		}
		handles = append(handles, h)
	}
	if _, err := b.Begin(t.Context(), shell.Command{Script: "serve"}); !errors.Is(err, shell.ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	if _, _, err := b.End(t.Context(), handles[3]); err != nil {
		t.Error(err)
	}
	if _, err := b.Begin(t.Context(), shell.Command{Script: "serve"}); err != nil {
		t.Errorf("after one ended: %v", err)
	}
	b.endAll()
	if _, err := b.Begin(t.Context(), shell.Command{Script: "serve"}); !errors.Is(err, errSessionEnd) {
		t.Errorf("after the end: %v", err)
	}
	if n := len(ended()); n != maxBackground+1 {
		t.Errorf("%d ends recorded", n)
	}
	b.count = maxBackgrounds
	b.closed = false
	if _, err := b.Begin(t.Context(), shell.Command{Script: "serve"}); !errors.Is(err, shell.ErrTooMany) {
		t.Errorf("beyond all of a session: %v", err)
	}
}

// TestBackgroundOfACancelledCall: a call that ends before it has the handle leaves no command.
func TestBackgroundOfACancelledCall(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	user := errors.New("user")
	b, ended := startedBackgrounds(t, map[string]fakesandbox.Script{"serve": func(ctx context.Context, _ *fakesandbox.Sandbox, _ sandbox.Command) sandbox.ExitStatus {
		<-ctx.Done()
		return sandbox.ExitStatus{Code: -1, Signal: 15}
	}})
	cancel(user)
	if _, err := b.Begin(ctx, shell.Command{Script: "serve"}); !errors.Is(err, user) {
		t.Errorf("Begin: %v", err)
	}
	b.endAll()
	for _, e := range ended() {
		if e.EndedBy != "cancelled" {
			t.Errorf("ended: %+v", e)
		}
	}
}

func (g *backgroundLog) write(t *testing.T, stream int, text string) {
	t.Helper()
	if n, err := g.streamWriter(stream).Write([]byte(text)); n != len(text) || err != nil {
		t.Fatalf("wrote %d: %v", n, err)
	}
}

func (g *backgroundLog) text(t *testing.T) (string, shell.Kept) {
	t.Helper()
	k, err := g.openKept()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	all, err := io.ReadAll(io.NewSectionReader(k, 0, k.Size))
	if err != nil {
		t.Fatal(err)
	}
	return string(all), k
}

func newLog(t *testing.T) *backgroundLog {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/"+record.SpillDir, 0o700); err != nil {
		t.Fatal(err)
	}
	g, err := newBackgroundLog(newSpiller(dir, []redact.Secret{{Name: "OPENAI_API_KEY", Value: logKey}}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.closeFile() })
	return g
}

// TestBackgroundLogHidesSecrets, even one that is half written when read, or interrupted by other
// output.
func TestBackgroundLogHidesSecrets(t *testing.T) {
	for cut := 1; cut < len(logKey); cut++ {
		g := newLog(t)
		g.write(t, 0, "the key is "+logKey[:cut])
		half, _ := g.text(t)
		g.write(t, 1, "noise on the other stream\n")
		between, _ := g.text(t)
		g.write(t, 0, logKey[cut:]+" and more\n")
		whole, k := g.text(t)
		g.closeFile()
		end, _ := g.text(t)
		// Text stays in its place, so that pages are consistent.
		if !strings.HasPrefix(between, half) || !strings.HasPrefix(whole, between) || end != whole {
			t.Fatalf("cut at %d: %q, then %q, then %q, then %q", cut, half, between, whole, end)
		}
		if strings.Contains(half, logKey[:1]+logKey[1:cut]) && cut > 1 && strings.HasSuffix(half, logKey[:cut]) {
			t.Errorf("cut at %d: half a key is shown: %q", cut, half)
		}
		if strings.Contains(whole, logKey) || !strings.Contains(whole, "[redacted:OPENAI_API_KEY] and more\n") || !k.Redacted {
			t.Errorf("cut at %d: %q", cut, whole)
		}
		if !strings.Contains(whole, "noise on the other stream\n") {
			t.Errorf("cut at %d: lost output: %q", cut, whole)
		}
	}
	// The control: the raw bytes contain the key.
	if naive := "the key is " + logKey[:5] + logKey[5:]; !strings.Contains(naive, logKey) {
		t.Fatal("the test's key is not in what it writes")
	}
}

// TestBackgroundLogIsBounded: a flood fills neither memory nor disk, is counted exactly, and its end is
// readable, without secrets.
func TestBackgroundLogIsBounded(t *testing.T) {
	g := newLog(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	line := strings.Repeat("x", 1000) + " " + logKey + "\n"
	const lines = 100_000 // 100 MB
	for i := range lines {
		if _, err := g.streamWriter(i % 2).Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	g.write(t, 0, "the very end\n")
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("memory grew by %d bytes", grown)
	}
	k, err := g.openKept()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	const most = backgroundBytes * 11 / 10 // a mark is longer than the key in its place
	if k.Total != int64(lines*len(line)+len("the very end\n")) || k.Whole || k.Size > most {
		t.Errorf("%d written, %d kept, whole %t", k.Total, k.Size, k.Whole)
	}
	if info, err := os.Stat(g.path); err != nil || info.Size() > most {
		t.Errorf("file: %v, %v", info, err)
	}
	if last := string(k.Last); !strings.HasSuffix(last, "the very end\n") || strings.Contains(last, logKey) || !strings.Contains(last, "[redacted:") {
		t.Errorf("the end has %d bytes: %.200q", len(last), last)
	}
	if left := g.spill.left; left > spillBytes-backgroundBytes/2 {
		t.Errorf("the session's bound was charged %d bytes only", spillBytes-left)
	}
}

func TestBackgroundEndNamesItsCause(t *testing.T) {
	for want, c := range map[string]struct {
		exit  sandbox.Exit
		lost  bool
		cause error
	}{
		"itself":       {exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: 3}}},
		"timeout":      {exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 15, TimedOut: true}}},
		"shell_kill":   {exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}}, cause: errKilled},
		"session_end":  {exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}}, cause: errSessionEnd},
		"collect":      {exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}}, cause: errCollect},
		"cancelled":    {exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}}, cause: errors.New("user")},
		"sandbox_lost": {lost: true, cause: errKilled},
	} {
		end := shell.Ended{Result: shell.Result{Exit: c.exit}, Lost: c.lost}
		if got := backgroundEnded(&background{}, end, c.cause).EndedBy; got != want {
			t.Errorf("ended by %s, want %s", got, want)
		}
	}
	if got := fmt.Sprint(shell.Ended{Lost: true}.State()); got != "lost with its sandbox" {
		t.Error(got)
	}
}

// TestBackgroundLogOfAFlood: the sandbox counts what it stopped sending, and the end can be read
// afterwards.
func TestBackgroundLogOfAFlood(t *testing.T) {
	g := newLog(t)
	g.write(t, 0, "the beginning\n")
	g.live[0] = backgroundLive // as if it had come
	g.total = backgroundLive
	k, err := g.openKept()
	if err != nil {
		t.Fatal(err)
	}
	k.Close()
	if !strings.Contains(k.State, "more than is read while it runs") {
		t.Errorf("state %q", k.State)
	}
	tail := strings.Repeat("x\n", tailHold) + "the very end\n"
	g.addEnd(sandbox.Exit{Stdout: sandbox.Stream{Total: backgroundLive + 5000, Live: backgroundLive, Tail: []byte(tail)}})
	if total := g.closeFile(); total != backgroundLive+5000 {
		t.Errorf("%d bytes", total)
	}
	text, k := g.text(t)
	if text != "the beginning\n" || k.State != "" || k.Whole || !strings.HasSuffix(string(k.Last), "the very end\n") {
		t.Errorf("%q, %+v", text, k.State)
	}
}

// TestBackgroundsAtOnce: after concurrent starts, reads, kills and ends, each started command has
// exactly one recorded end, and none is left.
func TestBackgroundsAtOnce(t *testing.T) {
	serve := func(ctx context.Context, b *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		return fakesandbox.WaitForEnd(make(chan struct{}))(ctx, b, cmd)
	}
	b, ended := startedBackgrounds(t, map[string]fakesandbox.Script{"serve": serve, "short": fakesandbox.WriteText("short\n")})
	var mu sync.Mutex
	begun := map[string]int{}
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for j := range 20 {
				ctx, cancel := context.WithCancelCause(t.Context())
				if (i+j)%5 == 0 {
					go cancel(errors.New("user"))
				}
				handle, err := b.Begin(ctx, shell.Command{Script: []string{"serve", "short"}[(i+j)%2]})
				cancel(nil)
				if err != nil {
					if !errors.Is(err, shell.ErrTooMany) && !strings.Contains(err.Error(), "user") && !errors.Is(err, errSessionEnd) {
						t.Errorf("begin: %v", err)
					}
					continue
				}
				mu.Lock()
				begun[handle]++
				mu.Unlock()
				if k, ok, err := b.openOutput(handle); !ok || err != nil {
					t.Errorf("output of %s: %v", handle, err)
				} else {
					k.Close()
				}
				if j%3 != 0 {
					if _, _, err := b.End(t.Context(), handle); err != nil {
						t.Errorf("end %s: %v", handle, err)
					}
				}
				if i == 0 && j == 18 {
					b.endAll()
				}
			}
		})
	}
	wg.Wait()
	b.endAll()
	ends := map[string]int{}
	for _, e := range ended() {
		ends[e.Handle]++
		if ends[e.Handle] > 1 {
			t.Errorf("%s ended twice", e.Handle)
		}
	}
	for handle, n := range begun {
		if n != 1 || ends[handle] != 1 {
			t.Errorf("%s was begun %d times and ended %d times", handle, n, ends[handle])
		}
	}
	if len(begun) < 10 {
		t.Errorf("only %d commands were begun: the test shows little", len(begun))
	}
	if b.live != 0 {
		t.Errorf("%d are counted as running", b.live)
	}
}

//go:build linux

package sandboxtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

// streamChecks: what goes in and comes out of one command.
func streamChecks() []check {
	return []check{
		{name: "streams are separate", run: checkSeparate},
		{name: "bytes are exact", run: checkBytes},
		{name: "exit codes are exact", run: checkExitCodes},
		{name: "signals are told", run: checkSignals},
		{name: "missing and unusable programs", run: checkNotFound},
		{name: "stdin and its end", run: checkStdin},
		{name: "no stdin is an empty one", run: checkNoStdin},
		{name: "environment is what was given", run: checkEnvironment},
		{name: "working folder", run: checkDir},
		{name: "invalid commands are refused", run: checkInvalid},
		{name: "the last byte is kept", run: checkLastByte},
		{name: "10 MiB on both streams", run: checkTenMiB},
		{name: "a flood is counted, hashed and cut", run: checkFlood},
		{name: "commands run beside each other", run: checkConcurrent},
		{name: "a stalled reader delays nobody else", run: checkStalled},
	}
}

func checkSeparate(ctx context.Context, e *env) error {
	r, err := e.probe(ctx, "streams")
	if err != nil {
		return err
	}
	if r.out != "o1o2o3" || r.errOut != "e1e2e3" {
		return fmt.Errorf("stdout %q stderr %q, want o1o2o3 and e1e2e3", r.out, r.errOut)
	}
	return nil
}

func checkBytes(ctx context.Context, e *env) error {
	out, err := e.expect(ctx, "bytes")
	if err != nil {
		return err
	}
	var want strings.Builder
	for b := range 256 {
		want.WriteByte(byte(b))
	}
	if out != want.String() {
		return fmt.Errorf("256 byte values came back as %q", out)
	}
	return nil
}

func checkExitCodes(ctx context.Context, e *env) error {
	for _, code := range []int{0, 1, 2, 42, 125, 126, 127, 128, 137, 255} {
		r, err := e.probe(ctx, "exit", strconv.Itoa(code))
		if err != nil {
			return err
		}
		if want := (sandbox.ExitStatus{Code: code}); r.Status != want {
			return fmt.Errorf("exit %d: status %+v", code, r.Status)
		}
	}
	return nil
}

func checkSignals(ctx context.Context, e *env) error {
	for _, sig := range []int{1, 9, 15} {
		r, err := e.probe(ctx, "raise", strconv.Itoa(sig))
		if err != nil {
			return err
		}
		if want := (sandbox.ExitStatus{Code: -1, Signal: sig}); r.Status != want {
			return fmt.Errorf("raise %d: status %+v", sig, r.Status)
		}
	}
	return nil
}

func checkNotFound(ctx context.Context, e *env) error {
	for argv0, code := range map[string]int{
		"no-such-program":                127,
		"/workspace/no/such/program":     127,
		sandbox.WorkspaceDir:             126,
		sandbox.WorkspaceDir + "/" + ".": 126,
	} {
		r, err := e.run(ctx, sandbox.Command{Argv: []string{argv0}})
		if err != nil {
			return err
		}
		if r.Status.Code != code || r.errOut == "" {
			return fmt.Errorf("%s: %s, stderr %q; want code %d and a message", argv0, r.Status, r.errOut, code)
		}
	}
	return nil
}

func checkStdin(ctx context.Context, e *env) error {
	text := strings.Repeat("in\x00out\n", 100_000)
	r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("cat"), Stdin: strings.NewReader(text)})
	if err != nil {
		return err
	}
	if r.out != text || !r.Status.Success() {
		return fmt.Errorf("cat of %d bytes: %s and %d bytes", len(text), r.Status, len(r.out))
	}
	return nil
}

func checkNoStdin(ctx context.Context, e *env) error {
	out, err := e.expect(ctx, "cat")
	if err != nil {
		return err
	}
	if out != "" {
		return fmt.Errorf("stdin of a command without one: %q", out)
	}
	return nil
}

func checkEnvironment(ctx context.Context, e *env) error {
	env := []string{"PATH=/usr/bin", "EMPTY=", "EQ=a=b", "UTF=\u00fc"}
	r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("env"), Env: env})
	if err != nil {
		return err
	}
	if err := sameEnvironment(r.out, env); err != nil {
		return err
	}
	out, err := e.expect(ctx, "env")
	if err != nil {
		return err
	}
	return sameEnvironment(out, sandbox.DefaultEnv())
}

// sameEnvironment names what differs, never the values: a leaked one is secret.
func sameEnvironment(out string, want []string) error {
	if out == strings.Join(want, "\x00") {
		return nil
	}
	var extra []string
	for v := range strings.SplitSeq(out, "\x00") {
		if !slices.Contains(want, v) {
			name, _, _ := strings.Cut(v, "=")
			extra = append(extra, name)
		}
	}
	return fmt.Errorf("environment has %d bytes, not what was given; unexpected: %q", len(out), extra)
}

func checkDir(ctx context.Context, e *env) error {
	if _, err := e.expect(ctx, "mkdir", "sub/below"); err != nil {
		return err
	}
	if _, err := e.expect(ctx, "symlink", "/", "out"); err != nil {
		return err
	}
	for dir, want := range map[string]string{
		"":                     sandbox.WorkspaceDir,
		"/workspace/sub/below": "/workspace/sub/below",
	} {
		r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("cwd"), Dir: dir})
		if err != nil {
			return err
		}
		if r.out != want {
			return fmt.Errorf("cwd with dir %q is %q, want %q", dir, r.out, want)
		}
	}
	for _, dir := range []string{"/workspace/missing", "/workspace/" + probeName, "/workspace/out", "/workspace/out/etc"} {
		if _, err := e.run(ctx, sandbox.Command{Argv: probeArgv("cwd"), Dir: dir}); !isInvalid(err) {
			return fmt.Errorf("dir %q: error %w, want ErrInvalid", dir, err)
		}
	}
	return nil
}

func checkInvalid(ctx context.Context, e *env) error {
	for name, cmd := range map[string]sandbox.Command{
		"no argv":         {},
		"empty name":      {Argv: []string{""}},
		"NUL in argv":     {Argv: []string{"true", "a\x00b"}},
		"long argument":   {Argv: []string{"true", strings.Repeat("x", 128<<10+1)}},
		"NUL in env":      {Argv: []string{"true"}, Env: []string{"A=\x00"}},
		"env without =":   {Argv: []string{"true"}, Env: []string{"A"}},
		"env without key": {Argv: []string{"true"}, Env: []string{"=a"}},
		"relative dir":    {Argv: []string{"true"}, Dir: "sub"},
		"dir outside":     {Argv: []string{"true"}, Dir: "/etc"},
		"dir with dots":   {Argv: []string{"true"}, Dir: "/workspace/../etc"},
		"proc dir":        {Argv: []string{"true"}, Dir: "/proc/self/fd/7"},
		"negative time":   {Argv: []string{"true"}, Timeout: -time.Second},
	} {
		if _, err := e.run(ctx, cmd); !isInvalid(err) {
			return fmt.Errorf("%s: error %w, want ErrInvalid", name, err)
		}
	}
	return nil
}

// checkLastByte repeats a short command whose only output comes right before
// its end, which a reader that stops at the exit loses.
func checkLastByte(ctx context.Context, e *env) error {
	for i := range 100 {
		out, err := e.expect(ctx, "flood", "stdout", "1")
		if err != nil {
			return err
		}
		if len(out) != 1 {
			return fmt.Errorf("run %d: %d bytes of 1", i, len(out))
		}
	}
	return nil
}

func checkTenMiB(ctx context.Context, e *env) error {
	const size = 10 << 20
	for _, stream := range []string{"stdout", "stderr"} {
		r, err := e.probe(ctx, "flood", stream, strconv.Itoa(size))
		if err != nil {
			return err
		}
		got, s := r.out, r.Stdout
		if stream == "stderr" {
			got, s = r.errOut, r.Stderr
		}
		sum := sha256.Sum256([]byte(got))
		if len(got) != size || s.Total != size || s.SHA256 != hex.EncodeToString(sum[:]) {
			return fmt.Errorf("%s: got %d bytes, told %d, hash matches: %t",
				stream, len(got), s.Total, s.SHA256 == hex.EncodeToString(sum[:]))
		}
	}
	return nil
}

func checkFlood(ctx context.Context, e *env) error {
	size := e.target.FloodBytes
	if size == 0 {
		size = 1 << 30
	}
	const live, tail = 100_000, 5_000
	for _, size := range []int64{live - 1, live, live + 10, live + tail + 1, size} {
		r, err := e.run(ctx, sandbox.Command{
			Argv:   probeArgv("flood", "stdout", strconv.FormatInt(size, 10)),
			Output: sandbox.OutputLimits{Live: live, Tail: tail},
		})
		if err != nil {
			return err
		}
		if err := sameFlood(r, size, live, tail); err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
	}
	return nil
}

// sameFlood compares what came back of a flood with the pattern itself.
func sameFlood(r result, size, live, tail int64) error {
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(&probing.Pattern{}, size)); err != nil {
		return err
	}
	live = min(live, size)
	tail = min(tail, size-live)
	got := r.Stdout
	if got.Total != size || got.SHA256 != hex.EncodeToString(h.Sum(nil)) || got.Live != live {
		return fmt.Errorf("total %d, live %d, hash %s", got.Total, got.Live, got.SHA256)
	}
	if r.out != string(probing.PatternAt(0, int(live))) || string(got.Tail) != string(probing.PatternAt(size-tail, int(tail))) {
		return fmt.Errorf("head of %d and tail of %d bytes are not the stream's own", len(r.out), len(got.Tail))
	}
	return nil
}

func checkConcurrent(ctx context.Context, e *env) error {
	const n = 8
	errs := make(chan error, n)
	for i := range n {
		go func() {
			want := strconv.Itoa(i)
			r, err := e.probe(ctx, "exit", want)
			if err == nil && r.Status.Code != i {
				err = fmt.Errorf("command %d ended with %s", i, r.Status)
			}
			errs <- err
		}()
	}
	var first error
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// checkStalled starts a command whose reader never reads, and runs another.
func checkStalled(ctx context.Context, e *env) error {
	blocked := newGate()
	defer blocked.open()
	stalledCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := e.sb.Start(stalledCtx, sandbox.Command{
		Argv: probeArgv("flood", "stdout", strconv.Itoa(64<<20)), Stdout: blocked,
		Output: sandbox.OutputLimits{Live: 64 << 20}, Grace: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	if err := blocked.wait(ctx); err != nil {
		return err
	}
	if _, err := e.expect(ctx, "flood", "stdout", strconv.Itoa(4<<20)); err != nil {
		return fmt.Errorf("beside a stalled reader: %w", err)
	}
	cancel()
	blocked.open()
	exit, err := wait(ctx, p)
	if err != nil {
		return err
	}
	if !exit.Status.Cancelled {
		return fmt.Errorf("stalled command ended with %s, want cancelled", exit.Status)
	}
	return nil
}

package sandboxtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

func streamChecks() []check {
	return []check{
		{name: "streams are separate", run: checkSeparate},
		{name: "bytes are exact", run: checkBytes},
		{name: "stdin and its end", run: checkStdin},
		{name: "no stdin is an empty one", run: checkNoStdin},
		{name: "the last byte is kept", run: checkLastByte},
		{name: "10 MiB on both streams", memory: true, run: checkTenMiB},
		{name: "a flood is counted, hashed and cut", memory: true, run: checkFlood},
		{name: "commands run beside each other", run: checkConcurrent},
		{name: "a stalled reader delays no other stream", memory: true, run: checkStalled},
		{name: "single bytes on both streams", run: checkDrip},
		{name: "an endless flood ends at its timeout, and memory is flat", memory: true, run: checkEndless},
		{name: "closed streams end nothing", run: checkClosedStreams},
		{name: "programs that ask get no answer", run: checkPrompts},
	}
}

func checkSeparate(ctx context.Context, e *env) error {
	r, err := e.runProbe(ctx, "streams")
	if err != nil {
		return err
	}
	if r.out != "o1o2o3" || r.errOut != "e1e2e3" {
		return fmt.Errorf("stdout %q stderr %q, want o1o2o3 and e1e2e3", r.out, r.errOut)
	}
	return nil
}

func checkBytes(ctx context.Context, e *env) error {
	out, err := e.expectOutput(ctx, "bytes")
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
	return e.expectAnswer(ctx, "", "cat")
}

func checkLastByte(ctx context.Context, e *env) error {
	for i := range e.target.repeatCount(200) {
		out, err := e.expectOutput(ctx, "flood", "stdout", "1")
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
		r, err := e.runProbe(ctx, "flood", stream, strconv.Itoa(size))
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

// sameFlood compares a flood's result with the pattern.
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
			r, err := e.runProbe(ctx, "exit", want)
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

func checkStalled(ctx context.Context, e *env) error {
	unread, blocked := io.Pipe()
	defer unread.Close()
	stalledCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := e.sb.Start(stalledCtx, sandbox.Command{
		Argv: probeArgv("flood", "stdout", strconv.Itoa(64<<20)), Stdout: blocked,
		Output: sandbox.OutputLimits{Live: 64 << 20}, Grace: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { blocked.CloseWithError(context.Cause(ctx)) })
	defer stop()
	if _, err := unread.Read(make([]byte, 1)); err != nil { // more follows, and waits
		return fmt.Errorf("nothing was written: %w", err)
	}
	if _, err := e.expectOutput(ctx, "flood", "stdout", strconv.Itoa(4<<20)); err != nil {
		return fmt.Errorf("beside a stalled reader: %w", err)
	}
	cancel()
	go func() { _, _ = io.Copy(io.Discard, unread) }()
	exit, err := waitProcess(ctx, p)
	if err != nil {
		return err
	}
	if !exit.Status.Cancelled {
		return fmt.Errorf("stalled command ended with %s, want cancelled", exit.Status)
	}
	return nil
}

func checkDrip(ctx context.Context, e *env) error {
	n := e.target.repeatCount(100_000)
	r, err := e.runProbe(ctx, "drip", strconv.Itoa(n))
	if err != nil {
		return err
	}
	want := make([]byte, n)
	for i := range want {
		want[i] = 'a' + byte(i%26)
	}
	sum := sha256.Sum256(want)
	for name, s := range map[string]sandbox.Stream{"stdout": r.Stdout, "stderr": r.Stderr} {
		if s.Total != int64(n) || s.SHA256 != hex.EncodeToString(sum[:]) {
			return fmt.Errorf("%s: %d bytes of %d, hash matches: %t", name, s.Total, n, s.SHA256 == hex.EncodeToString(sum[:]))
		}
	}
	if r.out != string(want) || r.errOut != string(want) {
		return fmt.Errorf("got %d and %d bytes, or others", len(r.out), len(r.errOut))
	}
	return nil
}

// flatBytes is how much more memory this process may need for a flood: what is
// in flight, two streams' live bytes, and what grows while the collector waits
// for a processor. On a loaded machine, 71 MiB were seen.
const flatBytes = 128 << 20

// checkEndless lets a command fill both streams without a newline until its
// timeout. The kernel counts this process's peak memory.
func checkEndless(ctx context.Context, e *env) error {
	const live, tail = 32 << 10, 4 << 10
	debug.FreeOSMemory() // unused memory would hide a growth
	before, err := resetPeak()
	if err != nil {
		return err
	}
	r, err := e.run(ctx, sandbox.Command{
		Argv: probeArgv("endless"), Timeout: 3 * time.Second, Grace: testGrace,
		Output: sandbox.OutputLimits{Live: live, Tail: tail},
	})
	if err != nil {
		return err
	}
	for name, s := range map[string]sandbox.Stream{"stdout": r.Stdout, "stderr": r.Stderr} {
		if s.Live != live || s.Total < live+tail || len(s.Tail) != tail {
			return fmt.Errorf("%s: total %d, live %d, tail %d", name, s.Total, s.Live, len(s.Tail))
		}
	}
	after, err := peakMemory()
	if err != nil {
		return err
	}
	if after > before+flatBytes {
		return fmt.Errorf("memory grew from %d to %d bytes", before, after)
	}
	if !r.Status.TimedOut || r.Kill.Left != 0 {
		return fmt.Errorf("status %+v, kill %+v", r.Status, r.Kill)
	}
	return e.expectAnswer(ctx, "", "exit", "0")
}

// resetPeak resets this process's peak memory and returns its current use.
func resetPeak() (int64, error) {
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return 0, err
	}
	return peakMemory()
}

func peakMemory() (int64, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(data), "VmHWM:")
	var kb int64
	if _, err := fmt.Sscan(rest, &kb); err != nil || !ok {
		return 0, errorf("no VmHWM: %w", err)
	}
	return kb << 10, nil
}

// checkClosedStreams: a command that closed both streams continues to its own
// end.
func checkClosedStreams(ctx context.Context, e *env) error {
	start := time.Now()
	r, err := e.runProbe(ctx, "close", "5")
	if err != nil {
		return err
	}
	if r.Status != (sandbox.ExitStatus{Code: 5}) || time.Since(start) < 300*time.Millisecond {
		return fmt.Errorf("%s after %s, want exit code 5 at the end", r.Status, time.Since(start))
	}
	return nil
}

// checkPrompts starts programs that ask a person something. The image may lack
// them, but not the shell. A program that asks again and again at the end of
// its input, like some editors, would end by its timeout; none is listed.
func checkPrompts(ctx context.Context, e *env) error {
	for name, argv := range map[string][]string{
		"read":   {"sh", "-c", "read x; exit 7"},
		"cat":    {"sh", "-c", "cat; exit 7"},
		"less":   {"less", "/etc/passwd"},
		"python": {"python3", "-i"},
		"sudo":   {"sudo", "-S", "true"},
		"git":    {"git", "push", "https://192.0.2.1/x.git"},
		"ssh":    {"ssh", "192.0.2.1"},
		"passwd": {"passwd"},
	} {
		r, err := e.run(ctx, sandbox.Command{Argv: argv, Timeout: 20 * time.Second, Grace: testGrace})
		if err != nil {
			return err
		}
		if r.Status.TimedOut {
			return fmt.Errorf("%s waits for an answer: %q %q", name, r.out, r.errOut)
		}
		if (name == "read" || name == "cat") && r.Status.Code != 7 {
			return fmt.Errorf("positive control: %s: %s %q", name, r.Status, r.errOut)
		}
	}
	return nil
}

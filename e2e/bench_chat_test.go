package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner/record"
)

// BenchmarkChat measures `caisson chat` on a terminal: from the start of the program to
// its prompt, and from a key to the frame that shows it, while a command writes 10 MB/s or
// more. A key is typed every 50 ms.
func BenchmarkChat(b *testing.B) {
	const keys, pieces, piece = 40, 80, 500_000 // keys of one conversation, and its output
	m := newMachine(b)
	flood := fmt.Sprintf("n=0; while [ $n -lt %d ]; do yes 'a line of output of a long build' | head -c %d; sleep 0.03; n=$((n+1)); done", pieces, piece)
	args := m.playing(b, []scriptCall{call("shell", map[string]any{"command": flood})})
	args = append([]string{"chat", "--workspace", m.workspace, "--backend", anyBackend(b)}, args[:len(args)-1]...)
	var starts, delays []time.Duration
	for b.Loop() {
		start := time.Now()
		c := m.converse(b, args...)
		c.waitFor(b, "› ")
		starts = append(starts, time.Since(start))
		c.send(b, "begin\r")
		c.waitFor(b, "a line of output of a long build")
		typed := ""
		for range keys {
			time.Sleep(50 * time.Millisecond) // as people type
			key := string(rune('a' + len(typed)%26))
			typed += key
			pressed := time.Now()
			c.send(b, key)
			c.waitFor(b, typed)
			delays = append(delays, time.Since(pressed))
		}
		c.waitFor(b, "Done.")
		c.send(b, "\x15/quit\r")
		if err := c.program.Wait(); err != nil {
			b.Fatal(err)
		}
		c.terminal.Close()
	}
	paths, err := filepath.Glob(filepath.Join(m.stateDir(), "sessions", "*", record.TraceFile))
	if err != nil || len(paths) != len(starts) {
		b.Fatal(paths, err)
	}
	var took []int64 // milliseconds
	for _, path := range paths {
		trace := readFile(b, path)
		for _, done := range payloadsOf[record.ToolCompleted](b, trace) {
			took = append(took, done.LatencyMS)
		}
	}
	slices.Sort(starts)
	slices.Sort(delays)
	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(starts[len(starts)/2]), "start-p50-ns")
	b.ReportMetric(float64(delays[len(delays)/2]), "key-p50-ns")
	b.ReportMetric(float64(delays[len(delays)*99/100]), "key-p99-ns")
	b.ReportMetric(pieces*piece/1e3/float64(took[len(took)/2]), "MB/s")
}

// conversation is a program on a terminal.
type conversation struct {
	terminal *os.File
	program  *exec.Cmd
	mu       sync.Mutex
	shown    strings.Builder // since the last wait
	all      strings.Builder
	more     chan struct{}
}

// converse starts the program on a terminal of 100 by 30 cells.
func (m *machine) converse(b testing.TB, args ...string) *conversation {
	b.Helper()
	program := exec.Command(filepath.Join(binaries(b), "caisson"), args...)
	program.Env, program.Dir = append(slices.Clone(m.env), "TERM=xterm-256color"), m.home
	return converseWith(b, program)
}

// converseWith starts a program on a terminal.
func converseWith(b testing.TB, program *exec.Cmd) *conversation {
	b.Helper()
	c, slave := newConversation(b, program)
	defer slave.Close()
	program.Stdin, program.Stdout, program.Stderr = slave, slave, slave
	program.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := program.Start(); err != nil {
		b.Fatal(err)
	}
	return c
}

// newConversation opens a terminal of 100 by 30 cells for a program, which has to be given
// its other end.
func newConversation(b testing.TB, program *exec.Cmd) (*conversation, *os.File) {
	b.Helper()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		b.Skip("needs a pseudo-terminal: " + err.Error())
	}
	fd := int(terminal.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100})
	}
	if err != nil {
		b.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		b.Fatal(err)
	}
	c := &conversation{terminal: terminal, program: program, more: make(chan struct{}, 1)}
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := terminal.Read(buf)
			c.mu.Lock()
			c.shown.Write(buf[:n])
			c.all.Write(buf[:n])
			c.mu.Unlock()
			select {
			case c.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	return c, slave
}

// send types keys.
func (c *conversation) send(b testing.TB, keys string) {
	b.Helper()
	if _, err := c.terminal.WriteString(keys); err != nil {
		b.Fatal(err)
	}
}

// waitFor waits until the program shows a text that it has not shown since the last wait.
func (c *conversation) waitFor(b testing.TB, text string) {
	b.Helper()
	timeout := time.After(deadline)
	for {
		c.mu.Lock()
		shown := c.shown.String()
		found := strings.Contains(shown, text)
		if found {
			c.shown.Reset()
		}
		c.mu.Unlock()
		if found {
			return
		}
		select {
		case <-c.more:
		case <-timeout:
			_ = c.program.Process.Kill()
			b.Fatalf("no %q is shown: %q", text, shown[max(0, len(shown)-2000):])
		}
	}
}

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner/record"
)

// typed is a program on a terminal whose mode is watched.
type typed struct {
	*conversation
	slave  *os.File // keeps the terminal after the program's end
	before unix.Termios
}

// typeInto starts caisson on a terminal.
func (m *machine) typeInto(t *testing.T, args ...string) *typed {
	t.Helper()
	c := &typed{conversation: m.converse(t, args...)}
	number, err := unix.IoctlGetInt(int(c.terminal.Fd()), unix.TIOCGPTN)
	if err == nil {
		c.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.slave.Close(), c.terminal.Close() })
	c.before = c.mode(t)
	return c
}

func (c *typed) mode(t *testing.T) unix.Termios {
	t.Helper()
	mode, err := unix.IoctlGetTermios(int(c.slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *mode
}

// wantRaw is the control of wantEnd: the program has changed the terminal.
func (c *typed) wantRaw(t *testing.T) {
	t.Helper()
	if c.mode(t).Lflag&(unix.ICANON|unix.ISIG|unix.ECHO) != 0 {
		t.Error("the terminal is not raw")
	}
}

// wantEnd waits for the program's end with a status and the terminal as it was.
func (c *typed) wantEnd(t *testing.T, status int) {
	t.Helper()
	late := time.AfterFunc(deadline, func() { _ = c.program.Process.Kill() })
	defer late.Stop()
	_ = c.program.Wait()
	if got := c.program.ProcessState.ExitCode(); got != status {
		c.mu.Lock()
		defer c.mu.Unlock()
		t.Errorf("status %d, want %d: %q", got, status, c.all.String())
	}
	if after := c.mode(t); after != c.before {
		t.Errorf("the terminal is left as %+v, was %+v", after, c.before)
	}
}

// shellArgs runs a shell with a prompt that no output has.
func shellArgs(args ...string) []string {
	return append(args, "--", "sh", "-c", "PS1='go'': ' ENV= exec sh -i")
}

// TestExecOnATerminal types into a shell on each backend: its size, resizes, keys and status,
// and what is left of the local terminal after each end.
func TestExecOnATerminal(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		args := shellArgs("exec", "-it", "--workspace", m.workspace, "--backend", backend)
		c := m.typeInto(t, args...)
		c.waitFor(t, "go: ")
		c.wantRaw(t)
		c.send(t, "stty size; echo $TERM\r")
		c.waitFor(t, "30 100\r\nxterm-256color\r\ngo: ")
		if err := unix.IoctlSetWinsize(int(c.terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 41, Col: 111}); err != nil {
			t.Fatal(err)
		}
		c.send(t, "until stty size | grep '41 111'; do :; done; sh -c \"echo re''ady; exec cat\"\r")
		c.waitFor(t, "\n41 111\r\nready\r\n")
		c.send(t, "\x03")
		c.waitFor(t, "go: ")
		c.send(t, "echo $((100+31)); exit 5\r")
		c.waitFor(t, "131")
		c.wantEnd(t, 5)
		m.wantRecording(t, "41 111")

		c = m.typeInto(t, args...)
		c.waitFor(t, "go: ")
		c.wantRaw(t)
		_ = c.program.Process.Signal(syscall.SIGTERM)
		c.wantEnd(t, 143)

		c = m.typeInto(t, args...)
		c.waitFor(t, "go: ")
		c.wantRaw(t)
		c.send(t, `printf '\033[?1049h\033[?1000h\033[?2004h\033[?25l'; sleep 1000 & kill -9 $$`+"\r")
		c.wantEnd(t, 137)
		c.waitFor(t, "\x1b[?25h\x1b[?2004l\x1b[?1000l\x1b[?1049l")
		m.wantNothingLeft(t)
	})
}

// TestSandboxExecOnATerminal types into a sandbox that another process owns, also while that
// is killed.
func TestSandboxExecOnATerminal(t *testing.T) {
	m := newMachine(t)
	session, owner := m.create(t, anyBackend(t))
	args := shellArgs("sandbox", "exec", "-it", session)
	c := m.typeInto(t, args...)
	c.waitFor(t, "go: ")
	c.wantRaw(t)
	c.send(t, "stty size\r")
	c.waitFor(t, "30 100\r\ngo: ") // with the prompt, which would come into what follows
	if err := unix.IoctlSetWinsize(int(c.terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 41, Col: 111}); err != nil {
		t.Fatal(err)
	}
	c.send(t, "until stty size | grep '41 111'; do :; done; exit 6\r")
	c.waitFor(t, "\n41 111\r\n")
	c.wantEnd(t, 6)

	c = m.typeInto(t, args...)
	c.waitFor(t, "go: ")
	c.wantRaw(t)
	if err := syscall.Kill(owner, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.wantEnd(t, 125)
	m.run(t, "sandbox", "gc").want(t, 0)
	m.wantNothingLeft(t, session)
}

// wantRecording requires that the only command of the only session has a recording with a
// text.
func (m *machine) wantRecording(t *testing.T, text string) {
	t.Helper()
	dir := filepath.Join(m.stateDir(), "sessions", m.onlySession(t))
	trace := readFile(t, filepath.Join(dir, record.TraceFile))
	for _, ended := range payloadsOf[record.UserCommandEnded](t, trace) {
		if ended.Recording == nil {
			t.Fatal("there is no recording")
		}
		data, err := os.ReadFile(filepath.Join(dir, ended.Recording.Path))
		sum := sha256.Sum256(data)
		if err != nil || !strings.Contains(string(data), text) || hex.EncodeToString(sum[:]) != ended.Recording.SHA256 {
			t.Errorf("the recording %+v: %v, %q", ended.Recording, err, data)
		}
	}
	file := filepath.Join(m.home, "page.html")
	m.run(t, "trace", "html", m.onlySession(t), "-o", file).want(t, 0)
	page, err := os.ReadFile(file)
	if _, film, _ := strings.Cut(string(page), `<div class="reel">`); err != nil || !strings.Contains(film, text) {
		t.Errorf("the page has no screen with %q: %v", text, err)
	}
}

// TestDetachAndAttach leaves a shell in a sandbox that stays: by keys, by a signal, by SIGKILL, and
// because another client takes it. Each time the shell goes on as it was, and draws its screen for
// the client that comes back. With its owner, everything ends.
func TestDetachAndAttach(t *testing.T) {
	m := newMachine(t)
	session, owner := m.create(t, anyBackend(t))
	start := func() *typed {
		c := m.typeInto(t, shellArgs("sandbox", "exec", "-it", "--detach-keys", "ctrl-p,ctrl-q", session)...)
		c.waitFor(t, "go: ")
		c.wantRaw(t)
		return c
	}
	c := start()
	c.send(t, "n=4; echo sa''id\r")
	c.waitFor(t, "said\r\n")
	c.send(t, "\x10\x11")
	c.waitFor(t, "detached; the command goes on")
	c.wantEnd(t, 0)
	attach := func() *typed {
		c := m.typeInto(t, "sandbox", "attach", session)
		c.waitFor(t, "said\r\n")
		c.wantRaw(t)
		return c
	}
	for name, leave := range map[string]func(*typed){
		"keys":    func(c *typed) { c.send(t, "\x10\x11"); c.wantEnd(t, 0) },
		"SIGTERM": func(c *typed) { _ = c.program.Process.Signal(syscall.SIGTERM); c.wantEnd(t, 143) },
		"SIGHUP":  func(c *typed) { _ = c.program.Process.Signal(syscall.SIGHUP); c.wantEnd(t, 129) },
		"SIGKILL": func(c *typed) { _, _ = c.program.Process.Kill(), c.program.Wait() },
		"another": func(c *typed) {
			other := attach()
			c.waitFor(t, "another client has the terminal now")
			c.wantEnd(t, 125)
			_, _ = other.program.Process.Kill(), other.program.Wait()
		},
	} {
		t.Log(name)
		c = attach()
		c.send(t, "n=$((n+1)); echo still $n\r")
		c.waitFor(t, "still ")
		leave(c)
	}
	c = attach()
	c.send(t, "echo $n times; sh -c 'trap \"echo dra\"\"wn\" WINCH; echo w\"\"aits; while :; do sleep 0.1; done'\r")
	c.waitFor(t, "9 times\r\nwaits\r\n")
	c.send(t, "\x10\x11")
	c.wantEnd(t, 0)
	c = m.typeInto(t, "sandbox", "attach", session)
	c.waitFor(t, "drawn\r\n")
	c.send(t, "\x03")
	c.waitFor(t, "go: ")
	if err := unix.IoctlSetWinsize(int(c.terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 41, Col: 111}); err != nil {
		t.Fatal(err)
	}
	c.send(t, "until stty size | grep '41 111'; do :; done; exit 6\r")
	c.waitFor(t, "\n41 111\r\n")
	c.wantEnd(t, 6)
	c = m.typeInto(t, "sandbox", "attach", session)
	c.waitFor(t, "can be attached to is running")
	c.wantEnd(t, 125)

	c = start()
	c.send(t, "echo sa''id\r")
	c.waitFor(t, "said\r\n")
	if err := syscall.Kill(owner, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.wantEnd(t, 125)
	m.run(t, "sandbox", "gc").want(t, 0)
	m.wantNothingLeft(t, session)
}

package spawn

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// readTerminal reads a terminal until the other end is closed, with LF line
// ends.
func readTerminal(t *testing.T, f *os.File) string {
	t.Helper()
	if err := f.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Error(err)
	}
	out, err := io.ReadAll(f)
	if !errors.Is(err, unix.EIO) {
		t.Errorf("the terminal ends with %v", err)
	}
	return strings.ReplaceAll(string(out), "\r\n", "\n")
}

// TestTerminal checks that a command's streams are a controlling terminal which
// belongs to the command's user, and that it has no other descriptor.
func TestTerminal(t *testing.T) {
	const script = `stty -echo; stty size; stat -c %u:%a $(tty); for fd in 0 1 2; do test -t $fd && echo $fd; done
echo controlled >/dev/tty; ls /proc/self/fd | wc -l; echo ready; read -r line; echo "got $line"; exit 3`
	for _, separate := range []bool{true, false} {
		s, _ := newSpawner(t, separate)
		owner := 10001
		if !separate {
			owner = os.Getuid()
		}
		c, err := s.Spawn(Request{
			Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Group: 30000,
			Stdin: true, Terminal: &wire.TerminalSize{Rows: 33, Columns: 111},
		})
		if err != nil {
			t.Fatal(err)
		}
		if c.Stderr != nil {
			t.Error("a terminal has a standard error")
		}
		if _, err := io.WriteString(c.Stdin, "line\n"); err != nil {
			t.Error(err)
		}
		out := readTerminal(t, c.Stdout)
		out = strings.TrimPrefix(out, "line\n") // typed before echo was off
		mode := strings.TrimPrefix(out, fmt.Sprintf("33 111\n%d:", owner))
		mode, rest, _ := strings.Cut(mode, "\n")
		want := fmt.Sprintf("0\n1\n2\ncontrolled\n%d\nready\ngot line\n", 4+inherited(t))
		if mode != "600" && mode != "620" || rest != want {
			t.Errorf("separate %t: it says %q, want %q at the end", separate, out, want)
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(c.PID, &status, 0, nil); err != nil || status.ExitStatus() != 3 {
			t.Errorf("it ends with %v, %v", status, err)
		}
		c.Close()
	}
}

// TestTerminalsOtherEnd checks both ways to open it.
func TestTerminalsOtherEnd(t *testing.T) {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	for name, open := range map[string]func(int) (int, error){
		"through the descriptor": openSlave,
		"by name":                func(master int) (int, error) { return openByName(master, flags) },
	} {
		master, err := openMaster(wire.TerminalSize{Rows: 5, Columns: 6})
		if err != nil {
			t.Skip("needs a pseudo-terminal: " + err.Error())
		}
		slave, err := open(master)
		if err != nil {
			t.Fatal(name, err)
		}
		if size, err := unix.IoctlGetWinsize(slave, unix.TIOCGWINSZ); err != nil || size.Row != 5 || size.Col != 6 {
			t.Errorf("%s: the size is %+v, %v", name, size, err)
		}
		for fd, nonBlocking := range map[int]bool{master: true, slave: false} {
			got, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
			closed, err2 := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			if (got&unix.O_NONBLOCK != 0) != nonBlocking || closed != unix.FD_CLOEXEC || err != nil || err2 != nil {
				t.Errorf("%s: flags %#x and %#x, %v, %v", name, got, closed, err, err2)
			}
		}
		if err := errors.Join(unix.Close(slave), unix.Close(master)); err != nil {
			t.Error(err)
		}
	}
}

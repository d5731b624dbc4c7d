package ui

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/term"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
)

// paneSocket is the variable with the socket for driving a renderer in a pane of tmux.
const paneSocket = "CAISSON_TEST_PANE_SOCKET"

// runInPane is the process in the pane: it obeys lines, and answers each with its
// terminal's size.
func runInPane(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	size := func() (int, int) {
		columns, rows, _ := term.GetSize(2)
		return columns, rows
	}
	frames := 0
	r := New(Options{
		Out: os.Stderr, Live: true, Reflow: true, Size: size, Tick: make(chan time.Time),
		Now: func() time.Time { return begun.Add(time.Duration(frames) * framePeriod) },
	})
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		what, text, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case "print":
			r.Print(text)
		case "begin":
			r.Record(record.Record{Kind: record.KindToolCalled, Time: begun, Payload: []byte(text)})
		case "output":
			r.Delta(runner.Delta{CallID: "1", Text: text + "\n"})
		case "frame":
			frames++
			r.mu.Lock()
			r.frame++
			r.drawRegion()
			r.mu.Unlock()
		case "close":
			r.Close()
		}
		columns, rows := size()
		if _, err := fmt.Fprintln(conn, columns, rows); err != nil {
			return err
		}
	}
	return nil
}

// 40 resizes of a real terminal leave no row of the live region behind, and each
// committed line once and in order. A renderer that ignores the width leaves some
// (TestNaiveFramesLeaveRows).
func TestResizesInTmux(t *testing.T) {
	tmux, err := exec.LookPath("tmux")
	if err != nil {
		t.Skip("needs tmux")
	}
	dir := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(tmux, append([]string{"-f", "/dev/null", "-S", filepath.Join(dir, "tmux")}, args...)...)
		cmd.Env = append(os.Environ(), "TMUX=", "LC_ALL=C.UTF-8")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	socket := filepath.Join(dir, "pane")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run("new-session", "-d", "-x", "100", "-y", "30", "-e", paneSocket+"="+socket, "sleep 1000000", ";", "set", "-g", "history-limit", "100000", ";", "set", "-g", "remain-on-exit", "on")
	defer run("kill-server")
	run("new-window", "-e", paneSocket+"="+socket, self)
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	do := func(command string) (columns, rows int) {
		t.Helper()
		fmt.Fprintln(conn, command)
		line, err := answers.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Sscan(line, &columns, &rows)
		return columns, rows
	}
	do(`begin {"tool_use_id":"1","tool_name":"≈","input_summary":"a command whose line is longer than a narrow screen has columns"}`)
	for range 5 { // at the top of the screen, where tmux keeps cleared text
		do("frame")
	}
	s := &stage{t: t, screen: &screen{reflow: true}}
	random := rand.New(rand.NewPCG(7, 7))
	for range 40 { // tmux reports one every 250 ms
		columns, rows := 40+random.IntN(160), 17+random.IntN(43)
		run("resize-window", "-x", fmt.Sprint(columns), "-y", fmt.Sprint(rows))
		for {
			if c, r := do("size"); c == columns && r == rows {
				break
			}
			runtime.Gosched() // until the kernel has reported it
		}
		for range random.IntN(4) {
			text := fmt.Sprintf("#%d# %s", len(s.committed), strings.Repeat("committed ", random.IntN(30)))
			s.committed = append(s.committed, text)
			do("print " + text)
		}
		do("output ≈ " + strings.Repeat("output ", random.IntN(20)))
		do("frame")
	}
	do("close")
	var shown string
	for last := ""; ; last = shown { // until tmux has read everything
		if shown = run("capture-pane", "-p", "-J", "-S", "-"); shown == last && strings.Contains(shown, fmt.Sprintf("#%d#", len(s.committed)-1)) {
			break
		}
	}
	if fault := s.faults(shown); fault != "" {
		t.Errorf("%s, with %s, of %d lines:\n%s", fault, strings.TrimSpace(run("-V")), len(s.committed), shown)
	}
}

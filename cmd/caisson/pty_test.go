package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/sandbox"
)

// openTerminal makes a pseudo-terminal of 100 by 30 cells and returns both ends.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("needs a pseudo-terminal: " + err.Error())
	}
	fd := int(master.Fd())
	must(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	must(t, err)
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("needs a pseudo-terminal: " + err.Error())
	}
	must(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100}))
	t.Cleanup(func() { master.Close(); slave.Close() })
	return master, slave
}

// watcher keeps a terminal's output and answers questions.
type watcher struct {
	answers       []string // to the first question, the second, …
	master, slave *os.File

	mu       sync.Mutex
	text     bytes.Buffer
	answered int
	done     chan struct{}
}

// watch makes a terminal, which it watches.
func watch(t *testing.T, answers []string) *watcher {
	t.Helper()
	master, slave := openTerminal(t)
	w := &watcher{answers: answers, master: master, slave: slave, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		buf := make([]byte, 4096)
		for !strings.HasSuffix(w.String(), endMark) {
			n, err := master.Read(buf)
			w.take(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	return w
}

// choices matches the end of a question.
var choices = regexp.MustCompile(`(n no|q back)[^>\n]*> `)

const endMark = "<end of the program>"

func (w *watcher) take(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if asked := len(choices.FindAllString(w.text.String(), -1)); asked > w.answered && w.answered < len(w.answers) {
		_, _ = io.WriteString(w.master, w.answers[w.answered])
		w.answered++
	}
}

// String returns the output so far, with LF line ends.
func (w *watcher) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.ReplaceAll(w.text.String(), "\r\n", "\n")
}

// end returns the output until now, without the end mark. The program's reader may still
// wait at the terminal, until the process ends, so its output needs a mark.
func (w *watcher) end() string {
	fmt.Fprint(w.slave, endMark)
	<-w.done
	return strings.TrimSuffix(w.String(), endMark)
}

// world is a home, a workspace and programs for one run in this process.
type world struct {
	app  app
	dir  string // the workspace
	env  []string
	args []string
}

// newWorld makes a world with a replayed model.
func newWorld(t *testing.T, turns string) *world {
	t.Helper()
	root := t.TempDir()
	for _, name := range []string{"home", "ws"} {
		must(t, os.Mkdir(filepath.Join(root, name), 0o755))
	}
	must(t, writePrograms(filepath.Join(root, "bin")))
	script := filepath.Join(root, "script.yaml")
	must(t, os.WriteFile(script, []byte("version: 1\nname: test\nturns:\n"+turns), 0o600))
	d := newApp(make(chan os.Signal), func(int) { t.Error("the program was ended where it stands") })
	d.stdin, d.stdout, d.stderr = strings.NewReader(""), io.Discard, io.Discard
	d.requirements, d.keys = "", nil
	d.executable = func() (string, error) { return filepath.Join(root, "bin", "caisson"), nil }
	d.backend = func(s caisson.BackendSettings) (sandbox.Backend, error) { return &fakeBackend{name: s.Name}, nil }
	return &world{
		app: d, dir: filepath.Join(root, "ws"), env: []string{"HOME=" + filepath.Join(root, "home"), "TERM=dumb"},
		args: []string{"run", "--workspace", filepath.Join(root, "ws"), "--backend", "gvisor", "--model", "replay/" + script},
	}
}

func (w *world) run(args ...string) int {
	return run(context.Background(), w.taskArgs(args), w.env, w.app)
}

func (w *world) taskArgs(args []string) []string {
	return slices.Concat(w.args, args, []string{"task"})
}

// call runs a command that needs no terminal, and returns what it writes.
func (w *world) call(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	w.app.stdout, w.app.stderr = &out, &errs
	status = run(context.Background(), args, w.env, w.app)
	return status, out.String(), errs.String()
}

// callTask is call for the world's task.
func (w *world) callTask(args ...string) (status int, stdout, stderr string) {
	return w.call(w.taskArgs(args)...)
}

// configure writes the user's configuration.
func (w *world) configure(t *testing.T, text string) {
	t.Helper()
	writeFile(t, filepath.Join(filepath.Dir(w.dir), "home/.config/caisson/config.yaml"), text, 0o600)
}

// use makes a terminal the program's own.
func (w *world) use(terminal *os.File) {
	w.app.stdin, w.app.stdout, w.app.stderr = terminal, terminal, terminal
	w.app.size = func() (int, int) { return 100, 30 }
	w.app.pressed = func(ctx context.Context, _ time.Duration) (bool, error) {
		return ui.KeyPressed(ctx, terminal, time.Millisecond)
	}
}

func onTerminal(t *testing.T, term string, answers []string, turns string, args ...string) (status int, shown, stdout, dir string) {
	t.Helper()
	w := newWorld(t, turns)
	seen := watch(t, answers)
	w.use(seen.slave)
	var out bytes.Buffer
	w.app.stdout, w.app.keys = &out, ui.NewTerminalKeys(seen.slave)
	w.env = append(w.env, "TERM="+term)
	status = w.run(args...)
	return status, seen.end(), out.String(), w.dir
}

const twoWrites = `
  - calls: [{tool: write_file, input: {path: one, content: "1\n"}}]
  - calls: [{tool: shell, input: {command: "echo working; echo made > two"}}]
  - text: "all \e[31mdone"
`

func TestATerminalAsksAndShows(t *testing.T) {
	status, shown, stdout, dir := onTerminal(t, "xterm", []string{"y\n", "n\n"}, twoWrites)
	if status != 0 {
		t.Errorf("status %d\n%s", status, shown)
	}
	if _, err := os.Stat(filepath.Join(dir, "one")); err != nil {
		t.Errorf("what was allowed was not done: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "two")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was refused was done: %v", err)
	}
	for _, want := range []string{"+1", "echo working; echo made > two", "refused by you", "policy default", "\x1b[?2026h", "\x1b[1m"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the terminal lacks %q:\n%q", want, shown)
		}
	}
	if stdout != "all \x1b[31mdone\n" {
		t.Errorf("a pipe got %q", stdout)
	}
}

func TestADumbTerminalGetsPlainLines(t *testing.T) {
	status, shown, _, _ := onTerminal(t, "dumb", nil, twoWrites, "--policy", "sandboxed")
	if status != 0 || strings.Contains(shown, "\x1b") || !strings.Contains(shown, "✓ shell echo working") {
		t.Errorf("status %d\n%q", status, shown)
	}
}

// The region of caisson exec leaves the screen before the command's first byte, for
// good.
func TestExecLeavesTheTerminal(t *testing.T) {
	w := newWorld(t, "")
	seen := watch(t, nil)
	w.use(seen.slave)
	w.app.backend = func(s caisson.BackendSettings) (sandbox.Backend, error) {
		return &fakeBackend{name: s.Name, started: func([]string) { // the control: the region is drawn
			for !strings.Contains(seen.String(), "starting the sandbox") {
				time.Sleep(time.Millisecond)
			}
		}}, nil
	}
	args := []string{"exec", "--workspace", w.dir, "--backend", "gvisor", "--", "sh", "-c", "printf first >&2"}
	if status := run(t.Context(), args, append(w.env, "TERM=xterm"), w.app); status != 0 {
		t.Errorf("status %d", status)
	}
	before, after, _ := strings.Cut(seen.end(), "first")
	if !strings.HasSuffix(before, "\x1b[J\r\x1b[?2026l") || after != "" {
		t.Errorf("the terminal got %q", seen)
	}
}

// modeOf returns a terminal's mode.
func modeOf(t *testing.T, tty *os.File) unix.Termios {
	t.Helper()
	mode, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	must(t, err)
	return *mode
}

// TestExecOnATerminal checks that a command gets every key and knows the terminal.
// Notices wait for its end, and then the terminal is as before.
func TestExecOnATerminal(t *testing.T) {
	const script = `printf "<$TERM|$COLORTERM|$SECRET>"; test "$0" = wait && sleep 100; head -c 3 | od -An -tx1; exit 5`
	for name, tt := range map[string]struct {
		args   []string
		keys   string
		signal os.Signal
		status int
		shown  string
	}{
		"its end":       {keys: "\x03\x04\r", status: 5, shown: "<dumb|truecolor|> 03 04 0d\n"},
		"own variables": {args: []string{"-e", "TERM=vt52"}, keys: "\x03\x04\r", status: 5, shown: "<vt52|truecolor|> 03 04 0d\n"},
		"a signal":      {signal: unix.SIGTERM, status: 143, shown: "<dumb|truecolor|>caisson: stopping"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			signals := make(chan os.Signal, 1)
			w.app.signals = signals
			seen := watch(t, nil)
			before := modeOf(t, seen.slave)
			w.use(seen.slave)
			w.app.keys = ui.NewTerminalKeys(seen.slave)
			word := "type"
			if tt.signal != nil {
				word = "wait"
			}
			args := append([]string{"exec", "--workspace", w.dir, "--backend", "gvisor", "-i", "-t"}, tt.args...)
			ended := make(chan int)
			go func() {
				ended <- run(t.Context(), append(args, "--", "sh", "-c", script, word), append(w.env, "COLORTERM=truecolor", "SECRET=x"), w.app)
			}()
			for !strings.Contains(seen.String(), ">") {
				time.Sleep(time.Millisecond)
			}
			if mode := modeOf(t, seen.slave); mode.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != 0 || mode.Oflag&unix.OPOST != 0 {
				t.Errorf("the terminal is not raw: %+v", mode)
			}
			if tt.signal != nil {
				signals <- tt.signal
			} else {
				fmt.Fprint(seen.master, tt.keys)
			}
			if status := <-ended; status != tt.status {
				t.Errorf("status %d, want %d", status, tt.status)
			}
			if after := modeOf(t, seen.slave); after != before {
				t.Errorf("the terminal is left as %+v, was %+v", after, before)
			}
			if shown := seen.end(); !strings.Contains(shown, tt.shown) {
				t.Errorf("it shows %q, want %q", shown, tt.shown)
			}
		})
	}
}

// TestExecWithoutATerminal checks that -i -t is refused, and -t alone works.
func TestExecWithoutATerminal(t *testing.T) {
	for _, tt := range []struct {
		flags  []string
		status int
		stderr string
	}{{[]string{"-t", "-i"}, exitOwn, "standard input is not a terminal"}, {[]string{"-t"}, 0, ""}, {[]string{"-i"}, 0, ""}} {
		w := newWorld(t, "")
		args := append([]string{"exec", "--workspace", w.dir, "--backend", "gvisor"}, tt.flags...)
		if status, _, errs := w.call(append(args, "true")...); status != tt.status || !strings.Contains(errs, tt.stderr) {
			t.Errorf("%q: status %d, %q", tt.flags, status, errs)
		}
	}
}

// The end of input is reported once, and no question follows.
func TestNothingIsAskedAfterTheEndOfInput(t *testing.T) {
	const three = "  - calls: [{tool: shell, input: {command: one}}, {tool: shell, input: {command: two}}]\n" +
		"  - calls: [{tool: shell, input: {command: three}}]\n  - text: done\n"
	status, shown, _, _ := onTerminal(t, "xterm", []string{"\x04", "y\n", "y\n"}, three)
	if n := strings.Count(shown, "shell wants to run"); status != 56 || n != 1 || strings.Count(shown, "no more questions") != 1 {
		t.Errorf("status %d, %d questions\n%s", status, n, shown)
	}
	// The hint must not be to use the terminal that it is on.
	if _, end, _ := strings.Cut(shown, "got none: "); !strings.HasPrefix(end, "the input for answers ended") || strings.Contains(end, "on a terminal") || !strings.Contains(end, "--policy") {
		t.Errorf("it ends with %q", end)
	}
}

// The end of a command that is longer than the screen is shown, and nothing allows it
// before all was paged.
func TestALongCommandIsSeenBeforeItIsAllowed(t *testing.T) {
	const long = `  - calls: [{tool: shell, input: {command: "` + "%s" + `rm -rf build"}}]` + "\n  - text: done\n"
	turns := fmt.Sprintf(long, strings.Repeat(`true\n`, 400))
	for _, answers := range [][]string{{"y\n", "n\n"}, {"v\n", "e\n", "y\n"}} {
		_, shown, _, _ := onTerminal(t, "xterm", answers, turns)
		question, _, _ := strings.Cut(shown, " > ")
		if rows := strings.Count(question[strings.Index(question, "? shell wants"):], "\n"); rows >= 30 || !strings.Contains(question, "  | rm -rf build\n") {
			t.Errorf("the question has %d rows:\n%s", rows, question)
		}
		ran, paged := strings.Contains(shown, "✓"), strings.Count(shown, "  | true\n") >= 400
		if whole := len(answers) == 3; ran != whole || paged != whole || strings.Contains(shown, "nothing is allowed before") == whole {
			t.Errorf("%q: ran %t, paged %t:\n%s", answers, ran, paged, shown)
		}
	}
}

// Keys typed before the question is shown don't answer it. The control keeps them, and
// is answered.
func TestKeysBeforeAQuestionAnswerNothing(t *testing.T) {
	for _, dropped := range []bool{true, false} {
		w := newWorld(t, "  - calls: [{tool: shell, input: {command: echo hi}}]\n  - text: done\n")
		seen := watch(t, []string{"n\n"})
		w.use(seen.slave)
		w.app.stdout, w.app.pressed = io.Discard, nil
		if dropped {
			w.app.pressed = func(ctx context.Context, wait time.Duration) (bool, error) {
				return ui.KeyPressed(ctx, seen.slave, wait)
			}
		}
		w.env = append(w.env, "TERM=xterm")
		typing := make(chan struct{})
		go func() {
			defer close(typing)
			for !strings.Contains(seen.String(), "wants to run") {
				// If the terminal is full, writing would wait for a program that doesn't
				// read, and hold up the answer.
				n, err := unix.IoctlGetInt(int(seen.slave.Fd()), unix.TIOCINQ)
				room := []unix.PollFd{{Fd: int32(seen.master.Fd()), Events: unix.POLLOUT}}
				if ready, pollErr := unix.Poll(room, 0); err == nil && pollErr == nil && ready == 1 && n < 64 {
					fmt.Fprint(seen.master, "y\n")
				}
				time.Sleep(100 * time.Microsecond) // the kernel passes keys on later
			}
		}()
		w.run()
		<-typing
		shown := seen.end()
		if allowed := strings.Contains(shown, "✓"); allowed == dropped {
			t.Errorf("dropped %t, allowed %t:\n%s", dropped, allowed, shown)
		}
	}
}

// A waiting key and a new one are dropped and noticed. The terminal is then as before.
func TestKeysThatComeEarlyAreDropped(t *testing.T) {
	master, slave := openTerminal(t)
	before := modeOf(t, slave)
	fmt.Fprint(master, "y\n")
	for n := 0; n == 0; { // until the terminal has it
		var err error
		if n, err = unix.IoctlGetInt(int(slave.Fd()), unix.TIOCINQ); err != nil {
			t.Fatal(err)
		}
	}
	if pressed, err := ui.KeyPressed(t.Context(), slave, time.Millisecond); pressed || err != nil {
		t.Errorf("a quiet keyboard: %t, %v", pressed, err)
	}
	keys, end := context.WithCancel(t.Context())
	go func() {
		for keys.Err() == nil {
			fmt.Fprint(master, "y")
		}
	}()
	pressed, err := ui.KeyPressed(t.Context(), slave, time.Minute)
	if end(); !pressed || err != nil {
		t.Errorf("a key: %t, %v", pressed, err)
	}
	cause := errors.New("over")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := ui.KeyPressed(ended, slave, time.Minute); !errors.Is(err, cause) {
		t.Errorf("after the end: %v", err)
	}
	if after := modeOf(t, slave); after != before {
		t.Errorf("the terminal is left as %+v, was %+v", after, before)
	}
	if n, err := unix.IoctlGetInt(int(slave.Fd()), unix.TIOCINQ); n != 0 || err != nil {
		t.Errorf("%d bytes are left, %v", n, err)
	}
}

// TestSingleKeysOfATerminal: a key arrives without Enter and echo, and the terminal is
// then as before, even if it was set twice.
func TestSingleKeysOfATerminal(t *testing.T) {
	master, slave := openTerminal(t)
	before := modeOf(t, slave)
	keys := ui.NewTerminalKeys(slave)
	keys.SetSingle(true)
	keys.SetSingle(true)
	fmt.Fprint(master, "y")
	buf := make([]byte, 10)
	if n, err := slave.Read(buf); err != nil || string(buf[:n]) != "y" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	if n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCINQ); n != 0 || err != nil {
		t.Errorf("%d bytes are echoed, %v", n, err)
	}
	fmt.Fprint(master, "lso")
	if text, err := keys.Typed(t.Context(), time.Minute); err != nil || !strings.HasPrefix(text, "l") {
		t.Errorf("typed %q, %v", text, err)
	}
	for text := "o"; text != ""; { // the rest
		var err error
		if text, err = keys.Typed(t.Context(), 10*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if modeOf(t, slave) == before {
		t.Error("the control: the terminal collects lines")
	}
	keys.SetSingle(false)
	keys.SetSingle(false)
	if after := modeOf(t, slave); after != before {
		t.Errorf("the terminal is left as %+v, was %+v", after, before)
	}
}

// TestOneKeyAllows: a run needs no Enter, and Ctrl-D ends the questions.
func TestOneKeyAllows(t *testing.T) {
	for answer, want := range map[string]bool{"y": true, "y\n": true, "n": false, "\x04": false} {
		w := newWorld(t, "  - calls: [{tool: write_file, input: {path: one, content: x}}]\n  - text: done\n")
		seen := watch(t, []string{answer})
		w.use(seen.slave)
		w.app.stdout, w.app.keys = io.Discard, ui.NewTerminalKeys(seen.slave)
		w.app.pressed = func(ctx context.Context, _ time.Duration) (bool, error) { return ui.KeyPressed(ctx, seen.slave, 0) }
		w.env = append(w.env, "TERM=xterm")
		w.run()
		shown := seen.end()
		if _, err := os.Stat(filepath.Join(w.dir, "one")); (err == nil) != want {
			t.Errorf("%q allows: %t\n%s", answer, err == nil, shown)
		}
	}
}

func TestAnEndedTerminalApprovesNothing(t *testing.T) {
	status, shown, _, dir := onTerminal(t, "xterm", []string{"\x04"}, "  - calls: [{tool: write_file, input: {path: one, content: x}}]\n  - text: done\n")
	if _, err := os.Stat(filepath.Join(dir, "one")); status != 56 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("status %d, %v\n%s", status, err, shown)
	}
}

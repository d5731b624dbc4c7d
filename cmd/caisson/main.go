// Command caisson runs an agent's tool calls where they can do no harm: the
// agent loop and what only reads run here, what writes or executes runs in one
// container a session.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/term"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/sandbox"
)

// version is stamped by the build (-X main.version).
var version string

func main() {
	// A closed standard output must end the run in order, not kill it.
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), newApp(signals, os.Exit)))
}

// app is one start of the program: what it takes from outside, and its
// environment. Tests have their own.
type app struct {
	deps
	environ        environ
	args           []string // of the command line, without the program
	stdin          io.Reader
	stdout, stderr io.Writer
	// signals delivers the signals that end a run; exit ends the program at once,
	// at the third one.
	signals <-chan os.Signal
	exit    func(status int)
	// handled is set once a command handles signals itself; nil is no matter.
	handled *atomic.Bool
	// patience is how long the end of a run waits for a reader that reads
	// nothing.
	patience time.Duration
	// stdinWait is how long a pipe beside a task is waited for.
	stdinWait time.Duration
	// terminal reports whether a stream is one; size returns the columns and rows of
	// standard error.
	terminal func(stream any) bool
	size     func() (columns, rows int)
	// pressed drops what was typed at standard input and reports whether a key was
	// pressed within a time.
	pressed func(ctx context.Context, wait time.Duration) (bool, error)
}

// deps are the dependencies of sessions.
type deps struct {
	// executable is the path of the program; programs are looked for beside it.
	executable func() (string, error)
	// backend makes a backend in place of the built-in one, see caisson.HostOptions.
	backend func(b caisson.BackendSettings) (sandbox.Backend, error)
	// model makes the selected model. The function that comes with it ends it.
	model func(m config.SelectedModel, s modelSettings) (loop.Model, func(), error)
	// requirements is the administrator's file, owned by requirementsUID.
	requirements    string
	requirementsUID int
	// resources returns the built-in resources of the process's only session; nil
	// means limits.DefaultResources.
	resources func() limits.Resources
}

// modelSettings are the settings of a model besides its selection.
type modelSettings struct {
	stream bool
	// differs is called for each difference of a replayed run.
	differs func(text string)
	logger  *zap.Logger
}

// newApp returns the app of the real program.
func newApp(signals <-chan os.Signal, exit func(int)) app {
	return app{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, signals: signals, exit: exit, patience: patience, stdinWait: stdinWait,
		terminal: isTerminal,
		size: func() (int, int) {
			if columns, rows, err := term.GetSize(int(os.Stderr.Fd())); err == nil && columns > 0 && rows > 0 {
				return columns, rows
			}
			return 80, 24
		},
		pressed: func(ctx context.Context, wait time.Duration) (bool, error) {
			return ui.KeyPressed(ctx, os.Stdin, wait)
		},
		deps: deps{
			executable:   os.Executable,
			model:        makeModel,
			requirements: "/etc/caisson/requirements.yaml",
			resources:    func() limits.Resources { return limits.ResourcesAlone(machineMemory(), runtime.GOMAXPROCS(0)) },
		},
	}
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// machineMemory returns the memory in bytes that this process may use: MemTotal of
// proc(5), or less in a container with a limit. It is 0 where that is unknown, and
// then sandboxes have the memory of an engine's machine.
func machineMemory() int64 {
	var kib int64
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kib); err != nil {
		return 0
	}
	memory := kib << 10
	// A container sees its own cgroup at the top, on version 2 and on version 1.
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && limit > 0 {
			memory = min(memory, limit)
		}
	}
	return memory
}

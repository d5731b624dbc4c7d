// Command caisson runs an LLM agent's tool calls. The agent loop and read-only tools
// run in this process. Anything that writes or executes runs in one container per
// session.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"golang.org/x/term"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ci"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
)

var version string

func main() {
	delayCollection()
	// A closed standard output must end the run in order, not kill it.
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), newApp(signals, os.Exit)))
}

// delayCollection delays the first garbage collection until 16 MB, then uses the usual
// growth. A short command needs none, and a larger one would otherwise collect three
// times while it starts. It keeps a GOGC that the user set.
func delayCollection() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(400)
	runtime.AddCleanup(new(struct{ pointer *int }), func(percent int) { debug.SetGCPercent(percent) }, 100)
}

// app is one run of the program with everything that it takes from outside.
type app struct {
	deps
	environ        environ
	args           []string // without the program
	stdin          io.Reader
	stdout, stderr io.Writer
	// signals delivers the signals that end a run. exit ends the program at once, at
	// the third one.
	signals <-chan os.Signal
	exit    func(status int)
	// handled is set once a command handles signals itself. It may be nil.
	handled *atomic.Bool
	// patience is how long the end of a run waits for a reader that doesn't read.
	patience time.Duration
	// stdinWait is how long to wait for a pipe beside a task.
	stdinWait time.Duration
	// terminal reports whether a stream is a terminal. size returns the columns and
	// rows of standard error.
	terminal func(stream any) bool
	size     func() (columns, rows int)
	// pressed drops what was typed on standard input and reports whether a key was
	// pressed within wait.
	pressed func(ctx context.Context, wait time.Duration) (bool, error)
	// keys makes standard input deliver single keys. nil if it can't.
	keys ui.Keys
}

type deps struct {
	// executable returns the path of this program. Other programs are looked for beside
	// it.
	executable func() (string, error)
	// backend makes a backend instead of the built-in one. See caisson.HostOptions.
	backend func(b caisson.BackendSettings) (sandbox.Backend, error)
	// model makes the selected model. The returned function ends it.
	model func(m config.SelectedModel, s modelSettings) (loop.Model, func(), error)
	// requirements is the administrator's file. It must be owned by requirementsUID.
	requirements    string
	requirementsUID int
	// telemetry exports spans and metrics. nil exports none.
	telemetry *exporter
	// resources returns the default resources of a process's only session. nil means
	// limits.DefaultResources.
	resources func() limits.Resources
}

type modelSettings struct {
	stream bool
	// differs is called for each difference of a replayed run. nil logs them.
	differs func(d replay.Difference)
	logger  *zap.Logger
}

func newApp(signals <-chan os.Signal, exit func(int)) app {
	keys := ui.NewTerminalKeys(os.Stdin)
	return app{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, signals: signals, keys: keys,
		exit: func(status int) {
			keys.SetSingle(false)
			exit(status)
		},
		patience: patience, stdinWait: stdinWait,
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
			telemetry:    &exporter{},
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
// proc(5), or a container's lower limit. It returns 0 if unknown. Sandboxes then have
// the memory of an engine's machine.
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
	// A container sees its cgroup at the top, on version 2 and version 1.
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

// run runs the whole program and returns the exit status.
func run(ctx context.Context, args, env []string, a app) int {
	a.environ, a.args = env, args
	var guard *ci.Guard
	if !isHolder(args) { // its parent guards its output
		guard = guardOutput(&a)
	}
	stop := handleSignals(&a)
	defer stop()
	status := execute(ctx, &a, guard, args)
	a.telemetry.closeExporter(ctx, &a)
	if guard != nil {
		closeGuard(&a, guard) // after a panic it isn't closed: commands of the CI system then stay stopped
	}
	return status
}

// execute runs the command that the arguments name, and returns the exit status.
func execute(ctx context.Context, a *app, guard *ci.Guard, args []string) int {
	root := newRoot(a)
	if guard != nil {
		root.PersistentPreRun = func(cmd *cobra.Command, _ []string) { configureGuard(guard, cmd) }
	}
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.status
	}
	if isBrokenPipe(a, err) {
		return exitPipe
	}
	if err != nil {
		e := describeError(err)
		if e.Status == exitUsage && e.Hint == "" && !as[*pflag.InvalidValueError](err) { // that error says what it wants
			e.Hint = cmd.CommandPath() + " --help lists what there is."
		}
		reportError(a, e.Problem)
		return e.Status
	}
	return exitDone
}

// isBrokenPipe reports whether err means that the reader of standard output, such as
// head, has ended.
func isBrokenPipe(a *app, err error) bool {
	e, ok := errors.AsType[*fs.PathError](err)
	f, isFile := a.stdout.(*os.File)
	return ok && isFile && e.Path == f.Name() && errors.Is(err, syscall.EPIPE)
}

func newRoot(a *app) *cobra.Command {
	talk := newChatCommand(a)
	root := newGroup(&cobra.Command{
		Use:   "caisson",
		Short: "Run an agent's tool calls where they can do no harm",
		Long: "Caisson runs an LLM agent on a workspace. Read-only tools run in this process. Anything that\n" +
			"writes or executes runs in one container per session, without a network unless you allow it; the\n" +
			"container is removed afterwards.\n\n" +
			"Without a command, caisson chat begins if a model is configured and this is a terminal.",
		SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}, newRunCommand(a), talk, newBatchCommand(a), newConferCommand(a), newCoordinateCommand(a), newExecCommand(a), newShellCommand(a), newInitCommand(a), newDiffCommand(a), newApplyCommand(a), newSandboxCommand(a), newImagesCommand(a), newCachesCommand(a), newEgressCommand(a), newMCPCommand(a), newServeCommand(a), newOpenCommand(a), newApprovalsCommand(a),
		newTrustCommand(a), newUntrustCommand(a), newConfigCommand(a), newTraceCommand(a), newToolsCommand(a), newSkillsCommand(a), newAgentsCommand(a), newDoctorCommand(a), newVersionCommand(a))
	help := root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 || !canTalk(a) {
			return help(cmd, args)
		}
		a.warn("this is caisson chat; caisson --help lists all commands")
		talk.SetContext(cmd.Context())
		return talk.RunE(talk, nil)
	}
	root.Version = programVersion()
	root.SetVersionTemplate(versionLine() + "\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{suggestFlag(cmd, err)} })
	setHelp(a, root)
	addCompletion(root, a)
	return root
}

// canTalk reports whether a conversation can begin: on a terminal, with a model.
func canTalk(a *app) bool {
	if !a.terminal(a.stdin) || !a.terminal(a.stdout) || !a.terminal(a.stderr) {
		return false
	}
	s, err := loadChatSettings(a, config.File{}, "")
	if err == nil {
		_, err = s.conf.SelectModels(s.environ)
	}
	return err == nil
}

// newGroup completes a command that only has subcommands.
func newGroup(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return noCommand(cmd, args[0])
		}
		return cmd.Help()
	}
	cmd.AddCommand(commands...)
	return cmd
}

// noCommand returns the error for an unknown subcommand. It lists cmd's subcommands.
func noCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if like := doctor.NearestWord(name, names); like != "" {
		return newUsageError("there is no command %q (did you mean %s %s?); there are %s", cmd.CommandPath()+" "+name, cmd.CommandPath(), like, strings.Join(names, ", "))
	}
	return newUsageError("there is no command %q; there are %s", cmd.CommandPath()+" "+name, strings.Join(names, ", "))
}

// suggestFlag adds a similar flag to an error about an unknown one.
func suggestFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if like := doctor.NearestWord(unknown.GetSpecifiedName(), names); like != "" {
		return fmt.Errorf("%w (did you mean --%s?)", err, like)
	}
	return err
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return newUsageError("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// dataCommands write data that a file must get unchanged: a patch, a program's output,
// records, a page.
var dataCommands = []string{"caisson diff", "caisson exec", "caisson sandbox exec", "caisson trace export", "caisson trace html"}

// guardOutput guards the streams if a CI system's runner would obey commands in them.
// Otherwise it returns nil.
func guardOutput(a *app) *ci.Guard {
	g := ci.New(a.environ.get, a.stdout, a.stderr)
	if g == nil {
		return nil
	}
	a.stdout, a.stderr = g.Stdout(), g.Stderr()
	isTerminal, exit := a.terminal, a.exit
	a.terminal = func(stream any) bool {
		if s, ok := stream.(*ci.Stream); ok {
			return isTerminal(s.Unwrap())
		}
		return isTerminal(stream)
	}
	a.exit = func(status int) {
		g.Close()
		exit(status)
	}
	return g
}

// configureGuard tells the guard what a command writes to standard output.
func configureGuard(g *ci.Guard, cmd *cobra.Command) {
	path := cmd.CommandPath()
	if asJSON := cmd.Flags().Lookup("json"); path == "caisson trace export" || asJSON != nil && asJSON.Value.String() == "true" {
		g.WriteJSON()
	}
	if slices.Contains(dataCommands, path) {
		g.KeepFiles()
	}
}

// closeGuard closes the guard and reports what it changed in the output.
func closeGuard(a *app, g *ci.Guard) {
	if n := g.Escaped(); n > 0 {
		fmt.Fprintf(a.stderr, "caisson: on standard output %s escaped, as in :\\u003a, so that the CI runner does not obey text; docs/ci.md says how to get it unchanged\n",
			formatCount(n, "marker is", "markers are"))
	}
	g.Close()
}

func newVersionCommand(a *app) *cobra.Command {
	return newCommand(&cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		Long: "Print the version, and what it was built with.\n",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.stdout, versionLine())
			return err
		},
	}, nil, 0, nil)
}

func versionLine() string {
	with := "no programs embedded"
	if names := programs.Embedded(); len(names) > 0 {
		with = "with " + strings.Join(names, " and ")
	}
	return fmt.Sprintf("caisson %s %s %s/%s, %s", programVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH, with)
}

// programVersion returns the version stamped by the build, or the module's.
func programVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

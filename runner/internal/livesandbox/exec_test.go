package livesandbox

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/internal/diskwatch"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/shell"
	"github.com/caisson-run/caisson/tools/workspace"
)

// startFunc starts a command in a startedBox.
type startFunc func(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error)

// startedBox is a sandbox whose commands a function starts.
type startedBox struct {
	*fakesandbox.Sandbox
	start startFunc
}

func (b *startedBox) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	return b.start(ctx, cmd)
}

type creatorFunc func(context.Context, sandbox.Spec) (sandbox.Sandbox, error)

func (f creatorFunc) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	return f(ctx, spec)
}

// newExecutorBench returns an executor whose commands, except the search for bash, start starts. after
// counts its checks of the workspace.
func newExecutorBench(t *testing.T, start startFunc) (x *Executor, b *containerBench, after *int) {
	t.Helper()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	b = newContainerBench(t)
	b.opts.Spec.Workspace = sandbox.Workspace{Path: dir.Name(), Dir: dir}
	b.opts.Backend = creatorFunc(func(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
		box, err := b.boxes.Create(ctx, spec)
		if err != nil {
			return nil, err
		}
		return &startedBox{box.(*fakesandbox.Sandbox), func(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
			if len(cmd.Argv) == 3 {
				return endedProcess{}, nil // there is a bash
			}
			return start(ctx, cmd)
		}}, nil
	})
	after = new(int)
	return NewExecutor(b.Sandbox, ExecutorOptions{
		Dir: t.TempDir(), WaitRecorded: noWait, AfterCommand: func(context.Context) { *after++ },
		IsFresh: func(context.Context, string) bool { return true }, Images: changes.NewPreimages(t.TempDir()),
		RecordBackground: func(record.BackgroundEnded) error { return nil }, Log: zap.NewNop(),
	}), b, after
}

// noWait is for a workspace that is already recorded.
func noWait(context.Context) error { return nil }

func command(script string) shell.Command {
	return shell.Command{Script: script, Command: sandbox.Command{Stdout: discard{}, Stderr: discard{}}}
}

func TestExecutorRunsACommand(t *testing.T) {
	var got sandbox.Command
	var running context.Context
	x, _, after := newExecutorBench(t, func(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
		got, running = cmd, ctx
		_, _ = cmd.Stdout.Write([]byte("out"))
		_, _ = cmd.Stderr.Write([]byte("err"))
		stream := sandbox.Stream{Total: 3, Live: 3}
		return endedProcess{exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: 3}, Stdout: stream, Stderr: stream, Kill: sandbox.KillReport{Killed: 2}}}, nil
	})
	x.disk = diskwatch.New(diskwatch.Reserve, func() diskwatch.Room { return diskwatch.Room{Bytes: 4 * diskwatch.Reserve, Files: -1} }, nil)
	for i, cmd := range []shell.Command{
		{Script: "work", Command: sandbox.Command{Dir: "sub", NoLinks: true, Timeout: 7}}, {Script: "work", Args: []string{"a"}},
	} {
		cmd.Stdout, cmd.Stderr = discard{}, discard{}
		r, err := x.Run(t.Context(), cmd)
		if err != nil || r.Status.Code != 3 || string(r.Stdout.Head) != "out" || string(r.Stderr.Head) != "err" || r.KilledProcesses() != 2 {
			t.Errorf("%+v, %v", r, err)
		}
		want := []string{"bash", "-c", "--", "work"}
		if cmd.Args != nil {
			want = append(want, "caisson", "a")
		}
		if diff := cmp.Diff(want, got.Argv); diff != "" || got.Dir != cmd.Dir || got.NoLinks != cmd.NoLinks || got.Timeout != cmd.Timeout {
			t.Errorf("%+v; (-want +got):\n%s", got, diff)
		}
		if *after != i+1 || x.ProcessesKilled() != 2*(i+1) || running.Err() == nil {
			t.Errorf("looked %d times, %d processes killed, the watch ended with %v", *after, x.ProcessesKilled(), running.Err())
		}
	}
}

// TestExecutorReportsHowACommandEnded: what a command's end means for its call, and whether the
// workspace is checked afterwards.
func TestExecutorReportsHowACommandEnded(t *testing.T) {
	user := errors.New("user")
	for name, tc := range map[string]struct {
		exit     sandbox.Exit
		err      error
		restarts int  // before
		cancels  bool // the call, while the command runs
		want     error
		after    int
		replaced bool
	}{
		"by itself":               {after: 1},
		"with its sandbox":        {err: sandbox.ErrLost, want: tools.ErrSandboxLost},
		"cancelled":               {exit: sandbox.Exit{Status: sandbox.ExitStatus{Cancelled: true}}, cancels: true, want: user, after: 1},
		"with a process left":     {exit: sandbox.Exit{Kill: sandbox.KillReport{Left: 1}}, after: 1, replaced: true},
		"with one left too often": {exit: sandbox.Exit{Kill: sandbox.KillReport{Left: 1}}, restarts: maxRestarts, want: tools.ErrSandboxLost},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			var boxes *fakesandbox.Backend
			x, b, after := newExecutorBench(t, func(context.Context, sandbox.Command) (sandbox.Process, error) {
				if tc.cancels {
					cancel(user)
				}
				if tc.err != nil {
					boxes.Sandboxes[0].End(tc.err)
				}
				return endedProcess{exit: tc.exit, err: tc.err}, nil
			})
			boxes, b.restarts = b.boxes, tc.restarts
			r, err := x.Run(ctx, command("work"))
			if !errors.Is(err, tc.want) || (tc.want == nil) != (err == nil) || r.Status.Cancelled != tc.cancels {
				t.Errorf("%+v, %v", r, err)
			}
			if *after != tc.after || (b.restarts > tc.restarts) != tc.replaced {
				t.Errorf("looked %d times, %d restarts", *after, b.restarts)
			}
		})
	}
}

// TestExecutorEndsWhatFillsTheDisk before a command begins and while it runs, but not if it has ended
// by itself.
func TestExecutorEndsWhatFillsTheDisk(t *testing.T) {
	for name, tc := range map[string]struct {
		starts, ended bool // by the watch
	}{"before it began": {false, true}, "while it ran": {true, true}, "as it ended": {true, false}} {
		t.Run(name, func(t *testing.T) {
			var free atomic.Int64
			free.Store(4 * diskwatch.Reserve)
			x, _, _ := newExecutorBench(t, func(ctx context.Context, _ sandbox.Command) (sandbox.Process, error) {
				free.Store(1000)
				<-ctx.Done()
				if !tc.starts {
					return nil, context.Cause(ctx)
				}
				return endedProcess{exit: sandbox.Exit{Status: sandbox.ExitStatus{Cancelled: tc.ended}}}, nil
			})
			x.disk = diskwatch.New(diskwatch.Reserve, func() diskwatch.Room { return diskwatch.Room{Bytes: free.Load(), Files: -1} }, nil)
			r, err := x.Run(t.Context(), command("fill"))
			if err != nil || (r.Exceeded != nil && r.Exceeded.Limit == diskwatch.Reserve) != tc.ended || r.Status.Cancelled || (r.Status.Code == -1) == tc.starts {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// TestExecutorRefusesADirectory tells the model about an impossible working directory, and passes on
// other errors.
func TestExecutorRefusesADirectory(t *testing.T) {
	other := errors.New("no memory")
	for _, tc := range []struct {
		dir     string
		noLinks bool
		err     error
		want    string
	}{
		{"sub", false, sandbox.ErrInvalid, "leads out of the workspace"},
		{"sub", true, sandbox.ErrInvalid, "goes through a symlink"},
		{"", false, sandbox.ErrInvalid, ""},
		{sandbox.WorkspaceDir, false, sandbox.ErrInvalid, ""},
		{"sub", false, other, ""},
	} {
		x, _, after := newExecutorBench(t, func(context.Context, sandbox.Command) (sandbox.Process, error) { return nil, tc.err })
		cmd := command("work")
		cmd.Dir, cmd.NoLinks = tc.dir, tc.noLinks
		_, err := x.Run(t.Context(), cmd)
		e, told := errors.AsType[*tools.Error](err)
		if !errors.Is(err, tc.err) || told != (tc.want != "") || *after != 0 {
			t.Errorf("%+v: %v", tc, err)
		}
		if told && (e.Class != tools.ErrorExecution || e.Reason != "cwd" || !e.Visible || !strings.Contains(e.Message, tc.want) || !strings.Contains(e.Message, `"sub"`)) {
			t.Errorf("%+v: %+v", tc, e)
		}
	}
}

// TestExecutorLooksForBash once, and takes sh where there is none.
func TestExecutorLooksForBash(t *testing.T) {
	user, broken := errors.New("user"), errors.New("broken")
	for name, tc := range map[string]struct {
		code     int
		startErr error
		waitErr  error
		cancels  bool
		want     string
		wantErr  error
	}{
		"there is one":  {want: "bash"},
		"there is none": {code: 127, want: "sh"},
		"cancelled":     {code: -1, cancels: true, wantErr: user},
		"not started":   {startErr: broken, wantErr: broken},
		"not ended":     {waitErr: broken, wantErr: broken},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		starts := 0
		g := &generation{sandbox: &startedBox{&fakesandbox.Sandbox{}, func(context.Context, sandbox.Command) (sandbox.Process, error) {
			if starts++; tc.cancels {
				cancel(user)
			}
			return endedProcess{exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: tc.code}}, err: tc.waitErr}, tc.startErr
		}}}
		x := &Executor{}
		for range 2 {
			if got, err := x.shellProgram(ctx, g); got != tc.want || !errors.Is(err, tc.wantErr) || (err == nil) != (tc.wantErr == nil) {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if want := map[bool]int{true: 1, false: 2}[tc.wantErr == nil]; starts != want {
			t.Errorf("%s: looked %d times, want %d", name, starts, want)
		}
		cancel(nil)
	}
}

// TestExecutorMeetsALoss as it looks for bash and as it changes a file.
func TestExecutorMeetsALoss(t *testing.T) {
	x, b, _ := newExecutorBench(t, nil)
	b.boxes.OnApply = func(box *fakesandbox.Sandbox, _ workspace.Op, _ func() (workspace.Change, error)) (workspace.Change, error) {
		box.End(sandbox.ErrLost)
		return workspace.Change{}, sandbox.ErrLost
	}
	if _, err := x.Apply(t.Context(), workspace.Op{Kind: workspace.OpMkdir, Path: "d"}); !errors.Is(err, tools.ErrSandboxLost) {
		t.Errorf("a change: %v", err)
	}
	x, b, _ = newExecutorBench(t, nil)
	create := b.opts.Backend
	b.opts.Backend = creatorFunc(func(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
		box, err := create.Create(ctx, spec)
		started := box.(*startedBox)
		started.start = func(context.Context, sandbox.Command) (sandbox.Process, error) {
			started.End(sandbox.ErrLost)
			return nil, sandbox.ErrLost
		}
		return box, err
	})
	if _, err := x.Run(t.Context(), command("work")); !errors.Is(err, tools.ErrSandboxLost) {
		t.Errorf("the look for bash: %v", err)
	}
	x, b, _ = newExecutorBench(t, nil)
	b.StopAndDestroy()
	if _, err := x.Run(t.Context(), command("work")); !errors.Is(err, tools.ErrSandboxLost) {
		t.Errorf("a command after the end: %v", err)
	}
	if _, err := x.Apply(t.Context(), workspace.Op{Kind: workspace.OpMkdir, Path: "d"}); !errors.Is(err, tools.ErrSandboxLost) {
		t.Errorf("a change after the end: %v", err)
	}
}

// TestExecutorWaitsForTheWorkspace to be recorded, and changes nothing if that fails.
func TestExecutorWaitsForTheWorkspace(t *testing.T) {
	x, b, _ := newExecutorBench(t, nil)
	if _, err := b.waitRunning(t.Context()); err != nil {
		t.Fatal(err)
	}
	recorded := make(chan struct{})
	var notRecorded error
	x.opts.WaitRecorded = func(ctx context.Context) error {
		select {
		case <-recorded:
			return notRecorded
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	user := errors.New("user")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	waits := make(chan error)
	go func() {
		_, err := x.waitReady(ctx)
		waits <- err
	}()
	select {
	case err := <-waits:
		t.Errorf("it did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
		cancel(user)
		if err := <-waits; !errors.Is(err, user) {
			t.Errorf("a cancelled call: %v", err)
		}
	}
	close(recorded)
	if g, err := x.waitReady(t.Context()); err != nil || g == nil {
		t.Errorf("after the recording: %v", err)
	}
	notRecorded = errors.New("not recorded")
	if _, err := x.waitReady(t.Context()); !errors.Is(err, notRecorded) {
		t.Errorf("after a failed recording: %v", err)
	}
}

// TestExecutorKeepsWhatItChanges: former files, but no directories.
func TestExecutorKeepsWhatItChanges(t *testing.T) {
	x, b, looks := newExecutorBench(t, nil)
	var fresh []string
	x.opts.IsFresh = func(_ context.Context, path string) bool {
		fresh = append(fresh, path)
		return true
	}
	for _, op := range []workspace.Op{
		{Kind: workspace.OpMkdir, Path: "d"},
		{Kind: workspace.OpWrite, Path: "f", Content: []byte("new")},
	} {
		if _, err := x.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	if *looks != 0 {
		t.Errorf("%d looks at the workspace for changes that make no repository", *looks)
	}
	for i, op := range []workspace.Op{
		{Kind: workspace.OpMkdir, Path: "sub/.git/refs"},
		{Kind: workspace.OpWrite, Path: "sub/.GIT", Content: []byte("gitdir: x")},
		{Kind: workspace.OpWrite, Path: "d/HEAD"},
		{Kind: workspace.OpRename, Path: "f", To: "d/commondir"},
	} {
		if _, err := x.Apply(t.Context(), op); err != nil || *looks != i+1 {
			t.Errorf("%+v: %d looks, %v", op, *looks, err)
		}
	}
	if _, err := x.Apply(t.Context(), workspace.Op{Kind: workspace.OpWrite, Path: "d/HEAD", Content: []byte("x")}); err != nil || *looks != 4 {
		t.Errorf("a change of a file that is there: %d looks, %v", *looks, err)
	}
	if _, err := x.ApplyAnywhere(t.Context(), workspace.Op{Kind: workspace.OpRename, Path: "d/commondir", To: "f"}); err != nil || *looks != 4 {
		t.Errorf("a change of the look itself: %d looks, %v", *looks, err)
	}
	if text, err := os.ReadFile(b.opts.Spec.Workspace.Path + "/f"); err != nil || string(text) != "new" {
		t.Errorf("%q, %v", text, err)
	}
	_, absent, known := x.opts.Images.Before("f")
	_, noFile, directory := x.opts.Images.Before("d")
	if diff := cmp.Diff([]string{"f", "sub/.GIT", "d/HEAD", "d/HEAD"}, fresh); diff != "" || !absent || !known || noFile || directory {
		t.Errorf("absent %v, known %v, the directory %v; asked (-want +got):\n%s", absent, known, directory, diff)
	}
}

func TestExecutorOpensOutput(t *testing.T) {
	b, _ := startedBackgrounds(t, nil)
	j, err := b.addCommand("tu_1", func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	defer b.wait.Done()
	k, err := b.x.Output(j.handle)
	if err != nil {
		t.Fatal(err)
	}
	k.Close()
	if err := os.Remove(j.log.path); err != nil {
		t.Fatal(err)
	}
	if _, err := b.x.Output(j.handle); err == nil {
		t.Error("the output of a command whose file is gone was opened")
	}
	if _, err := b.x.Output("none"); !errors.Is(err, shell.ErrNoOutput) {
		t.Errorf("an unknown handle: %v", err)
	}
}

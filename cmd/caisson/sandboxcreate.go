package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/detach"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// holdWord is the name of the hidden command that owns a sandbox in its own process.
const holdWord = "hold"

type createFlags struct {
	TTL            time.Duration `flag:"ttl" default:"1h" doc:"end the sandbox after this time without a command"`
	workspaceFlags `groups:"Sandbox,Files and user"`
}

func newSandboxCreateCommand(a *app) *cobra.Command {
	var f createFlags
	return newCommand(&cobra.Command{
		Use: "create [flags]", Short: "Create a sandbox that stays, without an agent", Args: noArgs,
		Long: `Create a sandbox, without an agent, that stays until it is removed, and print its id.

The sandbox belongs to a process of its own, which runs the commands of caisson sandbox exec and cp. Both
end with caisson sandbox rm, after the time of --ttl without a command, or if the process is killed. Then
nothing is left except the records, and in overlay mode the changes (caisson diff, caisson apply).

The settings of caisson run that concern the sandbox are flags here too.
`,
		Example: `  id=$(caisson sandbox create --image oci-archive:python.tar --workspace project)
  caisson sandbox exec $id -- python3 -m pytest
  caisson sandbox cp results.json $id:/workspace/
  caisson sandbox rm $id`,
		RunE: func(cmd *cobra.Command, _ []string) error { return createSandbox(cmd.Context(), a, &f) },
	}, &f, usesConfig|usesInput|startsSandbox|runsCommands|interruptible, statuses{exitFailed: "the sandbox could not be created"})
}

// newSandboxHoldCommand returns the command of the process that owns a sandbox. It has
// the flags of create, which starts it.
func newSandboxHoldCommand(a *app) *cobra.Command {
	var f createFlags
	return newCommand(&cobra.Command{
		Use: holdWord + " [flags]", Short: "Own the sandbox of caisson sandbox create", Args: noArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return holdSandbox(cmd.Context(), a, &f) },
	}, &f, 0, nil)
}

func isHolder(args []string) bool {
	return len(args) > 1 && args[0] == "sandbox" && args[1] == holdWord
}

// createSandbox starts the process that owns a sandbox and waits until it runs.
func createSandbox(ctx context.Context, a *app, f *createFlags) error {
	if f.TTL <= 0 {
		return newUsageError("--ttl %s: want a time above zero", f.TTL)
	}
	program, err := a.executable()
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	args := slices.Clone(a.args)
	args[slices.Index(args, "create")] = holdWord
	ctx, force, _, stop := a.handleInterrupts(ctx, a.warn)
	defer stop()
	id, err := detach.Start(ctx, program, args, a.stderr, force)
	if e, ok := errors.AsType[*detach.EndedError](err); ok { // it has printed why
		return cmp.Or(interruption(ctx), exitWith(max(e.Status, exitFailed)))
	}
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	_, err = fmt.Fprintln(a.stdout, id)
	return err
}

// holdSandbox owns a sandbox until it is removed, unused for the TTL, or lost.
func holdSandbox(ctx context.Context, a *app, f *createFlags) error {
	parent, err := detach.FindParent()
	if err != nil {
		return newUsageError("caisson sandbox hold is not for people: %v", err)
	}
	s, err := openSessionBuilder(a, f.workspaceFlags)
	if err != nil {
		return err
	}
	defer s.close()
	s.orders = true
	u := newInterface(a, false)
	ctx, force, cancel, stop := a.handleInterrupts(ctx, u.printNotice)
	defer stop()
	defer u.close(ctx)
	watch := runner.NewCommandWatch()
	var id string
	session, err := s.openWithoutModel(ctx, u, force, "caisson sandbox create", func(o *runner.Options) {
		id, o.EndRequested = o.Dir.Session, func() { cancel(nil) }
		show := o.Mirror
		o.Mirror = func(r record.Record, line []byte) {
			watch.Observe(r.Kind)
			show(r, line)
		}
	})
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	// The first command starts the sandbox and checks that it runs commands.
	if _, err = session.Exec(ctx, runner.UserCommand{Argv: []string{sandbox.GuestPath, "version"}}); err == nil {
		_ = u.out.Drain(ctx)
		err = parent.Ready(id)
	}
	if err == nil {
		watch.Wait(ctx, session, f.TTL)
	}
	r := session.Close()
	u.showEnd(ctx, r)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	return exitWith(r.ExitStatus)
}

func newSandboxRemoveCommand(a *app) *cobra.Command {
	return newCommand(&cobra.Command{
		Use: "rm ID...", Short: "End sandboxes of caisson sandbox create", Args: wantArgs(1, -1, "sessions"),
		Long: `End sandboxes of caisson sandbox create, and wait until nothing is left of them. Running commands get
SIGTERM, and SIGKILL after the grace period. Each id is printed once its sandbox is gone.

ID is a session of caisson sandbox ls, or the beginning of one. A sandbox that belongs to caisson run or
caisson serve is refused: it ends with them.
`,
		Example: "  caisson sandbox rm ses_01J…",
		RunE:    func(cmd *cobra.Command, args []string) error { return removeSandboxes(cmd.Context(), a, args) },
	}, nil, usesConfig|interruptible, statuses{
		exitFailed: "a part of a sandbox could not be removed", exitInput: "there is no such sandbox, or it belongs to a run or a server", exitSandboxLost: "the end of a sandbox is not known",
	})
}

// removeSandboxes ends sandboxes. It continues after an error.
func removeSandboxes(ctx context.Context, a *app, ids []string) error {
	bs, err := openDefaultBackends(a)
	if err != nil {
		return err
	}
	defer bs.close()
	ctx, _, _, stop := a.handleInterrupts(ctx, func(string) {})
	defer stop()
	var first error
	for _, id := range ids {
		session, err := bs.findSession(ctx, id)
		if err == nil {
			err = runner.EndSession(ctx, bs.environ.stateDir(), session)
		}
		if err == nil {
			fmt.Fprintln(a.stdout, session)
			err = reportLeft(a, session)
		}
		if err = cmp.Or(interruption(ctx), err); err != nil && first == nil {
			first = err
		} else if err != nil {
			reportError(a, describeError(err).Problem)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return first
}

func reportLeft(a *app, session string) error {
	found, err := trace.Find(a.environ.stateDir(), session)
	if err != nil {
		return err
	}
	o, err := trace.Read(found, func(record.Record) {})
	switch {
	case err != nil:
		return err
	case o.Ended == nil:
		return newFailure(exitSandboxLost, nil, "the process of sandbox "+session+" died before its end", "caisson sandbox gc removes what is left.")
	case len(o.Ended.Left) > 0:
		return newFailure(exitFailed, nil, fmt.Sprintf("a part of sandbox %s could not be removed: %s", session, strings.Join(o.Ended.Left, ", ")), "caisson sandbox gc tries again.")
	}
	return nil
}

func newSandboxCopyCommand(a *app) *cobra.Command {
	return newCommand(&cobra.Command{
		Use: "cp SOURCE DESTINATION", Short: "Copy files into or out of a live sandbox", Args: wantArgs(2, 2, "a source and a destination"),
		Long: `Copy files between this machine and a live sandbox. One of the two names is ID:PATH, with the path in
the sandbox; the other one is a path here, or "-" for a tar archive on standard output or input.

A directory is copied with everything below it. If the destination is a directory, the copy goes into
it; otherwise the copy gets the destination's name, whose directory must exist. A name that ends in /.
means the content of a directory. Permission bits, modification times, symlinks and hard links are kept;
owners, set-user-ID and set-group-ID bits are not. Existing directories of this machine keep their own
bits and times. Nothing is written through a symlink. Special files are not copied, nor symlinks of the
sandbox that lead out of the copied files, except into an archive: here they could lead to any file of
this machine.

In the sandbox, the commands' user reads and writes the files, within the commands' limits. The sandbox's
commands wrote the files that you get: treat them like files of a stranger.
`,
		Example: `  caisson sandbox cp project/. ses_01J…:/workspace
  caisson sandbox cp ses_01J…:/workspace/report.xml .
  caisson sandbox cp ses_01J…:/workspace - | tar -tf -`,
		ValidArgsFunction: func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return completeCopyName(a.environ, typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return copyFiles(cmd.Context(), a, args[0], args[1]) },
	}, nil, usesConfig|runsCommands|interruptible, statuses{exitFailed: "not everything could be copied", exitInput: "there is no such live sandbox or path"})
}

// splitCopyName splits ID:PATH. A name with a slash before its first colon, or without
// a colon, is a path of this machine.
func splitCopyName(name string) (id, file string, inSandbox bool) {
	id, file, ok := strings.Cut(name, ":")
	if !ok || id == "" || strings.Contains(id, "/") {
		return "", name, false
	}
	return id, file, true
}

func copyFiles(ctx context.Context, a *app, source, destination string) error {
	fromID, from, out := splitCopyName(source)
	toID, to, in := splitCopyName(destination)
	switch {
	case in == out:
		return newUsageError("one of %q and %q has to be ID:PATH, and the other a path of this machine", source, destination)
	case from == "" || to == "":
		return newUsageError("a path is missing: %q, %q", source, destination)
	}
	bs, err := openDefaultBackends(a)
	if err != nil {
		return err
	}
	defer bs.close()
	session, err := bs.findSession(ctx, fromID+toID)
	if err != nil {
		return err
	}
	ctx, force, _, stop := a.handleInterrupts(ctx, func(string) {})
	defer stop()
	c := copier{app: a, session: session, stateDir: bs.environ.stateDir(), abandon: force}
	if in {
		err = c.copyIn(ctx, from, to)
	} else {
		err = c.copyOut(ctx, from, to)
	}
	return cmp.Or(interruption(ctx), err)
}

type copier struct {
	app               *app
	session, stateDir string
	abandon           <-chan struct{}
}

// runCommand runs a command that packs or unpacks, and returns its status. The error
// contains the command's standard error.
func (c *copier) runCommand(ctx context.Context, command runner.UserCommand) (int, error) {
	text := &limits.Head{Size: 4 << 10}
	command.Stderr, command.Abandon = text, c.abandon
	r, err := runner.RunUserCommand(ctx, c.stateDir, c.session, command)
	switch {
	case err != nil:
		return 0, err
	case r.Status.Code == 0 && r.Status.Signal == 0:
		return 0, nil
	}
	cause, _ := tools.DisplayLines(strings.TrimSpace(text.String()))
	if r.Status.Cause() != "" || r.Status.Signal != 0 || cause == "" {
		cause = strings.TrimSpace(fmt.Sprintf("it ended with %s. %s", r.Status, cause))
	}
	return r.Status.Code, newFailure(exitFailed, nil, "in the sandbox: "+cause, "What was copied before stays; caisson sandbox cp --help has the rules.")
}

func (c *copier) copyIn(ctx context.Context, from, to string) error {
	if from == "-" {
		_, err := c.runCommand(ctx, runner.UnpackCommand(to, c.app.stdin))
		return err
	}
	name := filepath.Base(from)
	if isContent(from) {
		name = "."
	}
	if _, err := os.Lstat(from); err != nil {
		return notCopied(err)
	}
	status, err := c.sendTree(ctx, from, name, to)
	if status == archive.StatusNoDirectory && !strings.HasSuffix(to, "/") {
		_, err = c.sendTree(ctx, from, path.Base(to), path.Dir(to))
	}
	return err
}

// sendTree writes a file or directory of this machine below a directory of the sandbox.
func (c *copier) sendTree(ctx context.Context, from, name, dir string) (int, error) {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := archive.Pack(w, from, archive.PackOptions{Name: name, LeaveOut: c.leaveOut})
		w.CloseWithError(err) // a nil error ends the archive
		packed <- err
	}()
	status, err := c.runCommand(ctx, runner.UnpackCommand(dir, r))
	_ = r.CloseWithError(errors.New("the sandbox reads no more")) // ends the packing
	if packErr := <-packed; err == nil && packErr != nil {
		err = notCopied(packErr)
	}
	return status, err
}

// leaveOut warns about a special file, and returns any other error.
func (c *copier) leaveOut(name string, err error) error {
	if !errors.Is(err, archive.ErrSpecial) {
		return err
	}
	c.app.warn("left out: " + name + " is a special file.")
	return nil
}

func (c *copier) copyOut(ctx context.Context, from, to string) error {
	if to == "-" {
		name := path.Base(from)
		if isContent(from) || name == "/" {
			name = "."
		}
		_, err := c.runCommand(ctx, runner.PackCommand(from, name, c.app.stdout))
		return err
	}
	dir, name := to, path.Base(from)
	if isContent(from) || name == "/" || name == ".." {
		name = "."
	}
	if info, err := os.Stat(to); err == nil && !info.IsDir() || errors.Is(err, fs.ErrNotExist) && !strings.HasSuffix(to, "/") {
		dir, name = filepath.Dir(to), filepath.Base(to)
	}
	// A command may have replaced a directory of the workspace by a symlink, and may do
	// so now.
	dest, err := workspace.OpenDir(dir)
	if err != nil {
		return notCopied(err)
	}
	defer func() { _ = dest.Close() }()
	held := fmt.Sprintf("/proc/self/fd/%d", dest.Fd())
	r, w := io.Pipe()
	unpacked := make(chan error, 1)
	var left []string
	o := archive.UnpackOptions{Name: name, KeepExisting: true, Links: &archive.LinkRule{From: path.Clean(from), LeftOut: func(link, target string) {
		left = append(left, link)
		c.app.warn("left out: the symlink " + link + " leads to " + target + ", which is not copied with it.")
	}}}
	if !path.IsAbs(from) {
		o.Links.From = ""
	}
	go func() {
		err := archive.UnpackWith(r, held, o)
		_ = r.CloseWithError(cmp.Or(err, errors.New("the archive has ended"))) // ends the command's output
		unpacked <- err
	}()
	_, err = c.runCommand(ctx, runner.PackCommand(from, name, w))
	w.CloseWithError(err)
	if unpackErr := <-unpacked; unpackErr != nil && (err == nil || errors.As(err, new(*runner.UserCommandError))) {
		return notCopied(unpackErr)
	}
	if err == nil && slices.Equal(left, []string{name}) {
		return notCopied(fmt.Errorf("%s is a symlink: name the file or directory that it points to", path.Base(from)))
	}
	return err
}

func isContent(name string) bool { return name == "." || strings.HasSuffix(name, "/.") }

// notCopied explains an error about a path of this machine.
func notCopied(err error) error {
	return newFailure(exitInput, err, "the files can't be copied: "+err.Error(), "Name a path of this machine that is there and fits; caisson sandbox cp --help has the rules.")
}

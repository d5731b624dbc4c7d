package main

import (
	"context"
	"errors"
	"io"

	"github.com/moby/term"
	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/runner"
)

const attachLong = `Go back to a command of caisson sandbox exec -it --detach-keys, with its terminal.

You see the last 64 KiB of its output, and the program draws its screen again. A client that had the
terminal before is detached. The detach keys leave the command running, and so do SIGTERM and a closed
window. Everything else that you type goes to it. After the keys, the exit status is 0.

COMMAND is the beginning of the command's id (exe_…), which is needed only if there are several.
`

// newSandboxAttachCommand returns the command that goes back to a detached one.
func newSandboxAttachCommand(a *app) *cobra.Command {
	var f struct {
		DetachKeys string `flag:"detach-keys" default:"ctrl-p,ctrl-q" doc:"keys that leave the command running"`
	}
	return ownFlagErrors(newCommand(&cobra.Command{
		Use: "attach [flags] ID [COMMAND]", Short: "Go back to a detached command", Long: attachLong + execStatusHelp,
		Example: `  caisson sandbox exec -it --detach-keys ctrl-p,ctrl-q $id -- bash
  caisson sandbox attach $id`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 {
				return ownFailure(newUsageError("caisson sandbox attach needs a session, and at most one command of it"))
			}
			if f.DetachKeys == "" {
				return ownFailure(newUsageError("--detach-keys is empty; leave it out for ctrl-p,ctrl-q"))
			}
			command := append(args, "")[1]
			t := execFlags{TTY: true, Stdin: true}
			return ownFailure(t.runInLive(cmd.Context(), a, args[0], f.DetachKeys, func(ctx context.Context, stateDir, session string, c runner.UserCommand) (runner.UserResult, error) {
				return runner.AttachUserCommand(ctx, stateDir, session, command, c)
			}))
		},
	}, &f, 0, execExits))
}

// errDetached is the cause of a context that ended because the user typed the detach keys.
var errDetached = errors.New("the user detached from the command")

// parseDetachKeys returns the bytes of keys such as ctrl-p,ctrl-q, or nil for none.
func parseDetachKeys(keys string) ([]byte, error) {
	if keys == "" {
		return nil, nil
	}
	b, err := term.ToBytes(keys)
	if err != nil {
		return nil, newUsageError("--detach-keys %q: want keys like ctrl-p,ctrl-q: ctrl- and one of a-z @ [ \\ ] ^ _, or single characters", keys)
	}
	return b, nil
}

// detachingReader calls detach when the keys were read, and then ends.
type detachingReader struct {
	from   io.Reader
	detach func()
}

func (r detachingReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if errors.As(err, new(term.EscapeError)) {
		r.detach()
		return n, io.EOF
	}
	return n, err
}

// reportDetached says that the command goes on without this program. It returns an error
// unless the user detached.
func reportDetached(ctx context.Context, a *app, session string) error {
	back := "caisson sandbox attach " + session + " goes back to it."
	if ctx.Err() == nil {
		return newFailure(exitOwn, nil, "another client has the terminal now", back)
	}
	a.warn("detached; the command goes on. " + back)
	return interruption(ctx)
}

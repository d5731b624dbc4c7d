package runner

import (
	"context"
	"io"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/shell"
	"github.com/caisson-run/caisson/tools/verify"
)

// checker runs the commands of checks like any other command.
type checker struct{ exec *executor }

// RunCheck runs one command in the workspace.
func (c checker) RunCheck(ctx context.Context, cmd verify.Command) (verify.Ended, error) {
	r, err := c.exec.Run(ctx, shell.Command{Script: cmd.Script, Command: sandbox.Command{Dir: sandbox.WorkspaceDir, Timeout: cmd.Timeout, Stdout: io.Discard, Stderr: io.Discard}})
	if err != nil {
		return verify.Ended{}, err
	}
	out := r.Stdout
	ended := verify.Ended{
		ExitStatus: r.Status, DiskFull: r.DiskReserve > 0, Stdout: string(out.Head),
		Cut: out.Total > int64(len(out.Head)+len(out.Tail)),
	}
	if ended.Cut {
		ended.Stdout += "\n"
	}
	ended.Stdout += string(out.Tail)
	return ended, nil
}

package guest

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

const (
	// maxArgument is Linux's MAX_ARG_STRLEN (include/uapi/linux/binfmts.h).
	maxArgument = 128 << 10
	// maxArguments bounds arguments and environment together. It fits a frame
	// and is above Linux's own limit, a quarter of the stack (2 MiB), which the
	// program's exit status reports.
	maxArguments = 2500 << 10
	maxDir       = 4096 // PATH_MAX
)

// newRequest checks a command and returns its request, with the environment for
// its number. Its error wraps sandbox.ErrInvalid.
func (o Options) newRequest(cmd sandbox.Command, number int) (wire.Exec, error) {
	r := wire.Exec{
		Stdin: cmd.Stdin != nil, Live: cmd.Output.Live, Tail: cmd.Output.Tail,
		Timeout: cmd.Timeout, Grace: cmd.Grace,
	}
	if cmd.Terminal != nil {
		r.Terminal = (*wire.TerminalSize)(&cmd.Terminal.TerminalSize)
	}
	if cmd.MaxTasks < 0 || cmd.MaxMemory < 0 {
		return r, invalidError("a budget is negative")
	}
	if cmd.MaxTasks > 0 || cmd.MaxMemory > 0 {
		r.Budget = &wire.Budget{Tasks: cmd.MaxTasks, Memory: cmd.MaxMemory}
	}
	if len(cmd.Argv) == 0 || cmd.Argv[0] == "" {
		return r, invalidError("no program is named")
	}
	if cmd.Identity < 0 || cmd.Identity > sandbox.MaxIdentity {
		return r, invalidError(fmt.Sprintf("identity %d is not within 0 to %d", cmd.Identity, sandbox.MaxIdentity))
	}
	rel, err := relativeDir(o.Config.Workspace, cmd.Dir)
	if err != nil {
		return r, err
	}
	if cmd.Identity != 0 && cmd.Dir != "" && rel == "" {
		rel = "." // the workspace, not the identity's home
	}
	r.Dir, r.NoLinks, r.Identity = []byte(rel), cmd.NoLinks, cmd.Identity
	env := cmd.Env
	if env == nil {
		env = o.ownEnv(cmd, number)
	}
	if cmd.Proxy && o.Plan != nil {
		env = o.Plan.AccessEnv(env, cmd.Variables, number)
	} else if len(cmd.Variables) > 0 {
		env = sandbox.SetVariables(env, cmd.Variables)
	}
	total := 0
	if r.Argv, err = checkArguments("argument", cmd.Argv, &total); err != nil {
		return r, err
	}
	if r.Env, err = checkArguments("environment variable", env, &total); err != nil {
		return r, err
	}
	for i, e := range env {
		if strings.IndexByte(e, '=') < 1 {
			return r, invalidError(fmt.Sprintf("environment variable %d has no name or no =", i))
		}
	}
	return o.withBounds(r)
}

// withBounds fills in and checks times and output limits.
func (o Options) withBounds(r wire.Exec) (wire.Exec, error) {
	r.Live = cmp.Or(r.Live, sandbox.DefaultLiveBytes)
	r.Tail = cmp.Or(r.Tail, sandbox.DefaultTailBytes)
	r.Timeout = cmp.Or(r.Timeout, o.Timeout)
	r.Grace = cmp.Or(r.Grace, o.Grace)
	switch {
	case r.Live < 0 || r.Tail < 0:
		return r, invalidError("an output limit is negative")
	case r.Tail > wire.MaxTail:
		return r, invalidError(fmt.Sprintf("a tail of %d bytes is over %d", r.Tail, wire.MaxTail))
	case r.Timeout < 0 || r.Grace < 0:
		return r, invalidError("a timeout or grace period is negative")
	}
	return r, nil
}

// relativeDir returns a working directory relative to the workspace's mount
// point. The guest's kernel resolves it.
func relativeDir(mountPoint, dir string) (string, error) {
	if len(dir) > maxDir || strings.ContainsRune(dir, 0) {
		return "", invalidError("the working directory's path is too long or holds a NUL")
	}
	if dir != "" && dir[0] != '/' {
		return "", invalidError(fmt.Sprintf("working directory %q is not an absolute path: write %s", dir, path.Join(mountPoint, dir)))
	}
	rest, ok := strings.CutPrefix(dir, mountPoint)
	if dir != "" && (!ok || rest != "" && rest[0] != '/') {
		return "", invalidError(fmt.Sprintf("working directory %q is not below %s", dir, mountPoint))
	}
	return strings.TrimLeft(rest, "/"), nil
}

// ownEnv returns the sandbox's environment with the variables of the command's
// identity and its PWD.
func (o Options) ownEnv(cmd sandbox.Command, number int) []string {
	env := o.Env
	switch {
	case cmd.Separate:
	case o.Plan != nil:
		env = o.Plan.CommandEnv(env, o.SessionEnv, number)
	default:
		env = sandbox.SetVariables(env, o.SessionEnv)
	}
	env = sandbox.SetVariables(env, sandbox.IdentityVariables(cmd.Identity))
	for i, e := range env {
		if strings.HasPrefix(e, "PWD=") && (cmd.Dir != "" || cmd.Identity == 0) {
			env[i] = "PWD=" + cmp.Or(cmd.Dir, o.Config.Workspace)
		}
	}
	return env
}

func checkArguments(what string, list []string, total *int) ([][]byte, error) {
	out := make([][]byte, len(list))
	for i, s := range list {
		if len(s) > maxArgument {
			return nil, invalidError(fmt.Sprintf("%s %d has %d bytes, may have %d; pass long text on standard input or in a file", what, i, len(s), maxArgument))
		}
		if strings.ContainsRune(s, 0) {
			return nil, invalidError(fmt.Sprintf("%s %d holds a NUL byte", what, i))
		}
		if *total += len(s) + 1; *total > maxArguments {
			return nil, invalidError(fmt.Sprintf("arguments and environment are over %d bytes; pass long text on standard input or in a file", maxArguments))
		}
		out[i] = []byte(s)
	}
	return out, nil
}

func invalidError(text string) error {
	return fmt.Errorf("start command: %w: %s", sandbox.ErrInvalid, text)
}

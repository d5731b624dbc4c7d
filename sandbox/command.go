package sandbox

import (
	"io"
	"slices"
	"strings"
	"time"
)

// Command is a program to run in a sandbox. Start reads it. Its readers and
// writers are used until the process has ended.
type Command struct {
	// Argv is the program and its arguments, at least one element. A program
	// without a slash is looked up in the PATH of Env. An element must not
	// contain a NUL or be longer than 128 KiB (MAX_ARG_STRLEN of Linux).
	Argv []string
	// Env is the whole environment as NAME=value; nothing is inherited. Nil
	// means the sandbox's own: the [Environment] for the variables that its
	// image declares.
	Env []string
	// Dir is the working directory, an absolute path in the container at or
	// below WorkspaceDir. Empty means WorkspaceDir. Symlinks that leave the
	// workspace are not followed.
	Dir string
	// NoLinks makes Start return ErrInvalid if Dir contains a symlink, even one
	// that stays in the workspace.
	NoLinks bool
	// Stdin is copied to the command; nil means /dev/null.
	Stdin io.Reader
	// Stdout and Stderr receive the live output in order, up to Output.Live
	// bytes per stream. One goroutine per stream writes. Nil discards the
	// output. A writer that blocks delays only this stream of this command.
	Stdout, Stderr io.Writer
	// Output bounds the output that is kept.
	Output OutputLimits
	// Timeout bounds the wall time; zero means the session's
	// Resources.CommandTime. It ends the command like a cancellation, and sets
	// TimedOut of the status.
	Timeout time.Duration
	// Grace overrides Spec.Grace; zero means Spec.Grace. There is no grace
	// period if the cause of the cancellation is a *limits.ExceededError of
	// kind disk.
	Grace time.Duration
}

// OutputLimits bounds the output of one command, per stream. Output beyond the
// limits is still read, counted and hashed in the container, but not kept.
type OutputLimits struct {
	// Live is the number of bytes per stream that are sent to the writers; zero
	// means [DefaultLiveBytes].
	Live int64
	// Tail is the number of last bytes per stream that the guest keeps once
	// Live is used up; zero means [DefaultTailBytes].
	Tail int
}

// Defaults of [OutputLimits]. A session stores at most DefaultLiveBytes per
// stream of a command on disk. DefaultTailBytes fits into the 50,000 bytes that
// a model is shown.
const (
	DefaultLiveBytes = 16 << 20
	DefaultTailBytes = 32 << 10
)

// DefaultEnv returns the environment of a command that sets none: a fixed PATH,
// no pagers, no prompts, and the usual markers of a sandbox. It contains
// nothing of the host's environment.
func DefaultEnv() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + HomeDir,
		"USER=agent",
		"LOGNAME=agent",
		"PWD=" + WorkspaceDir,
		"TMPDIR=/tmp",
		"LANG=C.UTF-8",
		"TERM=dumb",
		"CI=1",
		"PAGER=cat",
		"GIT_PAGER=cat",
		"GIT_TERMINAL_PROMPT=0",
		"SANDBOX=caisson",
		"IS_SANDBOX=1",
		"AI_AGENT=caisson",
	}
}

// Environment returns the environment of commands on an image: [DefaultEnv]
// with the variables that the image's configuration declares (OCI image-spec
// 1.1, config.Env). These replace defaults of the same name, except for the
// identity of the command, its directories and the markers. The directories in
// path are appended to PATH. Entries that are not NAME=value are left out.
func Environment(image, path []string) []string {
	env := DefaultEnv()
	for _, v := range image {
		name, _, ok := strings.Cut(v, "=")
		if !ok || name == "" || slices.Contains(fixedEnv, name) {
			continue
		}
		if i := slices.IndexFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") }); i >= 0 {
			env[i] = v
		} else {
			env = append(env, v)
		}
	}
	for i, v := range env {
		list, ok := strings.CutPrefix(v, "PATH=")
		if !ok {
			continue
		}
		dirs := strings.Split(list, ":")
		for _, dir := range path {
			if !slices.Contains(dirs, dir) && !strings.Contains(dir, ":") {
				dirs = append(dirs, dir)
			}
		}
		env[i] = "PATH=" + strings.Join(dirs, ":")
	}
	return env
}

// fixedEnv are the variables that no image can set: the sandbox's own identity
// and directories, and the hooks of the loader and the shell.
var fixedEnv = []string{"HOME", "USER", "LOGNAME", "PWD", "TMPDIR", "SANDBOX", "IS_SANDBOX", "AI_AGENT", "LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "ENV"}

package sandbox

import (
	"io"
	"slices"
	"strings"
	"time"
)

// Command is one program to run in a sandbox. It is read by Start; its readers
// and writers are used until the process has ended.
type Command struct {
	// Argv is the program and its arguments, at least one. A name without a
	// slash is looked up in the PATH of Env. No element may hold a NUL or be
	// longer than 128 KiB (Linux MAX_ARG_STRLEN).
	Argv []string
	// Env is the whole environment as NAME=value; nothing is inherited. Nil
	// means the sandbox's own: [Environment] of what its image declares.
	Env []string
	// Dir is the working folder: absolute in the container, at or below
	// WorkspaceDir. Empty means WorkspaceDir. It is opened without following
	// links that leave the workspace.
	Dir string
	// NoLinks makes a Dir that goes through a symlink, also one that stays in the
	// workspace, fail with ErrInvalid.
	NoLinks bool
	// Stdin is copied to the command; nil is /dev/null.
	Stdin io.Reader
	// Stdout and Stderr get the live output, up to Output.Live bytes a
	// stream, in order, from one goroutine each. Nil discards. A writer that
	// blocks slows this stream of this command only, never another's.
	Stdout, Stderr io.Writer
	// Output bounds what is kept.
	Output OutputLimits
	// Timeout bounds the wall time; zero means the session's
	// Resources.CommandTime. It ends the command as a cancellation does, and
	// the status says TimedOut.
	Timeout time.Duration
	// Grace overrides Spec.Grace; zero means Spec.Grace. There is no grace
	// period where the command's context is cancelled with a
	// *limits.ExceededError of kind disk as its cause.
	Grace time.Duration
}

// OutputLimits bounds one command's output, each stream by itself. What is
// over it is still read, counted and hashed in the container, never buffered.
type OutputLimits struct {
	// Live is the number of bytes a stream that are sent to the writers; zero
	// means [DefaultLiveBytes].
	Live int64
	// Tail is the number of last bytes a stream that the guest keeps once
	// Live is used up; zero means [DefaultTailBytes].
	Tail int
}

// Defaults of OutputLimits: the live bound is what a session spills to disk for
// one command; the tail is half of what a model is shown (50,000 bytes).
const (
	DefaultLiveBytes = 16 << 20
	DefaultTailBytes = 32 << 10
)

// DefaultEnv is the environment of a command that names none: a fixed PATH, no
// pagers, no prompts, and the field's markers of a sandbox. It holds nothing of
// the host's environment.
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

// Environment is the environment of commands on an image: [DefaultEnv], with
// the variables that the image's configuration declares (OCI image-spec 1.1,
// config.Env) in place of defaults of the same name, but for those that say who
// and where a command is, and with more folders at the end of PATH. What is not
// NAME=value is left out.
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

// fixedEnv are the variables that no image changes: identity and place are the
// sandbox's own, and the loader's and the shell's hooks are nobody's.
var fixedEnv = []string{"HOME", "USER", "LOGNAME", "PWD", "TMPDIR", "SANDBOX", "IS_SANDBOX", "AI_AGENT", "LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "ENV"}

package images

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config is how an image's programs are meant to run, from its configuration
// (OCI image-spec 1.1, and HEALTHCHECK and SHELL of Docker). The values are the
// image's and as it writes them, within the bounds of [NewConfig]: what uses one
// must check it.
type Config struct {
	// User is a user's name or number, and perhaps a group after a colon; see
	// [ParseUser]. Empty means root.
	User string `json:"user,omitempty"`
	// WorkingDir is the directory in which programs start.
	WorkingDir string `json:"working_dir,omitempty"`
	// Entrypoint and Cmd together are the program and its arguments.
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	// Shell runs commands in shell form; empty means /bin/sh -c.
	Shell []string `json:"shell,omitempty"`
	// Env is the environment, as NAME=value. See sandbox.Environment.
	Env []string `json:"env,omitempty"`
	// Volumes are the directories that the image declares as VOLUME, absolute and
	// sorted. A backend mounts a small tmpfs on each and never uses a volume on
	// the host's disk.
	Volumes []string `json:"volumes,omitempty"`
	// HealthCheck is nil if the image has none.
	HealthCheck *HealthCheck `json:"health_check,omitempty"`
}

// Bounds of a configuration. maxEnv and maxEnvBytes are those of what an image can
// add to every command's environment.
const (
	maxEnv       = 256
	maxEnvBytes  = 64 << 10
	maxPath      = 4096 // PATH_MAX of Linux
	maxArgs      = 1024
	maxArgsBytes = 128 << 10 // MAX_ARG_STRLEN of Linux
)

// NewConfig returns c with the valid entries of its environment, and the number
// of the others. It returns [ErrInvalid] for a value with a NUL or beyond the
// bounds.
func NewConfig(c Config) (_ Config, dropped int, err error) {
	for name, value := range map[string]string{"USER": c.User, "WORKDIR": c.WorkingDir} {
		if len(value) > maxPath || strings.ContainsRune(value, 0) {
			return Config{}, 0, fmt.Errorf("%w: its %s has %d bytes or contains a NUL: want at most %d bytes", ErrInvalid, name, len(value), maxPath)
		}
	}
	lists := map[string][]string{"ENTRYPOINT": c.Entrypoint, "CMD": c.Cmd, "SHELL": c.Shell}
	if c.HealthCheck != nil {
		lists["HEALTHCHECK"] = c.HealthCheck.Test
	}
	for name, list := range lists {
		if n := len(strings.Join(list, "")); len(list) > maxArgs || n > maxArgsBytes || strings.ContainsRune(strings.Join(list, ""), 0) {
			return Config{}, 0, fmt.Errorf("%w: its %s has %d arguments with %d bytes or contains a NUL: want at most %d with %d bytes",
				ErrInvalid, name, len(list), n, maxArgs, maxArgsBytes)
		}
	}
	c.Env, dropped = validEnv(c.Env)
	return c, dropped, nil
}

// validEnv returns the valid entries of an environment and the number of others.
func validEnv(env []string) (list []string, dropped int) {
	size := 0
	for _, e := range env {
		name, _, ok := strings.Cut(e, "=")
		if size += len(e); !ok || name == "" || strings.ContainsRune(e, 0) || len(list) == maxEnv || size > maxEnvBytes {
			dropped++
			continue
		}
		list = append(list, e)
	}
	return list, dropped
}

// User is a USER. Both parts are names or numbers.
type User struct {
	Name  string
	Group string // empty means the user's own
}

// ParseUser parses a USER in one of the forms name, uid, name:group, uid:gid and
// their mixtures. Whether the image knows the names is not checked.
func ParseUser(text string) (User, error) {
	name, group, hasGroup := strings.Cut(text, ":")
	for _, part := range []string{name, group} {
		if len(part) > maxUserName || strings.ContainsFunc(part, func(r rune) bool { return r <= ' ' || r == 0x7f || r == ':' || r == '/' }) {
			return User{}, fmt.Errorf("%w: USER %.300q: want a name or number, and perhaps a group after a colon", ErrInvalid, text)
		}
	}
	if name == "" || hasGroup && group == "" {
		return User{}, fmt.Errorf("%w: USER %.300q lacks a name: want a name or number, and perhaps a group after a colon", ErrInvalid, text)
	}
	return User{Name: name, Group: group}, nil
}

// maxUserName is LOGIN_NAME_MAX of Linux.
const maxUserName = 256

// HealthCheck is an image's HEALTHCHECK, or one like it. A zero duration or number
// means the default, which is Docker's.
type HealthCheck struct {
	// Test is CMD and a program with its arguments, CMD-SHELL and a command for
	// the shell, or NONE. An empty one is like NONE.
	Test []string `json:"test"`
	// Interval is the time between tests; zero means 30 s.
	Interval time.Duration `json:"interval_ns,omitempty"`
	// Timeout is the time after which a test has failed; zero means 30 s.
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	// StartPeriod is the time from the start in which failures do not count.
	StartPeriod time.Duration `json:"start_period_ns,omitempty"`
	// StartInterval is the time between tests in the start period; zero means 5 s.
	StartInterval time.Duration `json:"start_interval_ns,omitempty"`
	// Retries is the number of consecutive failures that count as unhealthy; zero
	// means 3.
	Retries int `json:"retries,omitempty"`
}

// The words that a test begins with.
const (
	testNone  = "NONE"
	testExec  = "CMD"
	testShell = "CMD-SHELL"
)

// WithDefaults returns h with the defaults of Docker. It returns [ErrInvalid] for a
// negative value, a Test of another form, and one beyond the bounds of [NewConfig].
func (h HealthCheck) WithDefaults() (HealthCheck, error) {
	if _, err := h.Argv(nil); err != nil {
		return h, err
	}
	if _, _, err := NewConfig(Config{HealthCheck: &h}); err != nil {
		return h, err
	}
	for name, d := range map[string]time.Duration{"interval": h.Interval, "timeout": h.Timeout, "start period": h.StartPeriod, "start interval": h.StartInterval} {
		if d < 0 {
			return h, fmt.Errorf("%w: its health check has a negative %s, %s", ErrInvalid, name, d)
		}
	}
	if h.Retries < 0 {
		return h, fmt.Errorf("%w: its health check has a negative number of retries, %d", ErrInvalid, h.Retries)
	}
	h.Interval = cmp.Or(h.Interval, 30*time.Second)
	h.Timeout = cmp.Or(h.Timeout, 30*time.Second)
	h.StartInterval = cmp.Or(h.StartInterval, 5*time.Second)
	h.Retries = cmp.Or(h.Retries, 3)
	return h, nil
}

// Argv returns the program of the test and its arguments, with shell for a command in
// shell form, empty meaning /bin/sh -c. It is nil if there is no test.
func (h HealthCheck) Argv(shell []string) ([]string, error) {
	if len(shell) == 0 {
		shell = []string{"/bin/sh", "-c"}
	}
	switch {
	case len(h.Test) == 0, h.Test[0] == testNone && len(h.Test) == 1:
		return nil, nil
	case h.Test[0] == testExec && len(h.Test) > 1 && h.Test[1] != "":
		return slices.Clone(h.Test[1:]), nil
	case h.Test[0] == testShell && len(h.Test) == 2:
		return append(slices.Clone(shell), h.Test[1]), nil
	}
	return nil, fmt.Errorf("%w: its health check begins with %.40q and has %d words: want CMD and a program, CMD-SHELL and one command, or NONE",
		ErrInvalid, h.Test[0], len(h.Test))
}

package images

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config is an image's configuration (OCI image-spec 1.1, and Docker's
// HEALTHCHECK and SHELL). The values are as the image has them, within the
// bounds of [NewConfig], so users must check them.
type Config struct {
	// User is a user's name or number, optionally followed by a colon and a
	// group; see [ParseUser]. Empty means root.
	User       string `json:"user,omitempty"`
	WorkingDir string `json:"working_dir,omitempty"`
	// Entrypoint and Cmd together are the program and its arguments.
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	// Shell runs commands in shell form; empty means /bin/sh -c.
	Shell []string `json:"shell,omitempty"`
	// Env is the environment, as NAME=value. See sandbox.Environment.
	Env []string `json:"env,omitempty"`
	// Volumes are the directories declared as VOLUME, absolute and sorted. A
	// backend mounts a small tmpfs on each and never a volume on the host's
	// disk.
	Volumes []string `json:"volumes,omitempty"`
	// HealthCheck is nil if the image has none.
	HealthCheck *HealthCheck `json:"health_check,omitempty"`
}

// Bounds of a configuration. maxEnv and maxEnvBytes bound what an image can add
// to every command's environment.
const (
	maxEnv       = 256
	maxEnvBytes  = 64 << 10
	maxPath      = 4096 // Linux's PATH_MAX
	maxArgs      = 1024
	maxArgsBytes = 128 << 10 // Linux's MAX_ARG_STRLEN
)

// NewConfig returns c with only the valid entries of its environment, and the
// number of dropped ones. It returns [ErrInvalid] for a value that contains a
// NUL or exceeds the bounds.
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

// User is a parsed USER. Both parts are names or numbers.
type User struct {
	Name  string
	Group string // empty means the user's own
}

// ParseUser parses a USER: a name or uid, optionally followed by a colon and a
// group or gid. It does not check whether the image knows them.
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

// maxUserName is Linux's LOGIN_NAME_MAX.
const maxUserName = 256

// HealthCheck is an image's HEALTHCHECK, or a similar one. A zero duration or
// number means Docker's default.
type HealthCheck struct {
	// Test is CMD, a program and its arguments; CMD-SHELL and a shell command;
	// or NONE, which is the default.
	Test []string `json:"test"`
	// Interval is the time between tests; zero means 30 s.
	Interval time.Duration `json:"interval_ns,omitempty"`
	// Timeout is when a test has failed; zero means 30 s.
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	// StartPeriod is how long failures don't count from the start.
	StartPeriod time.Duration `json:"start_period_ns,omitempty"`
	// StartInterval is the time between tests in the start period; zero means 5 s.
	StartInterval time.Duration `json:"start_interval_ns,omitempty"`
	// Retries is how many consecutive failures mean unhealthy; zero means 3.
	Retries int `json:"retries,omitempty"`
}

const (
	testNone  = "NONE"
	testExec  = "CMD"
	testShell = "CMD-SHELL"
)

// WithDefaults returns h with Docker's defaults. It returns [ErrInvalid] for a
// negative value, an invalid Test, and one beyond the bounds of [NewConfig].
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

// Argv returns the test's program and arguments, or nil if there is no test.
// shell runs a command in shell form; empty means /bin/sh -c.
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

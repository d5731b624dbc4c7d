package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// DefaultEnv returns the environment of a command that sets none: a fixed PATH,
// no pagers, no prompts, package managers offline, and the usual markers of a
// sandbox. It has nothing from the host's environment. PWD assumes a workspace
// at WorkspaceDir.
func DefaultEnv() []string {
	return append([]string{
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
		"GOTOOLCHAIN=local",
		// A reserved .git is no repository, and go build fails where git status does.
		"GOFLAGS=-buildvcs=false",
	}, offlineEnv...)
}

// offlineEnv makes package managers fail at once with the reason. Without a
// network they would otherwise retry for minutes.
var offlineEnv = []string{
	"GOPROXY=off",
	"npm_config_offline=true",
	"YARN_ENABLE_NETWORK=0",
	"PIP_NO_INDEX=1",
	"UV_OFFLINE=1",
	"CARGO_NET_OFFLINE=true",
	"MAVEN_ARGS=--offline",
}

// Environment returns the environment of commands on an image: [DefaultEnv]
// with the variables in the image's configuration (OCI image-spec 1.1,
// config.Env). These replace defaults of the same name, except fixedEnv. PATH
// begins with the directories in path, followed by its own others. Entries that
// are not NAME=value are left out.
func Environment(image, path []string) []string {
	env := DefaultEnv()
	for _, v := range image {
		name, _, ok := strings.Cut(v, "=")
		if !ok || name == "" || slices.Contains(fixedEnv, name) {
			continue
		}
		env = setVariable(env, name, v)
	}
	for i, v := range env {
		list, ok := strings.CutPrefix(v, "PATH=")
		if !ok {
			continue
		}
		dirs := slices.DeleteFunc(slices.Clone(path), func(dir string) bool { return strings.Contains(dir, ":") })
		for dir := range strings.SplitSeq(list, ":") {
			if !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
		env[i] = "PATH=" + strings.Join(dirs, ":")
	}
	return env
}

// fixedEnv are the variables that no image can set: the sandbox's identity and
// directories, and hooks of the loader and the shell.
var fixedEnv = []string{"HOME", "USER", "LOGNAME", "PWD", "TMPDIR", "SANDBOX", "IS_SANDBOX", "AI_AGENT", "LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "ENV"}

// CheckVariables returns an error that wraps [ErrInvalid] unless a session may
// set these variables, each NAME=value. It refuses the loader's (LD_…), PATH,
// those that no image can set, and names that are not letters, digits and
// underscores. The error names the variable but never has its value.
func CheckVariables(env []string) error {
	for _, v := range env {
		name, value, ok := strings.Cut(v, "=")
		switch {
		case !ok || !isVariableName(name):
			return fmt.Errorf("%w: %q is not a variable's name", ErrInvalid, name)
		case name == "PATH" || strings.HasPrefix(name, "LD_") || slices.Contains(fixedEnv, name):
			return fmt.Errorf("%w: the variable %s is the sandbox's own", ErrInvalid, name)
		case strings.Contains(value, "\x00"):
			return fmt.Errorf("%w: the variable %s contains a NUL", ErrInvalid, name)
		case len(v) >= maxVariableBytes:
			return fmt.Errorf("%w: the variable %s has %d bytes, at most %d are accepted", ErrInvalid, name, len(v), maxVariableBytes-1)
		}
	}
	return nil
}

// maxVariableBytes is Linux's MAX_ARG_STRLEN with 4 KiB pages, including the
// final NUL.
const maxVariableBytes = 128 << 10

func isVariableName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) && (name[0] < '0' || name[0] > '9')
}

// SetVariables returns env, or [DefaultEnv] if it is nil, with these variables
// in place of others of the same name.
func SetVariables(env, variables []string) []string {
	if env == nil {
		env = DefaultEnv()
	}
	env = slices.Clone(env)
	for _, v := range variables {
		name, _, _ := strings.Cut(v, "=")
		env = setVariable(env, name, v)
	}
	return env
}

func setVariable(env []string, name, v string) []string {
	i := slices.IndexFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") })
	if i < 0 {
		return append(env, v)
	}
	env[i] = v
	return env
}

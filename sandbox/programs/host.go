package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Command returns a command for a program that runs on this machine, outside
// any sandbox. name is an absolute path, or a program on environ's PATH.
// Commands in the sandbox can write to the writable directories, so programs in
// them don't count, and the command's PATH has none of them. The error is a
// [*NotFoundError].
func Command(ctx context.Context, environ, writable []string, name string, args ...string) (*exec.Cmd, error) {
	environ = CleanEnviron(environ, writable)
	candidates := []string{name}
	if !strings.Contains(name, "/") {
		candidates = nil
		for _, v := range environ {
			if path, ok := strings.CutPrefix(v, "PATH="); ok {
				candidates = joinAll(filepath.SplitList(path), name)
			}
		}
	}
	finder := &Finder{Writable: func() []string { return writable }}
	missing := &NotFoundError{Name: name}
	for _, candidate := range candidates {
		if _, err := finder.resolve(candidate); err != nil {
			missing.Tried = append(missing.Tried, fmt.Sprintf("%s (%v)", candidate, err))
			continue
		}
		cmd := exec.CommandContext(ctx, candidate, args...)
		cmd.Args[0], cmd.Env = name, environ
		return cmd, nil
	}
	return nil, missing
}

// CleanEnviron returns environ with PATH cleaned by [CleanPath].
func CleanEnviron(environ, writable []string) []string {
	out := make([]string, len(environ))
	for i, v := range environ {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			v = "PATH=" + CleanPath(path, writable)
		}
		out[i] = v
	}
	return out
}

// CleanPath returns a PATH without the writable directories and anything in
// them. It also drops relative and missing directories, which could become
// writable ones.
func CleanPath(path string, writable []string) string {
	var kept []string
	for _, dir := range filepath.SplitList(path) {
		if real, err := filepath.EvalSymlinks(dir); err == nil && filepath.IsAbs(dir) && FindWritable(writable, real) == "" {
			kept = append(kept, dir)
		}
	}
	return strings.Join(kept, string(os.PathListSeparator))
}

func joinAll(dirs []string, names ...string) []string {
	var paths []string
	for _, dir := range dirs {
		for _, name := range names {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths
}

// NoExecError reports a program, or a directory of programs, on a noexec file
// system.
type NoExecError struct{ Path string }

func (e *NoExecError) Error() string {
	return fmt.Sprintf("%s is on a file system that is mounted noexec, so that no program on it can be started", e.Path)
}

// CheckExec returns a [*NoExecError] if path is on a noexec file system. It
// returns nil if that is unknown.
func CheckExec(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil || fs.Flags&unix.ST_NOEXEC == 0 {
		return nil
	}
	return &NoExecError{path}
}

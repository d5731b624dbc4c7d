package workmount

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxConfig is the most that is read of a repository's configuration, in bytes.
const maxConfig = 256 << 10

// lostConfigured returns what the repository's own configuration, which
// commands can't change, makes git execute in places that they can write: a
// directory of hooks, as husky configures it (core.hooksPath), or a file system
// monitor. `git status` executes both. Other keys that make a shell execute
// something are not examined.
func lostConfigured(workspace *os.File, base, repo string) []string {
	f, err := openBelow(workspace, path.Join(repo, "config"), unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil // there is none, or it is elsewhere
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return nil
	}
	var lost []string
	for _, key := range []string{"hooksPath", "fsmonitor"} {
		value := coreValue(string(text), key)
		if program, _, _ := strings.Cut(value, " "); key == "fsmonitor" && strings.Contains(program, "/") {
			value = program
		} else if key == "fsmonitor" {
			continue // a switch, or a program of PATH
		}
		if inside := pathInWorkspace(base, repo, value); inside != "" {
			lost = append(lost, fmt.Sprintf("git on this machine runs what is in %q (core.%s of the repository), which commands can write: look at it before you use git", inside, key))
		}
	}
	return lost
}

// coreValue returns the last value of a key of the section core
// (git-config(1)), or "".
func coreValue(config, key string) (value string) {
	section := ""
	for line := range strings.Lines(config) {
		line = strings.TrimSpace(line)
		if head, rest, ok := strings.Cut(line, "]"); ok && strings.HasPrefix(head, "[") {
			section, line = strings.TrimSpace(head[1:]), strings.TrimSpace(rest)
		}
		name, text, ok := strings.Cut(line, "=")
		if !ok || !strings.EqualFold(section, "core") || !strings.EqualFold(strings.TrimSpace(name), key) {
			continue
		}
		value = strings.TrimSpace(text)
		if quoted, ok := strings.CutPrefix(value, `"`); ok {
			value, _, _ = strings.Cut(quoted, `"`)
		} else if i := strings.IndexAny(value, "#;"); i >= 0 {
			value = strings.TrimSpace(value[:i])
		}
	}
	return value
}

// pathInWorkspace returns the path in the workspace that value leads to, or ""
// if that is outside or in the repository's directory.
func pathInWorkspace(base, repo, value string) string {
	if value == "" || strings.HasPrefix(value, "~") {
		return ""
	}
	if !filepath.IsAbs(value) {
		value = filepath.Join(base, value)
	}
	inside, err := filepath.Rel(base, realPrefix(value))
	if err != nil || !filepath.IsLocal(inside) || inside == repo || strings.HasPrefix(inside, repo+"/") {
		return ""
	}
	return inside
}

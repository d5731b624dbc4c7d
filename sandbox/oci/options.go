package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/sandbox"
)

// Options says how to make a [Backend]. Kind, RuntimePath, GuestPath and
// StateDir are required.
type Options struct {
	Kind Kind
	// RuntimePath is the runtime's binary and GuestPath the guest's, both
	// absolute host paths; see [Find]. They are looked at when they are used,
	// so that a missing one is an error of Check and Create.
	RuntimePath, GuestPath string
	// StateDir is Caisson's state directory, absolute, of this user alone. The
	// sessions' directories (Spec.Dir) lie below it.
	StateDir string
	// Host says how image host is put together. UID and GID are filled in.
	Host host.Options
	// Images resolves names, layouts, archives and builds; with nil only host
	// and rootfs can be used.
	Images images.Source
	// Protect names further directories that can be no workspace and lie in none,
	// such as the user's home.
	Protect []string
	// StartTime bounds the making of one sandbox; zero means
	// [DefaultStartTime].
	StartTime time.Duration
	// Probe makes the guest try, in every sandbox, what a command must not be
	// able to do, and Create fail if anything of it works. It costs the start
	// of one process.
	Probe bool
	// Logger gets what can't be returned; nil discards.
	Logger *zap.Logger
}

// DefaultStartTime is when a start counts as failed: a hundred times what
// gVisor takes on an idle machine, for one that is loaded.
const DefaultStartTime = time.Minute

func (o *Options) setDefaults() error {
	if _, ok := traitsOf(o.Kind); !ok {
		return fmt.Errorf("make oci backend: kind %q: %w", o.Kind, sandbox.ErrInvalid)
	}
	for _, p := range []struct{ name, path string }{
		{"runtime", o.RuntimePath}, {"guest", o.GuestPath}, {"state directory", o.StateDir},
	} {
		if !filepath.IsAbs(p.path) {
			return fmt.Errorf("make oci backend: path of the %s %q is not absolute: %w", p.name, p.path, sandbox.ErrInvalid)
		}
	}
	if o.StartTime == 0 {
		o.StartTime = DefaultStartTime
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return nil
}

// RuntimeName is the name of a kind's binary: runsc or runc.
func RuntimeName(k Kind) string {
	t, _ := traitsOf(k)
	return t.binary
}

// Find looks for a program of Caisson's: beside our own executable, then in
// the directories of searchPath, of which those that are not absolute are left
// out, so that nothing is taken from the directory that we happen to be in. It
// fails with sandbox.ErrNotFound.
func Find(name, searchPath string) (string, error) {
	var dirs []string
	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(self))
	}
	for _, dir := range append(dirs, filepath.SplitList(searchPath)...) {
		p := filepath.Join(dir, name)
		if info, err := os.Stat(p); err == nil && filepath.IsAbs(dir) && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("find %s: neither beside caisson nor on PATH: %w", name, sandbox.ErrNotFound)
}

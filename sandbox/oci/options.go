package oci

import (
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/sandbox"
)

// Options configures a [Backend]. Kind, RuntimePath, GuestPath and StateDir are
// required.
type Options struct {
	Kind Kind
	// RuntimePath and GuestPath are the absolute host paths of the runtime's
	// and the guest's binaries. They are read when they are used, so that Check
	// and Create fail if one is missing.
	RuntimePath, GuestPath string
	// StateDir is Caisson's state directory, an absolute path, of this user
	// alone. The sessions' directories (Spec.Dir) lie below it.
	StateDir string
	// Host configures the image "host". The backend sets its UID and GID.
	Host host.Options
	// Images provides names, layouts, archives and builds. If nil, only host
	// and rootfs work.
	Images images.Source
	// Protect names directories, such as the user's home, that no workspace may
	// be or contain.
	Protect []string
	// StartTime bounds the start of one sandbox; zero means [DefaultStartTime].
	StartTime time.Duration
	// Isolation forces one; "" means the strongest that works here. Only the
	// kind GVisor has sandbox.IsolationProcess.
	Isolation sandbox.Isolation
	// Probe makes every sandbox's guest try what a command must not be able to
	// do. Create fails if any of it works. It costs the start of one process.
	Probe bool
	// Logger receives errors that can't be returned; nil discards them.
	Logger *zap.Logger
}

// DefaultStartTime is a hundred times what gVisor takes on an idle machine, to
// allow for a loaded one.
const DefaultStartTime = time.Minute

func (o *Options) setDefaults() error {
	if _, ok := traitsOf(o.Kind); !ok {
		return fmt.Errorf("make oci backend: kind %q: %w", o.Kind, sandbox.ErrInvalid)
	}
	switch {
	case o.Isolation == sandbox.IsolationProcess && o.Kind != GVisor:
		return &sandbox.IncapableError{Request: "isolation process", Reason: string(o.Kind) + " has no kernel of its own", Hint: "use the gvisor backend"}
	case o.Isolation != "" && o.Isolation != sandbox.IsolationProcess && o.Isolation != sandbox.IsolationNamespaces:
		return fmt.Errorf("make oci backend: isolation %q: %w", o.Isolation, sandbox.ErrInvalid)
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

package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
)

// checkSystem returns an error if this system can't run the backend.
func (b *Backend) checkSystem() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("%s is not Linux: use the docker backend: %w", runtime.GOOS, sandbox.ErrUnsupported)
	}
	if !b.rootless {
		return checkMounts()
	}
	for _, s := range []struct{ file, off, hint string }{
		{"user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"},
		{"kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that allows userns for the runtime"},
	} {
		data, err := os.ReadFile("/proc/sys/" + s.file)
		if err == nil && strings.TrimSpace(string(data)) == s.off {
			return fmt.Errorf("this system lets ordinary users make no user namespaces: %w: as root: %s", sandbox.ErrUnavailable, s.hint)
		}
	}
	return checkNamespaces()
}

// These are variables for tests.
var (
	tryUserNamespace = TryUserNamespace
	tryMount         = TryMount
)

// checkMounts returns sandbox.ErrNoNamespaces if this process may not mount,
// which the runtimes do if Caisson is root.
func checkMounts() error {
	if err := tryMount(); errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w: root may not mount here: %w", sandbox.ErrUnavailable, sandbox.ErrNoNamespaces, err)
	}
	return nil
}

// checkNamespaces returns sandbox.ErrNoNamespaces if this process can't make a
// user namespace.
func checkNamespaces() error {
	if err := tryUserNamespace(); err != nil {
		return fmt.Errorf("%w: %w: %w", sandbox.ErrUnavailable, sandbox.ErrNoNamespaces, err)
	}
	return nil
}

// explainFailure adds the cause to a failed start if the runtime's message is
// not clear.
func explainFailure(err error) error {
	if !errors.Is(err, sandbox.ErrUnavailable) && !errors.Is(err, sandbox.ErrUnsupported) || errors.Is(err, sandbox.ErrNoNamespaces) {
		return err
	}
	cause := checkNamespaces()
	if cause == nil && strings.Contains(err.Error(), `error mounting "proc"`) {
		cause = sandbox.ErrNoNamespaces // runc: a container's masked /proc forbids another one
	}
	if cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

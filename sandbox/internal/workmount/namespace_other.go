//go:build !linux

package workmount

import (
	"context"
	"os/exec"
)

// MountNamespace starts a runtime in a user and mount namespace in which an
// overlay is mounted: the guest's binary mounts it there and becomes the
// runtime (see its package enter). No process stays for it.
type MountNamespace struct{}

// WrapCommand changes a command that was not started so that it runs in the
// namespace. It must have no ExtraFiles. Call WaitMounted after its start.
func (*MountNamespace) WrapCommand(*exec.Cmd) {}

// WaitMounted waits until the overlay is mounted, and keeps its root for View.
// It returns ErrUnsupported if the kernel or this user can't mount it. Call it
// once the wrapped command was started. Cancelling ctx ends it.
func (*MountNamespace) WaitMounted(context.Context) error { return nil }

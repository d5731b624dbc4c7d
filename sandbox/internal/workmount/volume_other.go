//go:build !linux

package workmount

import (
	"context"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Volume is an overlay that an engine mounts for us, on Linux.
type Volume struct{ Options string }

// Clean has nothing to remove here.
func (*Volume) Clean() bool { return true }

// Check has nothing to check here.
func (*Volume) Check(context.Context, workspace.View, bool) error { return nil }

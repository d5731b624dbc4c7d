//go:build !linux

package workmount

import (
	"context"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Volume is an overlay that an engine mounts, on Linux.
type Volume struct{ Options string }

// Clean reports true: there is nothing to remove.
func (*Volume) Clean() bool { return true }

// Check checks nothing.
func (*Volume) Check(context.Context, workspace.View, bool) error { return nil }

//go:build !linux

package workmount

import (
	"context"
	"os/exec"
)

// Entrance is for Linux.
type Entrance struct{}

// Wrap changes nothing here.
func (*Entrance) Wrap(*exec.Cmd) {}

// Opened waits for nothing here.
func (*Entrance) Opened(context.Context) error { return nil }

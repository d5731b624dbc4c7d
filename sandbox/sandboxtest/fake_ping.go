//go:build linux

package sandboxtest

import (
	"context"

	"github.com/caisson-run/caisson/sandbox"
)

// Ping answers as long as the sandbox runs.
func (s *fakeSandbox) Ping(context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	return s.life.Require("ping", sandbox.StateRunning)
}

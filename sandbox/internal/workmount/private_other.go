//go:build !linux

package workmount

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/caisson-run/caisson/sandbox"
)

// PrivateMounts are for Linux alone.
type PrivateMounts struct{}

// ShiftOwners returns ErrUnsupported.
func ShiftOwners(string, Base) (*os.File, error) {
	return nil, fmt.Errorf("map owners: %w", sandbox.ErrUnsupported)
}

// HideOwners returns ErrUnsupported.
func HideOwners(string) (*os.File, error) {
	return nil, fmt.Errorf("map owners: %w", sandbox.ErrUnsupported)
}

// Add returns ErrUnsupported.
func (p *PrivateMounts) Add(string, *os.File) (string, error) {
	return "", fmt.Errorf("mount image: %w", sandbox.ErrUnsupported)
}

// AddWritable returns ErrUnsupported.
func (p *PrivateMounts) AddWritable(string) (string, error) {
	return "", fmt.Errorf("mount image: %w", sandbox.ErrUnsupported)
}

// Start starts the command.
func (p *PrivateMounts) Start(cmd *exec.Cmd) error { return cmd.Start() }

// Close does nothing.
func (p *PrivateMounts) Close() {}

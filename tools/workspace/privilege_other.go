//go:build !linux

package workspace

import (
	"errors"
	"os"
)

// Privileges reads and clears privileges of files: on Linux alone.
type Privileges struct{}

var errNoPrivileges = errors.New("privileges of files are read on Linux alone")

// NewPrivileges fails here.
func NewPrivileges(*os.File) (*Privileges, error) { return nil, errNoPrivileges }

// Read fails here.
func (*Privileges) Read(string, bool) (PrivilegedFile, error) {
	return PrivilegedFile{}, errNoPrivileges
}

// Clear fails here.
func (*Privileges) Clear(string, uint64) (Privilege, error) { return Privilege{}, errNoPrivileges }

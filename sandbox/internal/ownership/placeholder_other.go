//go:build !linux

package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Make returns an error: elsewhere the engine runs in a virtual machine of its
// own and no name is reserved.
func (p Placeholder) Make(*os.File) (Placeholder, error) {
	return p, fmt.Errorf("make placeholder %s: %w", p.Name, errors.ErrUnsupported)
}

func (p Placeholder) findInode(*os.File) (uint64, error) { return 0, errors.ErrUnsupported }

// Remove returns fs.ErrNotExist, because Make makes nothing.
func (p Placeholder) Remove(*os.File) error { return fs.ErrNotExist }

func (p Placeholder) removeByPath() error { return fs.ErrNotExist }

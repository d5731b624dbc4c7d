//go:build !linux

package chat

import (
	"errors"
	"os"
)

// SetRaw returns an error: keys are read on Linux alone, and lines elsewhere.
func SetRaw(*os.File) (restore func(), err error) { return nil, errors.ErrUnsupported }

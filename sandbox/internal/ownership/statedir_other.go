//go:build !unix

package ownership

import (
	"fmt"
	"io/fs"
)

func checkPrivate(info fs.FileInfo) error {
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", info.Name())
	}
	return nil
}

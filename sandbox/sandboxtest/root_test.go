//go:build linux

package sandboxtest

import "os"

func isRoot() bool { return os.Geteuid() == 0 }

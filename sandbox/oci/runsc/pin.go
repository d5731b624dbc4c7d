// Package runsc is a Go module of its own that pins the gVisor release which
// `make build` turns into bin/runsc. It is apart from the main module because
// gVisor needs runtime-spec 1.2.1 at most, and would bring its versions of
// everything else along.
package runsc

import (
	_ "gvisor.dev/gvisor/runsc/cli/maincli" // keeps the requirement in go.mod
)

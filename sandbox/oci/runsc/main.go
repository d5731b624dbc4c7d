// Command runsc is gVisor's, with one change to its kernel: programs can't set
// the set-user-ID or set-group-ID bit of a file (setid.go). The build adds
// compiled seccomp filters (precompile), and by a patch the flag
// --host-namespaces, which needs no privilege (hostns). It is a separate Go module that pins
// the gVisor release, because gVisor needs runtime-spec 1.2.1 at most and would
// determine the versions of everything else.
package main

import (
	"gvisor.dev/gvisor/runsc/cli/maincli"
	"gvisor.dev/gvisor/runsc/version"
)

// The linker stamps the version only if this package is linked.
var _ = version.Version()

func main() {
	refuseSetID()
	maincli.Main()
}

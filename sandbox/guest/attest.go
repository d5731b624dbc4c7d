package guest

import (
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Attest fills the parts of an attestation that are observed from inside:
// Kernel, GuestVersion, User, GuestUser, Capabilities, GuestCapabilities,
// NoNewPrivileges, Seccomp, Network, RootReadOnly, Namespaces, Limits,
// KillMethod and Lost. The backend fills the rest, and replaces limits of 0 by
// what it read back from the engine or runtime.
func Attest(h wire.Hello) sandbox.Attestation { return sandbox.Attestation{} }

// Expectation says what a container must look like from inside.
type Expectation struct {
	// SingleUID accepts that guest and commands share one id.
	SingleUID bool
	// Submounts names the mounts that are expected below the workspace, as
	// absolute container paths.
	Submounts []string
	// Filters is the least number of seccomp filters on a command where the
	// kernel tells: 2 with a profile of the runtime's, 1 without.
	Filters int
}

// VerifyHardening returns every way in which the container is weaker than it
// must be, joined, each wrapping sandbox.ErrUnavailable; nil if there is none. A backend that gets an error
// destroys the container.
func VerifyHardening(h wire.Hello, want Expectation) error { return errNotYet }

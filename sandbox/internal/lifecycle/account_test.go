package lifecycle

import (
	"os"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// TestAttestAccount checks that commands with the uid of a user of this machine
// are attested, unless the shared kernel sees another uid.
func TestAttestAccount(t *testing.T) {
	for name, tt := range map[string]struct {
		base   workmount.Base
		kernel string
		want   bool
	}{
		"the machine's kernel": {want: true},
		"a user namespace":     {base: workmount.Base{UID: 700_000_000, GID: 700_000_000}},
		"gVisor":               {kernel: "Linux version 4.4.0 gVisor"},
	} {
		p := &Preparation{
			Spec: sandbox.Spec{Setup: sandbox.Setup{User: sandbox.UserImage}}, Mounts: &workmount.Mounts{IDMapped: true},
			Account: images.UserAccount{UID: os.Getuid()}, Identity: Identity{Workspace: workmount.Identity{Base: tt.base}},
		}
		var a sandbox.Attestation
		(&observation{prep: p, hello: wire.Hello{Kernel: tt.kernel}}).attestAccount(&a, 0)
		if got := len(a.Lost) == 1 && strings.Contains(a.Lost[0], "of this machine"); got != tt.want {
			t.Errorf("%s: lost %q", name, a.Lost)
		}
	}
}

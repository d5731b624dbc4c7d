package harden

import (
	"crypto/sha256"
	_ "embed" // the profiles
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// The profiles, one per architecture, generated from
// github.com/moby/profiles/seccomp and our restrictions by `go test
// ./sandbox/internal/harden -run TestSeccompDerivation -update`. The test fails
// if they are out of date.
var (
	//go:embed seccomp_amd64.json
	seccompAMD64 []byte
	//go:embed seccomp_arm64.json
	seccompARM64 []byte
)

// Seccomp is the profile of one architecture, an allowlist: any other call
// fails with EPERM. JSON is both the OCI form and the form that `docker
// --security-opt seccomp=` takes. Don't change a Seccomp.
type Seccomp struct {
	JSON []byte
	// SHA256 is the hex digest of JSON, for the attestation.
	SHA256 string
	OCI    *specs.LinuxSeccomp
}

// SeccompFor returns the profile for an architecture by Go's names (amd64,
// arm64) or engines' (x86_64, aarch64). It returns an error for any other.
func SeccompFor(arch string) (Seccomp, error) {
	var data []byte
	switch arch {
	case "amd64", "x86_64":
		data = seccompAMD64
	case "arm64", "aarch64":
		data = seccompARM64
	default:
		return Seccomp{}, fmt.Errorf("no seccomp profile for processor %q: amd64 and arm64 only", arch)
	}
	var oci specs.LinuxSeccomp
	if err := json.Unmarshal(data, &oci); err != nil {
		return Seccomp{}, fmt.Errorf("read embedded seccomp profile: %w", err)
	}
	return newSeccomp(data, oci), nil
}

func newSeccomp(data []byte, oci specs.LinuxSeccomp) Seccomp {
	sum := sha256.Sum256(data)
	return Seccomp{JSON: slices.Clone(data), SHA256: hex.EncodeToString(sum[:]), OCI: &oci}
}

// WithSocketDiagnosis returns the profile with NETLINK_SOCK_DIAG sockets, by
// which the guest finds the users of connections. The guest's own filter
// refuses them to commands.
func (s Seccomp) WithSocketDiagnosis() (Seccomp, error) {
	const netlink, sockDiag = 16, 4
	oci := *s.OCI
	oci.Syscalls = append(slices.Clone(oci.Syscalls), specs.LinuxSyscall{
		Names: []string{"socket"}, Action: specs.ActAllow,
		Args: []specs.LinuxSeccompArg{{Index: 0, Value: netlink, Op: specs.OpEqualTo}, {Index: 2, Value: sockDiag, Op: specs.OpEqualTo}},
	})
	data, err := json.Marshal(oci)
	if err != nil {
		return Seccomp{}, fmt.Errorf("write seccomp profile: %w", err)
	}
	return newSeccomp(data, oci), nil
}

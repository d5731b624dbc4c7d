package harden

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "rewrite the embedded seccomp profiles")

// dropped lists the calls that the engine's profile allows and ours does not.
// Calls that the engine's profile allows only with a capability that the guest
// lacks are gone already.
var dropped = []string{
	// Our own rules are below.
	"socket", "socketpair", "personality", "ioctl", "clone3",
	// Reading and controlling other processes.
	"ptrace", "process_vm_readv", "process_vm_writev",
	// Multiplexers of 32-bit processors, which would bypass the rules for
	// sockets.
	"socketcall", "ipc",
	// Queries of the mount API, which are useless without its other calls.
	"listmount", "statmount", "fanotify_mark",
	// 16-bit segments: attack surface without a use here.
	"modify_ldt",
}

func TestSeccompDerivation(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			want, err := json.MarshalIndent(deriveProfile(arch), "", "  ")
			must(t, err)
			want = append(want, '\n')
			file := "seccomp_" + arch + ".json"
			if *update {
				must(t, os.WriteFile(file, want, 0o644))
			}
			got, err := os.ReadFile(file)
			must(t, err)
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs from the profile derived from the engine's; review, run with -update (-file +derived):\n%s",
					file, cmp.Diff(string(got), string(want)))
			}
		})
	}
}

// deriveProfile returns the profile of one architecture.
func deriveProfile(arch string) *specs.LinuxSeccomp {
	var names []string
	var conditional []specs.LinuxSyscall
	for _, call := range seccomp.DefaultProfile().Syscalls {
		if call.Action != specs.ActAllow || !appliesToGuest(call, arch) {
			continue
		}
		if len(call.Args) == 0 {
			names = append(names, call.Names...)
			continue
		}
		if !slices.ContainsFunc(call.Names, func(n string) bool { return slices.Contains(dropped, n) }) {
			conditional = append(conditional, call.LinuxSyscall)
		}
	}
	// clone3 passes its flags by a pointer. The guest needs it. The filter of
	// every command makes it fail with ENOSYS.
	names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(dropped, n) })
	names = append(names, "clone3")
	slices.Sort(names)
	errno := uint(unix.EPERM)
	return &specs.LinuxSeccomp{
		DefaultAction:   specs.ActErrno,
		DefaultErrnoRet: &errno,
		Architectures:   []specs.Arch{map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}[arch]},
		Syscalls: slices.Concat(
			[]specs.LinuxSyscall{{Names: slices.Compact(names), Action: specs.ActAllow}},
			conditional, socketRules(), personalityRules(), ioctlRules(),
		),
	}
}

// appliesToGuest reports whether an entry of the engine's profile applies on
// arch with the guest's capabilities. Entries for newer kernels apply: a kernel
// that lacks the call returns ENOSYS.
func appliesToGuest(call *seccomp.Syscall, arch string) bool {
	return appliesTo(call, arch, GuestCapabilities())
}

func appliesTo(call *seccomp.Syscall, arch string, caps []string) bool {
	if f := call.Includes; f != nil {
		if len(f.Arches) > 0 && !slices.Contains(f.Arches, arch) {
			return false
		}
		for _, c := range f.Caps {
			if !slices.Contains(caps, c) {
				return false
			}
		}
	}
	if f := call.Excludes; f != nil {
		if slices.Contains(f.Arches, arch) {
			return false
		}
		for _, c := range f.Caps {
			if slices.Contains(caps, c) {
				return false
			}
		}
	}
	return true
}

func allow(name string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: args}
}

func argEquals(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpEqualTo}
}

// socketRules returns an allowlist. Runtimes combine two conditions on one
// argument with OR, so "not AF_VSOCK and not AF_ALG" would allow both.
func socketRules() []specs.LinuxSyscall {
	return []specs.LinuxSyscall{
		allow("socket", argEquals(0, unix.AF_UNIX)),
		allow("socket", argEquals(0, unix.AF_INET)),
		allow("socket", argEquals(0, unix.AF_INET6)),
		allow("socket", argEquals(0, unix.AF_NETLINK), argEquals(2, unix.NETLINK_ROUTE)),
		allow("socketpair", argEquals(0, unix.AF_UNIX)),
	}
}

// personalityRules returns rules that allow reading the personality and setting
// the current one.
func personalityRules() []specs.LinuxSyscall {
	return []specs.LinuxSyscall{
		allow("personality", argEquals(0, 0)),
		allow("personality", argEquals(0, 0xffffffff)),
	}
}

// ioctlRules returns rules that allow every request but TIOCSTI (0x5412) and
// TIOCLINUX (0x541c), which insert characters into a terminal's input. The
// kernel uses only the low 32 bits of the request, so neither a range nor "not
// equal" on the whole register would be safe. Instead, a request passes if one
// of its bits differs from the two refused ones: one of the high 28 bits, which
// they share, or the low four bits, which must not be 2 or 12.
func ioctlRules() []specs.LinuxSyscall {
	const shared = unix.TIOCSTI &^ 0xf
	masked := func(mask, value uint64) specs.LinuxSyscall {
		return allow("ioctl", specs.LinuxSeccompArg{Index: 1, Value: mask, ValueTwo: value, Op: specs.OpMaskedEqual})
	}
	var rules []specs.LinuxSyscall
	for bit := 4; bit < 32; bit++ {
		mask := uint64(1) << bit
		rules = append(rules, masked(mask, ^uint64(shared)&mask))
	}
	rules = append(rules, masked(1, 1)) // odd
	for _, low := range []uint64{0x0, 0x4, 0x6, 0x8, 0xa, 0xe} {
		rules = append(rules, masked(0xf, low))
	}
	return rules
}

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

// dropped is what the engine's profile allows and ours does not. Everything
// that the engine's profile allows only with a capability that the guest
// lacks is gone already.
var dropped = []string{
	// Rules of our own below.
	"socket", "socketpair", "personality", "ioctl", "clone3",
	// Reading and steering other processes.
	"ptrace", "process_vm_readv", "process_vm_writev",
	// Multiplexers of 32-bit processors, which would go round the rules for
	// sockets.
	"socketcall", "ipc",
	// The mount API's queries, and what only makes sense with its rest.
	"listmount", "statmount", "fanotify_mark",
	// 16-bit segments: attack surface without a use here.
	"modify_ldt",
}

func TestSeccompDerivation(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			want, err := json.MarshalIndent(deriveProfile(arch), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, '\n')
			file := "seccomp_" + arch + ".json"
			if *update {
				if err := os.WriteFile(file, want, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not what the engine's profile and our narrowing give; review, raise SeccompVersion, run with -update (-file +derived):\n%s",
					file, cmp.Diff(string(got), string(want)))
			}
		})
	}
}

// deriveProfile builds the profile of one architecture.
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
	// clone3 hides its flags behind a pointer. The guest needs it; the filter
	// that it puts on every command answers ENOSYS to it.
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

// appliesToGuest says whether an entry of the engine's profile holds for the guest's
// capabilities on arch. Entries for newer kernels hold: a kernel that lacks
// the call answers ENOSYS itself.
func appliesToGuest(call *seccomp.Syscall, arch string) bool {
	return appliesTo(call, arch, GuestCapabilities())
}

// appliesTo is the same for other capabilities.
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

// socketRules lists what is allowed instead of what is not: runtimes OR two
// conditions on one argument, so "not AF_VSOCK and not AF_ALG" allows both.
func socketRules() []specs.LinuxSyscall {
	return []specs.LinuxSyscall{
		allow("socket", argEquals(0, unix.AF_UNIX)),
		allow("socket", argEquals(0, unix.AF_INET)),
		allow("socket", argEquals(0, unix.AF_INET6)),
		allow("socket", argEquals(0, unix.AF_NETLINK), argEquals(2, unix.NETLINK_ROUTE)),
		allow("socketpair", argEquals(0, unix.AF_UNIX)),
	}
}

// personalityRules allow asking, and setting what is set anyway.
func personalityRules() []specs.LinuxSyscall {
	return []specs.LinuxSyscall{
		allow("personality", argEquals(0, 0)),
		allow("personality", argEquals(0, 0xffffffff)),
	}
}

// ioctlRules allow every request but TIOCSTI (0x5412) and TIOCLINUX (0x541c),
// which put characters into a terminal's input. The kernel looks at the low
// 32 bits of the request only, so neither a range nor "not equal" on the whole
// register would hold; instead a request passes if one of its bits differs
// from the two that are refused: one of the high 28, which they share, or the
// low four in one of the ways that leave out 2 and 12.
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

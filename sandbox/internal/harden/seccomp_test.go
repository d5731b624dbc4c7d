package harden

import (
	"maps"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// allows evaluates a profile as runc and gVisor do: rules, and conditions on
// the same argument, are combined with OR. Conditions on different arguments
// are combined with AND.
func allows(t *testing.T, p *specs.LinuxSeccomp, name string, args ...uint64) bool {
	t.Helper()
	for _, rule := range p.Syscalls {
		if !slices.Contains(rule.Names, name) {
			continue
		}
		met := map[uint]bool{}
		for _, a := range rule.Args {
			var got uint64
			if int(a.Index) < len(args) {
				got = args[a.Index]
			}
			met[a.Index] = met[a.Index] || holdsCondition(t, a, got)
		}
		if !slices.Contains(slices.Collect(maps.Values(met)), false) {
			return true
		}
	}
	return false
}

func holdsCondition(t *testing.T, a specs.LinuxSeccompArg, got uint64) bool {
	t.Helper()
	switch a.Op {
	case specs.OpEqualTo:
		return got == a.Value
	case specs.OpNotEqual:
		return got != a.Value
	case specs.OpMaskedEqual:
		return got&a.Value == a.ValueTwo
	}
	t.Fatalf("operator %s is not evaluated here", a.Op)
	return false
}

func TestSeccompRules(t *testing.T) {
	type call struct {
		name string
		args []uint64
	}
	tests := []struct {
		want  bool
		calls []call
	}{
		{true, []call{
			{"read", nil},
			{"execve", nil},
			{"openat2", nil},
			{"clone3", nil},
			{"vfork", nil},
			{"close_range", nil},
			{"setresuid", nil},
			{"setgroups", nil},
			{"capset", nil},
			{"prctl", nil},
			{"seccomp", nil},
			{"mknodat", nil},
			{"clone", []uint64{uint64(unix.SIGCHLD)}},
			{"clone", []uint64{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}},
			{"socket", []uint64{unix.AF_UNIX}},
			{"socket", []uint64{unix.AF_INET}},
			{"socket", []uint64{unix.AF_INET6}},
			{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}},
			{"socketpair", []uint64{unix.AF_UNIX}},
			{"personality", []uint64{0xffffffff}},
			{"personality", []uint64{0}},
			{"ioctl", []uint64{0, unix.TCGETS}},
			{"ioctl", []uint64{0, unix.TIOCGWINSZ}},
			{"ioctl", []uint64{0, 0x541b}},
			{"ioctl", []uint64{0, unix.TIOCSCTTY}},
			{"ioctl", []uint64{0, unix.FICLONE}},
			{"ioctl", []uint64{0, unix.TIOCSPTLCK}},
		}},
		{false, []call{
			{"io_uring_setup", nil},
			{"io_uring_enter", nil},
			{"io_uring_register", nil},
			{"keyctl", nil},
			{"add_key", nil},
			{"request_key", nil},
			{"bpf", nil},
			{"userfaultfd", nil},
			{"perf_event_open", nil},
			{"kexec_load", nil},
			{"kexec_file_load", nil},
			{"mount", nil},
			{"umount2", nil},
			{"fsopen", nil},
			{"fsmount", nil},
			{"fsconfig", nil},
			{"fspick", nil},
			{"open_tree", nil},
			{"move_mount", nil},
			{"mount_setattr", nil},
			{"pivot_root", nil},
			{"chroot", nil},
			{"unshare", nil},
			{"setns", nil},
			{"open_by_handle_at", nil},
			{"ptrace", nil},
			{"process_vm_readv", nil},
			{"process_vm_writev", nil},
			{"pidfd_getfd", nil},
			{"kcmp", nil},
			{"init_module", nil},
			{"finit_module", nil},
			{"delete_module", nil},
			{"swapon", nil},
			{"swapoff", nil},
			{"reboot", nil},
			{"socketcall", nil},
			{"syslog", nil},
			{"settimeofday", nil},
			{"clock_settime", nil},
			{"sethostname", nil},
			{"quotactl", nil},
			{"acct", nil},
			{"iopl", nil},
			{"ioperm", nil},
			{"lookup_dcookie", nil},
			{"move_pages", nil},
			{"migrate_pages", nil},
			{"clone", []uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}},
			{"clone", []uint64{unix.CLONE_NEWPID}},
			{"clone", []uint64{unix.CLONE_NEWNET}},
			{"socket", []uint64{unix.AF_VSOCK}},
			{"socket", []uint64{unix.AF_ALG}},
			{"socket", []uint64{unix.AF_PACKET}},
			{"socket", []uint64{unix.AF_KCM}},
			{"socket", []uint64{unix.AF_XDP}},
			{"socket", []uint64{unix.AF_TIPC}},
			{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}},
			{"socketpair", []uint64{unix.AF_TIPC}},
			{"personality", []uint64{0x40000}},
			{"personality", []uint64{0x20000}},
			{"personality", []uint64{8}},
			{"ioctl", []uint64{0, unix.TIOCSTI}},
			{"ioctl", []uint64{0, 0x541c}},
			{"ioctl", []uint64{0, 1<<32 | unix.TIOCSTI}},
			{"ioctl", []uint64{0, 0xffffffff00000000 | 0x541c}},
		}},
	}
	for _, arch := range []string{"amd64", "arm64"} {
		p, err := SeccompFor(arch)
		must(t, err)
		for _, tt := range tests {
			for _, c := range tt.calls {
				if arch == "arm64" && c.name == "vfork" {
					continue // arm64 has only clone
				}
				if got := allows(t, p.OCI, c.name, c.args...); got != tt.want {
					t.Errorf("%s: %s%v allowed: %v, want %v", arch, c.name, c.args, got, tt.want)
				}
			}
		}
	}
}

// TestSeccompTrapsAreReal is the control: the obvious profile, "neither
// AF_VSOCK nor AF_ALG", allows both, and a plain comparison with TIOCSTI allows
// it with a bit set that the kernel ignores.
func TestSeccompTrapsAreReal(t *testing.T) {
	naive := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
		allow("socket",
			specs.LinuxSeccompArg{Index: 0, Value: unix.AF_VSOCK, Op: specs.OpNotEqual},
			specs.LinuxSeccompArg{Index: 0, Value: unix.AF_ALG, Op: specs.OpNotEqual}),
		allow("ioctl", specs.LinuxSeccompArg{Index: 1, Value: unix.TIOCSTI, Op: specs.OpNotEqual}),
	}}
	if !allows(t, naive, "socket", unix.AF_VSOCK) || !allows(t, naive, "ioctl", 0, 1<<32|unix.TIOCSTI) {
		t.Fatal("the naive profile refuses them: the evaluation above proves nothing")
	}
}

func TestSeccompShape(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		p, err := SeccompFor(arch)
		must(t, err)
		if p.OCI.DefaultAction != specs.ActErrno || len(p.OCI.Architectures) != 1 {
			t.Errorf("%s: default %s, architectures %v: 32-bit and x32 calls must be off", arch, p.OCI.DefaultAction, p.OCI.Architectures)
		}
		for _, rule := range p.OCI.Syscalls {
			seen := map[uint]bool{}
			for _, a := range rule.Args {
				if seen[a.Index] || a.Op == specs.OpNotEqual {
					t.Errorf("%s: rule for %v: two conditions on an argument are combined with OR by runtimes", arch, rule.Names)
				}
				seen[a.Index] = true
			}
			if rule.Action != specs.ActAllow {
				t.Errorf("%s: rule for %v has action %s; the profile is an allowlist", arch, rule.Names, rule.Action)
			}
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

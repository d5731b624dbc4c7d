package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
)

// Settings describe how a container was made, as read back from the engine or
// the bundle. A field's zero value is the engine's or runtime's "nothing".
type Settings struct {
	Runtime      string
	Args, Env    []string
	User         string // uid:gid of the first process
	Hostname     string
	Privileged   bool
	ReadOnlyRoot bool
	NoNewPrivs   bool
	// Capabilities are the bounding, permitted and effective set; Inherited are
	// the inheritable and ambient one.
	Capabilities, Inherited []string
	// Seccomp is nil if no profile is loaded.
	Seccomp *specs.LinuxSeccomp
	// Security are other options of the engine's security modules.
	Security []string
	// Namespaces are those that the container does not share.
	Namespaces         []string
	Network            string
	Masked, ReadOnly   []string
	Devices, Sysctls   []string
	Binds              []string // "source:target:options" of each bind
	Tmpfs              map[string]string
	Rlimits            map[string]int64 // hard limits, names in lower case
	PIDs               int64
	Memory, MemorySwap int64
	MilliCPUs          int64
	NoOOMKill          bool
	OOMScore           int
	Restart, Logging   string
	AutoRemove         bool
	Init               bool // the engine's
	Labels             map[string]string
}

type ReadBack func(ctx context.Context, sb sandbox.Sandbox) (Settings, error)

// row is a line in the design's table of hardening defaults: what the engine or
// bundle must say, and what must be seen from inside.
type row struct {
	setting string
	// decided says what differs from the table, and why.
	decided    string
	configured func(e *env, s Settings) error
	inside     func(ctx context.Context, e *env) error
}

// RunHardening checks a sandbox against the table, row by row.
func RunHardening(t *testing.T, target Target, readBack ReadBack) {
	t.Helper()
	if target.Probe == "" {
		target.Probe = BuildProbe(t)
	}
	e := newEnv(target, t.TempDir())
	if err := e.start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	s, err := readBack(t.Context(), e.sb)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range hardeningRows() {
		t.Run(r.setting, func(t *testing.T) {
			if r.decided != "" {
				t.Log(r.decided)
			}
			if err := r.configured(e, s); err != nil {
				t.Errorf("read back: %v", err)
			}
			if err := r.inside(t.Context(), e); err != nil {
				t.Errorf("inside: %v", err)
			}
		})
	}
}

func compareSetting[T comparable](name string, got, wanted T) error {
	if got != wanted {
		return fmt.Errorf("%s is %v, want %v", name, got, wanted)
	}
	return nil
}

func isEmpty(name string, list []string) error {
	if len(list) > 0 {
		return fmt.Errorf("%s are %q, want none", name, list)
	}
	return nil
}

func hasAll(name string, list, wanted []string) error {
	if missing := subtract(wanted, list); len(missing) > 0 {
		return fmt.Errorf("%s lack %q", name, missing)
	}
	return nil
}

// checkNothing is for a row that only the host can see.
func checkNothing(context.Context, *env) error { return nil }

// hardeningRows returns the table in the design's order.
func hardeningRows() []row {
	return slices.Concat(identityRows(), placeRows(), limitRows(), lifeRows())
}

func identityRows() []row {
	return []row{
		{
			setting: "Runtime",
			configured: func(e *env, s Settings) error {
				return compareSetting("runtime", s.Runtime, e.sb.Attestation().Runtime)
			},
			inside: checkKernel,
		},
		{
			setting: "User",
			decided: "the container's first process is the guest, uid 0 in it; commands get an id of their own and can't become another",
			configured: func(e *env, s Settings) error {
				if e.target.LimitsUnenforced {
					return nil // an ordinary user's: the guest becomes 0 by its capabilities
				}
				return compareSetting("user", s.User, "0:0")
			},
			inside: checkExec,
		},
		{
			setting:    "userns / idmap",
			decided:    "where Caisson is root the workspace is mounted with mapped ids; an ordinary user's container has a user namespace of one id",
			configured: func(*env, Settings) error { return nil },
			inside:     checkOwnership,
		},
		{
			setting: "Capabilities",
			decided: "the guest keeps KILL, SETGID, SETUID and SETPCAP; commands have none, in any set",
			configured: func(e *env, s Settings) error {
				if e.target.LimitsUnenforced {
					return hasAll("capabilities", harden.GuestCapabilities(), s.Capabilities)
				}
				return errors.Join(
					compareSetting("capabilities", strings.Join(slices.Sorted(slices.Values(s.Capabilities)), " "), strings.Join(slices.Sorted(slices.Values(harden.GuestCapabilities())), " ")),
					isEmpty("inherited capabilities", s.Inherited), compareSetting("privileged", s.Privileged, false))
			},
			inside: checkPrivilege,
		},
		{
			setting:    "no_new_privs",
			configured: func(_ *env, s Settings) error { return compareSetting("no_new_privs", s.NoNewPrivs, true) },
			inside:     checkNoNewPrivs,
		},
		{
			setting:    "seccomp",
			decided:    "gVisor loads none (docs/design/guest.md#gvisor-loads-no-profile); the guest's filter is on every command everywhere",
			configured: configuredSeccomp,
			inside:     checkSyscalls,
		},
		{
			setting: "AppArmor/SELinux",
			decided: "the engine's own default where the host has a module; never switched off",
			configured: func(_ *env, s Settings) error {
				for _, o := range s.Security {
					if strings.Contains(o, "unconfined") || strings.Contains(o, "label") && strings.Contains(o, "disable") {
						return fmt.Errorf("security option %s", o)
					}
				}
				return nil
			},
			inside: checkNothing,
		},
		{
			setting: "Namespaces",
			decided: "gVisor's sandbox has no cgroup namespace on the host; commands see the cgroups of its own kernel",
			configured: func(e *env, s Settings) error {
				return hasAll("private namespaces", s.Namespaces, []string{"ipc", "mount", "network", "pid", "uts", "cgroup"})
			},
			inside: checkNamespaces,
		},
		{
			setting:    "Network",
			configured: func(_ *env, s Settings) error { return compareSetting("network", s.Network, "none") },
			inside:     checkNetwork,
		},
	}
}

func placeRows() []row {
	return []row{
		{
			setting: "Root filesystem",
			configured: func(_ *env, s Settings) error {
				return errors.Join(compareSetting("read-only root", s.ReadOnlyRoot, true), compareSetting("restart policy", s.Restart, "no"))
			},
			inside: checkRootReadOnly,
		},
		{
			setting: "WS mount",
			decided: "commands may run programs in it, because builds do; .git is pinned and read-only",
			configured: func(_ *env, s Settings) error {
				for _, b := range s.Binds {
					if strings.Contains(b, "rbind") && !strings.Contains(b, ",ro,") || strings.Contains(b, "shared") || strings.Contains(b, "slave") || !strings.Contains(b, "private") {
						return fmt.Errorf("bind %s", b)
					}
				}
				return nil
			},
			inside: checkMounts,
		},
		{
			setting: "tmpfs",
			decided: "/tmp allows exec, because builds need it; all together at most three quarters of the memory limit; an engine's /dev/shm has no limit of inodes",
			configured: func(_ *env, s Settings) error {
				for _, path := range []string{"/tmp", "/run"} {
					for _, o := range []string{"nosuid", "nodev", "size="} {
						if !strings.Contains(s.Tmpfs[path], o) {
							return fmt.Errorf("tmpfs %s: %q lacks %s", path, s.Tmpfs[path], o)
						}
					}
				}
				return nil
			},
			inside: checkMounts,
		},
		{
			setting:    "/dev",
			configured: func(_ *env, s Settings) error { return isEmpty("devices", s.Devices) },
			inside:     checkKernelFiles,
		},
		{
			setting: "/proc",
			decided: "hidepid with runc; an engine has no such option",
			configured: func(_ *env, s Settings) error {
				return errors.Join(hasAll("masked paths", s.Masked, harden.MaskedPaths()), hasAll("read-only paths", s.ReadOnly, harden.ReadonlyPaths()))
			},
			inside: checkGuestSafe,
		},
		{
			setting:    "/sys, cgroup",
			configured: func(*env, Settings) error { return nil },
			inside:     checkKernelFiles,
		},
		{
			setting:    "sysctls",
			configured: func(_ *env, s Settings) error { return isEmpty("sysctls", s.Sysctls) },
			inside:     checkNothing,
		},
	}
}

// pidsOf is the host's limit of processes for a container's; see
// docs/design/killing.md#processes-memory-and-cpu about gVisor.
func (e *env) pidsOf(n int64) int64 {
	if e.target.OwnKernel {
		return 4*n + 384
	}
	return n
}

func limitRows() []row {
	r := limits.DefaultResources()
	return []row{
		{
			setting: "pids",
			decided: "gVisor counts inside, by uid; the host's limit is the second line (docs/design/killing.md#processes-memory-and-cpu)",
			configured: func(e *env, s Settings) error {
				if e.target.LimitsUnenforced {
					return nil
				}
				return compareSetting("pids", s.PIDs, e.pidsOf(r.PIDs))
			},
			inside: func(_ context.Context, e *env) error {
				if e.target.LimitsUnenforced && !e.target.PIDsSpareSandbox {
					return attestsLoss(e, "pids")
				}
				return compareSetting("attested pids", e.sb.Attestation().Limits.PIDs, r.PIDs)
			},
		},
		{
			setting: "memory",
			decided: "swappiness is left to the host: memory and swap are one limit; gVisor's own memory counts too",
			configured: func(e *env, s Settings) error {
				if e.target.LimitsUnenforced {
					return nil
				}
				errs := []error{compareSetting("memory", s.Memory, r.MemoryBytes), compareSetting("OOM kill off", s.NoOOMKill, false), compareSetting("oom_score_adj", s.OOMScore, 500)}
				if s.MemorySwap != 0 && s.MemorySwap != -1 {
					errs = append(errs, compareSetting("memory and swap", s.MemorySwap, r.MemoryBytes))
				}
				return errors.Join(errs...)
			},
			inside: checkOOMScore,
		},
		{
			setting: "cpu",
			configured: func(e *env, s Settings) error {
				if e.target.LimitsUnenforced {
					return nil
				}
				milli := r.MilliCPUs
				if s.MilliCPUs < milli { // an engine takes no more than there are, a runtime any quota
					milli = min(milli, int64(runtime.NumCPU())*1000)
				}
				return compareSetting("CPUs", s.MilliCPUs, milli)
			},
			inside: checkNothing,
		},
		{
			setting:    "io",
			decided:    "not limited: version 1 can't bound buffered writes, and which device the workspace is on is the host's affair",
			configured: func(*env, Settings) error { return nil },
			inside:     checkNothing,
		},
		{
			setting: "ulimits",
			decided: "core 1 byte instead of 0 (docs/design/guest.md#core-files); nproc only in gVisor, which counts it for one sandbox",
			configured: func(_ *env, s Settings) error {
				var errs []error
				for _, l := range harden.Rlimits(r, false) {
					if got, ok := s.Rlimits[l.Name]; !ok || got > l.Hard || got < 0 {
						errs = append(errs, fmt.Errorf("limit %s is %d, want %d", l.Name, got, l.Hard))
					}
				}
				return errors.Join(errs...)
			},
			inside: checkRlimits,
		},
		{
			setting:    "Disk",
			decided:    "the workspace has the host's own bounds, watched by the runner, and no file is larger than RLIMIT_FSIZE; everything else is in memory, bounded",
			configured: func(*env, Settings) error { return nil },
			inside:     checkNothing,
		},
	}
}

func lifeRows() []row {
	return []row{
		{
			setting: "PID 1",
			configured: func(_ *env, s Settings) error {
				return errors.Join(compareSetting("arguments", strings.Join(s.Args, " "), sandbox.GuestPath), compareSetting("the engine's init", s.Init, false))
			},
			inside: checkGuestSafe,
		},
		{
			setting:    "Logging",
			configured: func(_ *env, s Settings) error { return compareSetting("log driver", s.Logging, "none") },
			inside:     checkNothing,
		},
		{
			setting: "Stop",
			configured: func(_ *env, s Settings) error {
				return errors.Join(compareSetting("restart policy", s.Restart, "no"), compareSetting("removed at its end", s.AutoRemove, true))
			},
			inside: checkNothing,
		},
		{
			setting: "Labels",
			decided: "with a runtime there are none: the cleanup list of the session has the same words",
			configured: func(e *env, s Settings) error {
				for _, name := range []string{"session", "instance", "boot", "pid", "start", "lease", "schema"} {
					if s.Labels[name] == "" {
						return fmt.Errorf("no %s among %v", name, s.Labels)
					}
				}
				return compareSetting("session", s.Labels["session"], e.session)
			},
			inside: checkNothing,
		},
		{
			setting: "Env",
			configured: func(_ *env, s Settings) error {
				return errors.Join(compareSetting("environment", strings.Join(s.Env, " "), strings.Join(harden.GuestEnv(), " ")), compareSetting("host name", s.Hostname, images.Hostname))
			},
			inside: func(ctx context.Context, e *env) error {
				return errors.Join(checkEnvironment(ctx, e), checkHostEnvironment(ctx, e))
			},
		},
		{
			setting: "Daemon",
			configured: func(_ *env, s Settings) error {
				for _, b := range s.Binds {
					if strings.Contains(b, ".sock") {
						return fmt.Errorf("bind %s", b)
					}
				}
				return nil
			},
			inside: checkHostFiles,
		},
		{
			setting:    "fds",
			configured: func(*env, Settings) error { return nil },
			inside: func(ctx context.Context, e *env) error {
				return errors.Join(checkDescriptors(ctx, e), checkTrickyDirs(ctx, e))
			},
		},
	}
}

// configuredSeccomp compares the profile with ours, call by call.
func configuredSeccomp(e *env, s Settings) error {
	if s.Seccomp == nil {
		if !e.target.OwnKernel {
			return errors.New("no profile")
		}
		return nil
	}
	ours, err := harden.SeccompFor(runtime.GOARCH)
	if err != nil {
		return err
	}
	if fmt.Sprint(s.Seccomp.Syscalls) != fmt.Sprint(ours.OCI.Syscalls) || s.Seccomp.DefaultAction != ours.OCI.DefaultAction {
		return errors.New("the profile is not ours")
	}
	if e.target.OwnKernel {
		return nil
	}
	return compareSetting("attested hash", e.sb.Attestation().SeccompProfile, ours.SHA256)
}

package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

func isolationChecks() []check {
	return []check{
		{name: "commands have no privilege", run: checkPrivilege},
		{name: "the guest can't be signalled or read", run: checkGuestSafe},
		{name: "no network", run: checkNetwork},
		{name: "nothing of the host's environment", run: checkHostEnvironment},
		{name: "no host file outside the mounts", shared: true, run: checkHostFiles},
		{name: "descriptors are stdin, stdout, stderr", run: checkDescriptors},
		{name: "the root is read-only", run: checkRootReadOnly},
		{name: "the attestation is complete and true", run: checkAttestation},
	}
}

func (e *env) readFacts(ctx context.Context) (probing.Facts, error) {
	return parseOutput[probing.Facts](e.expectOutput(ctx, "facts"))
}

func checkPrivilege(ctx context.Context, e *env) error {
	f, err := e.readFacts(ctx)
	if err != nil {
		return err
	}
	return e.checkUnprivileged(f)
}

func checkGuestSafe(ctx context.Context, e *env) error {
	if e.target.SingleUID {
		return attestsLoss(e, "uid")
	}
	if err := e.expectAnswer(ctx, "", "attack-guest"); err != nil {
		return err
	}
	return e.expectAnswer(ctx, "", "exit", "0")
}

func attestsLoss(e *env, word string) error {
	lost := e.sb.Attestation().Lost
	if !slices.ContainsFunc(lost, func(s string) bool { return strings.Contains(s, word) }) {
		return fmt.Errorf("attestation names no loss about %q: %q", word, lost)
	}
	return nil
}

func checkNetwork(ctx context.Context, e *env) error {
	f, err := e.readFacts(ctx)
	if err != nil {
		return err
	}
	for _, i := range f.Interfaces {
		if i != "lo" {
			return fmt.Errorf("interface %s", i)
		}
	}
	if !slices.Contains(f.Localhost, "127.0.0.1") || !slices.Equal(f.Own, []string{"127.0.0.1"}) {
		return fmt.Errorf("localhost has the addresses %v, the host name %s has %v", f.Localhost, f.Hostname, f.Own)
	}
	return e.expectAnswer(ctx, "", "dial", "192.0.2.1:80", "[2001:db8::1]:80", "172.17.0.1:2375")
}

// hostSecret is a variable of this process that no sandbox may see.
const hostSecret = "CAISSON_TEST_HOST_SECRET"

func checkHostEnvironment(ctx context.Context, e *env) error {
	value := newMarker()
	if err := os.Setenv(hostSecret, value); err != nil {
		return err
	}
	defer os.Unsetenv(hostSecret)
	if err := e.expectAnswer(ctx, "", "grep-environ", value, hostSecret); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	f, err := e.readFacts(ctx)
	if err != nil {
		return err
	}
	if f.Hostname == host {
		return fmt.Errorf("the sandbox has the host's name %q", host)
	}
	return nil
}

func checkHostFiles(ctx context.Context, e *env) error {
	value := newMarker()
	canary := filepath.Join(e.base, "canary")
	if err := os.WriteFile(canary, []byte(value), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(e.workspace, "control"), []byte(value), 0o644); err != nil {
		return err
	}
	if err := e.expectAnswer(ctx, "control\n", "grep-files", value, canary, "../canary", "/workspace/../canary",
		"/proc/1/root"+canary, "/proc/1/cwd/canary", "/root/.bash_history", "control"); err != nil {
		return err
	}
	return e.expectAnswer(ctx, "", "exist", "/var/run/docker.sock", "/run/docker.sock", "/etc/shadow", "/etc/gitconfig",
		"/root/.ssh", "/sys/fs/cgroup/memory/release_agent")
}

func checkDescriptors(ctx context.Context, e *env) error {
	f, err := e.readFacts(ctx)
	if err != nil {
		return err
	}
	if !slices.Equal(f.FDs, []int{0, 1, 2}) {
		return fmt.Errorf("descriptors %v", f.FDs)
	}
	return nil
}

func checkRootReadOnly(ctx context.Context, e *env) error {
	return e.expectAnswer(ctx, "/workspace\n", "writable", "/", "/etc", "/usr", "/bin", "/.caisson", "/var", "/opt", "/sys", "/proc/sys/kernel",
		"/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/workspace")
}

func checkAttestation(ctx context.Context, e *env) error {
	at := e.sb.Attestation()
	f, err := e.readFacts(ctx)
	if err != nil {
		return err
	}
	var wrong []error
	if e.target.OwnKernel {
		at.SeccompProfile = "not of this kernel"
	}
	for name, value := range map[string]string{
		"backend": at.Backend, "runtime": at.Runtime, "runtime version": at.RuntimeVersion, "container": at.Container,
		"image": at.Image, "image digest": at.ImageDigest, "kernel": at.Kernel, "guest version": at.GuestVersion,
		"guest hash": at.GuestSHA256, "guest user": at.GuestUser, "seccomp profile": at.SeccompProfile,
		"workspace mode": at.WorkspaceMode, "kill method": at.KillMethod,
	} {
		if value == "" {
			wrong = append(wrong, fmt.Errorf("no %s", name))
		}
	}
	if want := fmt.Sprintf("%d:%d", f.UID, f.GID); at.User != want {
		wrong = append(wrong, fmt.Errorf("user %q, observed %q", at.User, want))
	}
	if len(at.Capabilities) != 0 || !at.NoNewPrivileges || at.Seccomp != "filter" || at.Network != "none" || !at.RootReadOnly {
		wrong = append(wrong, fmt.Errorf("protections %+v", at))
	}
	if !e.target.LimitsUnenforced {
		if at.Limits.MemoryBytes != 2<<30 || at.Limits.PIDs != 256 || at.Limits.TmpBytes != 512<<20 {
			wrong = append(wrong, fmt.Errorf("limits %+v", at.Limits))
		}
	}
	if ours, err := harden.SeccompFor(runtime.GOARCH); !e.target.OwnKernel && (err != nil || at.SeccompProfile != ours.SHA256) {
		wrong = append(wrong, errorf("seccomp profile %s: %w", at.SeccompProfile, err))
	}
	slices.Sort(f.Localhost)
	if slices.Sort(at.Localhost); !slices.Equal(at.Localhost, f.Localhost) {
		wrong = append(wrong, fmt.Errorf("addresses of localhost %v, observed %v", at.Localhost, f.Localhost))
	}
	if at.Backend != e.target.Backend.Name() {
		wrong = append(wrong, fmt.Errorf("backend %q", at.Backend))
	}
	separate := at.Isolation == sandbox.IsolationNamespaces
	if !separate && at.Isolation != sandbox.IsolationProcess || separate != (len(at.Namespaces) > 0) {
		wrong = append(wrong, fmt.Errorf("isolation %q with namespaces %q", at.Isolation, at.Namespaces))
	}
	return errors.Join(wrong...)
}

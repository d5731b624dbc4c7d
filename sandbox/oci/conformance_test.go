package oci

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	withRuntimes(t, []Kind{GVisor, Runc}, func(t *testing.T, k Kind) { // in a sample too
		t.Parallel()
		b := newBed(t, k, os.Geteuid())
		addUserImages(t, b)
		target := conformanceTarget(b)
		addWritableImage(t, &target)
		// The whole gigabyte is for the benchmarks. Less of a flood is enough
		// here, and gVisor takes ten times as long for each byte.
		target.FloodBytes = map[Kind]int64{GVisor: 32 << 20, Runc: 256 << 20}[k]
		sandboxtest.Run(t, target)
	})
}

func TestFaults(t *testing.T) {
	t.Parallel()
	t.Run(string(Runc), func(t *testing.T) {
		b := newBed(t, Runc, os.Geteuid())
		addUserImages(t, b)
		target := conformanceTarget(b)
		addWritableImage(t, &target)
		sandboxtest.RunFaults(t, target)
	})
}

// A hostile session must not be noticed beside it.
func TestNeighbours(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: an ordinary user has no cgroups, so what is tried would be the host's")
	}
	both(t, func(t *testing.T, k Kind) { sandboxtest.RunNeighbours(t, conformanceTarget(newBed(t, k, 0))) })
}

func addWritableImage(t *testing.T, target *sandboxtest.Target) {
	t.Helper()
	root := shellRoot(t)
	must(t, sandboxtest.WriteOpenTree(root))
	target.WritableImage = images.Reference{Scheme: images.SchemeRootFS, Value: root}
	target.ImageDigest = func() (string, error) {
		r, err := host.Directory(t.Context(), root)
		if err != nil {
			return "", err
		}
		return r.Digest, nil
	}
}

func conformanceTarget(b *bed) sandboxtest.Target {
	own := b.backend.traits.ownKernel
	target := sandboxtest.Target{
		Backend: b.backend, StateDir: b.state, Image: images.Reference{Scheme: images.SchemeHost},
		OwnKernel: own, LimitsUnenforced: b.backend.rootless, SingleUID: b.backend.rootless && b.backend.options.Kind == Runc,
		Kill: func(_ context.Context, sb sandbox.Sandbox) error {
			containerOf(sb).process.sendKill()
			return nil
		},
		Copies:      own,
		HostProcess: func(_ context.Context, sb sandbox.Sandbox) (int, error) { return containerOf(sb).process.pid, nil },
		Leftovers:   b.leftovers,
		UserImage: func(user string) images.Reference {
			return images.Reference{Scheme: images.SchemeName, Value: usersName + user}
		},
		UserImageRefused: b.backend.rootless && b.backend.options.Kind == Runc,
		Programs:         []string{b.backend.options.RuntimePath, b.backend.options.GuestPath},
	}
	if b.backend.options.Isolation == sandbox.IsolationProcess {
		target.RootRefused = !b.backend.rootless
	}
	switch {
	case !b.backend.rootless:
		target.Pause = func(ctx context.Context, sb sandbox.Sandbox) error {
			_, err := b.backend.runtime.callRuntime(ctx, b.backend.runtime.root, "pause", sb.ID())
			return err
		}
	case own: // without cgroups; its kernel is one process
		target.Pause = func(_ context.Context, sb sandbox.Sandbox) error {
			return stopProcess(containerOf(sb).process.pid)
		}
	}
	return target
}

// stopProcess stops all threads of a process. The signal alone doesn't: under load, threads
// go on until one of them gets a processor and sees it.
func stopProcess(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	for deadline := time.Now().Add(faultTime); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if stopped, err := isStopped(pid); stopped || err != nil {
			return err
		}
	}
	return fmt.Errorf("process %d does not stop", pid)
}

func isStopped(pid int) (bool, error) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false, cmp.Or(err, fmt.Errorf("process %d is gone", pid))
	}
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // a thread that has ended
		}
		if err != nil {
			return false, err
		}
		if state := stat[bytes.LastIndexByte(stat, ')')+2]; state != 'T' && state != 't' {
			return false, nil
		}
	}
	return true, nil
}

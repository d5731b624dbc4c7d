package docker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// attest compares what runs with what was asked for, from inside and from
// outside, and keeps what was seen. It fails where anything is weaker.
func (s *session) attest(ctx context.Context, asked request) error {
	hello := s.conn.Hello()
	if hello.Nonce != s.nonce {
		return fmt.Errorf("%w: %w: the guest does not see the file that was written for it", sandbox.ErrUnavailable, ErrNotShared)
	}
	if hello.Probe == nil {
		return fmt.Errorf("%w: the guest did not try what a command must not be able to do", sandbox.ErrUnavailable)
	}
	if err := sameFolders(s.work, hello); err != nil {
		return err
	}
	got, err := s.remote.inspect(ctx, s.id)
	if err != nil {
		return err
	}
	if err := s.checkVolume(ctx); err != nil {
		return err
	}
	err = errors.Join(readBack(asked, got), checkKernel(s.facts.runtime, hello), s.checkLimits(hello), guest.VerifyHardening(hello, s.expect(hello)))
	if err != nil {
		return fmt.Errorf("check container: %w", err)
	}
	s.attestation = s.describe(hello, got)
	return nil
}

// expect is what the container must look like from inside.
func (s *session) expect(hello wire.Hello) guest.Expectation {
	want := guest.Expectation{UID: uint32(s.work.CommandUID), GID: uint32(s.work.CommandGID)}
	if !isGVisor(hello) {
		want.Filters, want.HostNamespaces = 2, guest.HostNamespaces()
	}
	for _, b := range s.work.Binds[1:] {
		if b.Inside() {
			want.Submounts = append(want.Submounts, b.Target)
		}
	}
	return want
}

// checkLimits compares the limits that can be read inside with what was asked
// for: an engine may accept a limit that its kernel then does not hold. gVisor
// shows its own cgroups, which hold nothing; there the host's limits count, as
// the engine answers them.
func (s *session) checkLimits(hello wire.Hello) error {
	type limit struct {
		name        string
		least       int64 // 0 where it may be unreadable
		got, atMost int64
	}
	r, l := s.spec.Resources, hello.Limits
	list := []limit{{"open files", 1, l.OpenFiles, r.OpenFiles}}
	if s.facts.runtime.ownKernel() {
		list = append(list, limit{"processes of a user", 1, l.UserPIDs, r.PIDs})
	} else if l.Source != "" {
		list = append(list, limit{"memory", 0, l.MemoryBytes, r.MemoryBytes}, limit{"pids", 0, l.PIDs, r.PIDs}, limit{"CPU time", 0, l.MilliCPUs, r.MilliCPUs})
	}
	var errs []error
	for _, l := range list {
		if l.got < l.least || l.got > l.atMost {
			errs = append(errs, fmt.Errorf("%w: its limit of %s is %d, not %d", sandbox.ErrUnavailable, l.name, l.got, l.atMost))
		}
	}
	return errors.Join(errs...)
}

// describe is the attestation: what the guest saw, what the engine answered,
// and what this process did.
func (s *session) describe(hello wire.Hello, got container.InspectResponse) sandbox.Attestation {
	a := guest.Attest(hello)
	a.Backend, a.Container = Name, s.id
	a.Runtime, a.RuntimeVersion, a.EngineVersion = got.HostConfig.Runtime, s.facts.runtime.version, s.facts.version
	a.Image, a.ImageDigest = s.image.reference, s.image.digest
	a.GuestSHA256 = s.guest.sha256
	if !isGVisor(hello) { // which loads none of the host's, see docs/design/limits.md#gvisor-does-not-load-it
		a.SeccompProfile = s.seccomp.SHA256
	}
	a.Workspace, a.WorkspaceMode = s.work.Path, string(s.work.Mode)
	a.WorkspaceOwner = fmt.Sprintf("%d:%d", s.work.OwnerUID, s.work.OwnerGID)
	a.IDMapped, a.Git = s.work.IDMapped, string(s.gitMode())
	a.Lost = append(a.Lost, s.work.Lost...)
	// The engine takes no such flags for a bind; those of a staged mount hold
	// with the host's kernel, and a kernel of the runtime's own does not see them.
	if !slices.Contains(a.Lost, workmount.LostFlags) && !slices.Contains(hello.Workspace.Options, "nosuid") {
		a.Lost = append(a.Lost, workmount.LostFlags)
	}
	if !s.facts.info.SwapLimit {
		a.Lost = append(a.Lost, lostSwap)
	}
	for _, limit := range []struct {
		attested *int64
		engine   int64
	}{
		{&a.Limits.MemoryBytes, got.HostConfig.Memory},
		{&a.Limits.PIDs, s.spec.Resources.PIDs}, // as was just compared
		{&a.Limits.MilliCPUs, got.HostConfig.NanoCPUs / 1e6},
	} {
		if *limit.attested <= 0 {
			*limit.attested = limit.engine
		}
	}
	return a
}

const lostSwap = "swap is not limited, because the engine's kernel does not count it"

func (s *session) gitMode() sandbox.GitMode {
	if s.spec.Git == "" {
		return sandbox.GitReadOnly
	}
	return s.spec.Git
}

// sameFolders compares the device and inode of each mount with the folder that
// was held: an engine that sees other mounts than this process, or a path that
// was replaced on the way, gives another. gVisor numbers inodes itself, and in
// a virtual machine so does its file sharing.
//
// A guest that may not look into the workspace's folder sees no inode of a
// mount below it. Where the mounts are staged that proves enough: their paths
// can't be replaced, and the workspace's own mount shows that the engine sees
// them.
func sameFolders(work *workmount.Prepared, hello wire.Hello) error {
	if runtime.GOOS != "linux" || isGVisor(hello) {
		return nil
	}
	seen := map[string]wire.Mount{hello.Workspace.Path: hello.Workspace}
	for _, m := range hello.Submounts {
		seen[m.Path] = m
	}
	for i, b := range work.Binds {
		if !b.Inside() {
			continue // the guest tells of the workspace's mounts
		}
		m, ok := seen[b.Target]
		if ok && i > 0 && m.Inode == 0 && work.Staged {
			continue
		}
		if i == 0 && work.Volume != nil {
			b.Device = m.Device // the overlay's own
		}
		if !ok || m.Device != b.Device || m.Inode != b.Inode {
			return fmt.Errorf("%w: %w: at %s it mounted another file than the one that was opened (%d:%d, not %d:%d)",
				sandbox.ErrUnavailable, ErrNotShared, b.Target, m.Device, m.Inode, b.Device, b.Inode)
		}
	}
	return nil
}

// checkKernel says whether a runtime that is gVisor really is.
func checkKernel(r runtimeFacts, hello wire.Hello) error {
	if r.ownKernel() && !isGVisor(hello) {
		return fmt.Errorf("%w: runtime %s is gVisor, but the kernel in the container is %.80q", sandbox.ErrUnavailable, r.name, hello.Kernel)
	}
	return nil
}

func isGVisor(hello wire.Hello) bool {
	return strings.Contains(strings.ToLower(hello.Kernel), "gvisor")
}

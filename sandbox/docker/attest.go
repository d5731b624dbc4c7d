package docker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"
	"strings"

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
	if err := sameFolders(s.work, hello); err != nil {
		return err
	}
	got, err := s.remote.inspect(ctx, s.id)
	if err != nil {
		return err
	}
	want := guest.Expectation{UID: uint32(s.work.CommandUID), GID: uint32(s.work.CommandGID)}
	if !isGVisor(hello) {
		want.Filters, want.HostNamespaces = 2, guest.HostNamespaces()
	}
	for _, b := range s.work.Binds[1:] {
		want.Submounts = append(want.Submounts, b.Target)
	}
	if err := errors.Join(readBack(asked, got), checkKernel(s.facts.runtime, hello), guest.VerifyHardening(hello, want)); err != nil {
		return fmt.Errorf("check container: %w", err)
	}
	a := guest.Attest(hello)
	a.Backend, a.Container = Name, s.id
	a.Runtime, a.RuntimeVersion, a.EngineVersion = got.HostConfig.Runtime, s.facts.runtime.version, s.facts.version
	a.Image, a.ImageDigest = s.image.reference, s.image.digest
	a.GuestSHA256, a.SeccompProfile = s.guest.sha256, s.seccomp.SHA256
	a.Workspace, a.WorkspaceMode = s.work.Path, "bind"
	a.WorkspaceOwner = fmt.Sprintf("%d:%d", s.work.OwnerUID, s.work.OwnerGID)
	a.IDMapped, a.Git = s.work.IDMapped, string(s.gitMode())
	a.Lost = append(a.Lost, s.work.Lost...)
	for _, limit := range []struct {
		attested *int64
		engine   int64
	}{
		{&a.Limits.MemoryBytes, got.HostConfig.Memory},
		{&a.Limits.PIDs, number(got.HostConfig.PidsLimit)},
		{&a.Limits.MilliCPUs, got.HostConfig.NanoCPUs / 1e6},
	} {
		if *limit.attested <= 0 {
			*limit.attested = limit.engine
		}
	}
	s.attestation = a
	return nil
}

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
		m, ok := seen[b.Target]
		if ok && i > 0 && m.Inode == 0 && work.Staged {
			continue
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
	if strings.HasPrefix(path.Base(r.path), "runsc") && !isGVisor(hello) {
		return fmt.Errorf("%w: runtime %s is gVisor, but the kernel in the container is %.80q", sandbox.ErrUnavailable, r.name, hello.Kernel)
	}
	return nil
}

func isGVisor(hello wire.Hello) bool {
	return strings.Contains(strings.ToLower(hello.Kernel), "gvisor")
}

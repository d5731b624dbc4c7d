package lifecycle

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// Preparation is the input of a container. The lifecycle sets its fields
// in this order; a [Container] reads what was set before the method that is
// called.
type Preparation struct {
	// Spec, Name and Log are set from the beginning. Name is the container's.
	Spec sandbox.Spec
	Name string
	Log  *zap.Logger

	// Cleanup is the session's cleanup list. Set, as Files, before Begin.
	Cleanup *ownership.CleanupList
	Files   *Files

	// Guest is the guest's binary. Mounts are the workspace's mounts, and
	// Identity is the identity that commands have with them. Image is the root
	// file system, or nil for an image of the engine's own. Env is the
	// environment of commands, which FetchImage sets for such an image. Set
	// before Create.
	Guest    GuestCopy
	Mounts   *workmount.Mounts
	Identity Identity
	Image    *images.RootFS
	Env      []string
}

// FileBinds returns the files that every container has, which are mounted
// read-only: the guest, the nonce and those about processors.
func (p *Preparation) FileBinds() []images.Bind {
	list := []images.Bind{{Source: p.Guest.Path, Path: sandbox.GuestPath}, {Source: p.Files.Path(nonceFile), Path: wire.NoncePath}}
	for _, path := range []string{harden.OnlinePath, harden.CPUInfoPath} {
		if source := p.Files.processors[path]; source != "" {
			list = append(list, images.Bind{Source: source, Path: path})
		}
	}
	return list
}

// VolumeMounts returns the tmpfs mounts in place of the VOLUMEs that an
// image declares.
func (p *Preparation) VolumeMounts(volumes []string) ([]harden.Tmpfs, error) {
	uid, gid := p.Identity.CommandUID, p.Identity.CommandGID
	var taken []string
	for _, t := range harden.TmpfsMounts(p.Spec.Resources, uid, gid) {
		taken = append(taken, t.Path)
	}
	list, err := harden.VolumeMounts(volumes, taken, uid, gid)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w: %w", p.Spec.Image, sandbox.ErrUnsupported, err)
	}
	return list, nil
}

// fetchImage gets an image that is not this machine's own, and keeps it from
// being pruned until the sandbox is gone. It takes as long as it takes.
func (s *Sandbox) fetchImage(ctx context.Context) error {
	ref := s.prep.Spec.Image
	if isLocal(ref) {
		return nil
	}
	fetched, err := s.container.FetchImage(ctx)
	if fetched || err != nil {
		return err
	}
	if s.backend.Images == nil {
		return s.backend.errNoStore(ref)
	}
	root, release, err := s.backend.Images.RootFS(ctx, ref)
	if err != nil {
		return sandbox.ImageError(err)
	}
	s.release = release
	s.setImage(root)
	return nil
}

// isLocal reports whether an image is described anew for each container.
func isLocal(ref images.Reference) bool {
	return ref.Scheme == images.SchemeHost || ref.Scheme == images.SchemeRootFS
}

// describeImage describes an image of this machine for an identity of commands.
func (s *Sandbox) describeImage(ctx context.Context, id Identity) error {
	ref := s.prep.Spec.Image
	if !isLocal(ref) {
		return nil // fetched
	}
	var root *images.RootFS
	var err error
	if ref.Scheme == images.SchemeRootFS {
		root, err = host.Directory(ctx, ref.Value)
	} else {
		o := s.backend.HostImage
		o.UID, o.GID = id.CommandUID, id.CommandGID
		root, err = host.RootFS(ctx, o)
	}
	if err != nil {
		return sandbox.ImageError(err)
	}
	s.setImage(root)
	return nil
}

func (s *Sandbox) setImage(root *images.RootFS) {
	s.prep.Image, s.prep.Env = root, sandbox.Environment(root.Env, root.Path)
	for _, w := range root.Warnings {
		s.prep.Log.Info("image", zap.String("warning", w))
	}
}

// The directory of a session's files, below the session's directory, and the
// file in it that contains the nonce.
const (
	filesDir  = "container"
	nonceFile = "nonce"
)

// Files is the directory of the files that are made for one container.
type Files struct {
	dir        string
	nonce      string            // by which the guest proves that it sees this file system
	processors map[string]string // sources by their paths in the container
}

// newFiles makes the directory, in that of the session, with a random nonce.
// After an error Destroy removes what was made.
func newFiles(sessionDir string) (*Files, error) {
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		return nil, fmt.Errorf("make nonce: %w", err)
	}
	f := &Files{dir: filepath.Join(sessionDir, filesDir), nonce: hex.EncodeToString(raw), processors: map[string]string{}}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make session files: %w", err)
	}
	return f, f.Write(nonceFile, f.nonce)
}

// writeProcessors writes the files that report the number of processors that a
// limit of CPU time amounts to; none if these are all processors.
func (f *Files) writeProcessors(milliCPUs int64) error {
	p := harden.NewProcessors(milliCPUs)
	for path, text := range map[string]string{harden.OnlinePath: p.Online, harden.CPUInfoPath: p.CPUInfo} {
		if text == "" {
			continue
		}
		name := "cpu-" + filepath.Base(path)
		if err := f.Write(name, text); err != nil {
			return err
		}
		f.processors[path] = f.Path(name)
	}
	return nil
}

// Dir returns the directory.
func (f *Files) Dir() string { return f.dir }

// Path returns the path of a file.
func (f *Files) Path(name string) string { return filepath.Join(f.dir, name) }

// Write makes a file that every user may read, whatever the umask is.
func (f *Files) Write(name, text string) error {
	file, err := os.OpenFile(f.Path(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return fmt.Errorf("make session files: %w", err)
	}
	_, err = file.WriteString(text)
	if err := errors.Join(err, file.Chmod(0o444), file.Close()); err != nil {
		return fmt.Errorf("make session files: %w", err)
	}
	return nil
}

// removeFiles removes the directory.
func (s *Sandbox) removeFiles() error {
	base, err := os.Open(s.prep.Spec.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove session files: %w", err)
	}
	defer func() { _ = base.Close() }()
	if err := ownership.RemoveTree(base, filesDir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove session files: %w", err)
	}
	return nil
}

// maxMessage is the longest part of a program's messages in an error.
const maxMessage = 2000

// OneLine returns the beginning of a text as one line of valid UTF-8.
func OneLine(text string) string {
	text = strings.ToValidUTF8(strings.TrimSpace(text), "?")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return strings.ReplaceAll(text, "\n", "; ")
}

// quote adds a text to an error, unless the error contains it.
func quote(err error, what, text string) error {
	text = OneLine(text)
	if text == "" || strings.Contains(err.Error(), text) {
		return err
	}
	return fmt.Errorf("%w: %s: %q", err, what, text)
}

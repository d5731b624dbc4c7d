package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/docker/docker/api/types/container"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// checkRemote refuses what an engine on another machine can't do. An engine
// reached over a network may still be on this machine, so binds are tried.
func (b *Backend) checkRemote(spec sandbox.Spec) error {
	switch {
	case spec.Workspace.Mode == sandbox.ModeOverlay:
		return fmt.Errorf("workspace %s: %w: the engine at %s is not on this machine, and can't mount an overlay of its directories: "+
			"use mode copy, which sends them, the gvisor backend, or an engine here", spec.Workspace.Path, sandbox.ErrUnsupported, b.endpoint.host)
	case spec.Image.Scheme == images.SchemeHost:
		return fmt.Errorf("image host: %w: %w: name an image that the engine at %s has", sandbox.ErrUnavailable, ErrNotShared, b.endpoint.host)
	case spec.Workspace.Mode != sandbox.ModeCopy:
		return nil
	}
	for _, m := range spec.Mounts {
		if m.Type != sandbox.MountTmpfs {
			return fmt.Errorf("mount at %s: %w: %w: the engine at %s is on another machine: use no mounts and no caches (cache_use: none)",
				m.Target, sandbox.ErrUnsupported, ErrNotShared, b.endpoint.host)
		}
	}
	return nil
}

// provideGuest replaces a remote container's image by one that includes the
// guest, which an engine on another machine can't mount. It is made from a
// container that is never started, and kept for further sessions like a loaded
// image.
func (c *engineContainer) provideGuest(ctx context.Context) error {
	if !c.prep.Remote {
		return nil
	}
	sum := sha256.Sum256([]byte(c.image.id + "\x00" + c.prep.Guest.SHA256))
	name := loadedName + ":guest-" + hex.EncodeToString(sum[:])
	found, err := c.remote.findImage(ctx, name)
	if errors.Is(err, sandbox.ErrNotFound) {
		if err = c.commitGuest(ctx, name); err == nil {
			found, err = c.remote.findImage(ctx, name)
		}
	}
	if err != nil {
		return fmt.Errorf("send guest: %w", err)
	}
	c.image.id = found.ID
	return nil
}

// commitGuest makes the image of this name with the guest.
func (c *engineContainer) commitGuest(ctx context.Context, name string) error {
	files, err := guestArchive(c.prep.Guest.Path)
	if err != nil {
		return err
	}
	asked := request{
		name:   c.prep.Name,
		config: &container.Config{Image: c.image.id, Entrypoint: []string{sandbox.GuestPath}, Labels: c.backend.labels(c.prep.Spec), NetworkDisabled: true},
		host:   &container.HostConfig{NetworkMode: noNetwork, LogConfig: container.LogConfig{Type: "none"}, Tmpfs: map[string]string{}},
	}
	for _, v := range c.image.config.Volumes { // otherwise the engine makes volumes
		asked.host.Tmpfs[v] = ""
	}
	return c.withUnstarted(ctx, asked, func() error {
		err := callNoResult(ctx, c.remote.load, "send files", func(ctx context.Context) error {
			return c.remote.engine.CopyToContainer(ctx, c.id, "/", bytes.NewReader(files), container.CopyToContainerOptions{})
		})
		if err != nil {
			return err
		}
		return callNoResult(ctx, c.remote.load, "make image "+name, func(ctx context.Context) error {
			_, err := c.remote.engine.ContainerCommit(ctx, c.id, container.CommitOptions{Reference: name})
			return err
		})
	})
}

// guestArchive returns an archive of the guest's binary, owned by root and not
// writable.
func guestArchive(path string) ([]byte, error) {
	guest, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct {
		name string
		mode int64
		text []byte
	}{
		{".caisson/", 0o755, nil},
		{strings.TrimPrefix(sandbox.GuestPath, "/"), 0o555, guest},
	} {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.text))}
		if f.text == nil {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

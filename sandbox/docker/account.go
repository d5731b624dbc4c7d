package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/docker/docker/api/types/container"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// examineImage looks up the image's user, if commands run as it, and reads what
// egress needs, if the engine has the image. It does so in a container without
// mounts that is never started. Other images were examined when they were
// fetched, or will be.
func (c *engineContainer) examineImage(ctx context.Context) error {
	p := c.prep
	asUser := p.Spec.User == sandbox.UserImage
	if c.image.id == "" || !asUser && !p.NeedsImageFiles() {
		if asUser {
			return c.checkAccount()
		}
		return nil
	}
	bare := c.basePlan()
	bare.work = &workmount.Mounts{}
	var volumes []string
	for _, v := range c.image.config.Volumes {
		volumes = append(volumes, path.Clean("/"+v))
	}
	err := c.withUnstarted(ctx, bare.buildRequest().withoutMounts(volumes), func() error {
		if asUser {
			if err := c.readAccount(ctx); err != nil {
				return err
			}
		}
		return p.AddEgressFiles(engineFiles{ctx, c})
	})
	if err != nil || !asUser {
		return err
	}
	return c.checkAccount()
}

// engineFiles are the files of a container that has never run.
type engineFiles struct {
	ctx context.Context
	c   *engineContainer
}

// Lstat returns the mode of a file, or of the first symlink on the way to it.
func (f engineFiles) Lstat(name string) (fs.FileMode, error) {
	for i := 1; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			continue
		}
		stat, err := f.c.remote.statPath(f.ctx, f.c.id, name[:i])
		switch {
		case errors.Is(err, sandbox.ErrNotFound):
			return 0, fs.ErrNotExist
		case err != nil:
			return 0, err
		case i == len(name) || stat.Mode&fs.ModeSymlink != 0:
			return stat.Mode, nil
		}
	}
	return 0, fs.ErrNotExist
}

// ReadFile reads a regular file.
func (f engineFiles) ReadFile(name string, limit int64) ([]byte, error) {
	stat, err := f.c.remote.statPath(f.ctx, f.c.id, name)
	if err != nil {
		return nil, err
	}
	if stat.Size > limit {
		return nil, fmt.Errorf("%w: %s of image %s has more than %d bytes", sandbox.ErrUnsupported, name, f.c.image.reference, limit)
	}
	return f.c.remote.copyFile(f.ctx, f.c.id, name, stat.Size)
}

// checkAccount refuses an image's user whose files would belong to someone
// else: a process that can't map IDs must be that user.
func (c *engineContainer) checkAccount() error {
	id := c.prep.ImageIdentity()
	if c.facts.base.IsNamespace() {
		return checkRange(id)
	}
	if os.Geteuid() == 0 || id.UID == os.Geteuid() && len(id.Groups) == 0 && (c.prep.Account.GID == 0 || id.GID == os.Getegid()) {
		return nil
	}
	return &sandbox.IncapableError{
		Request: "user image", Reason: fmt.Sprintf("the image's user is %d:%d, and only root can make files of that user yours", id.UID, id.GID),
		Hint: "use the gvisor backend, or run as root",
	}
}

// checkRange refuses an image's user who is outside a remapping engine's user
// namespace, or has a group that marks commands there.
func checkRange(id workmount.Identity) error {
	for i, n := range append([]int{id.UID, id.GID}, id.Groups...) {
		isMark := i > 0 && n >= guest.DefaultGIDBase && n < guest.DefaultGIDBase+guest.DefaultGIDCount
		if n >= workmount.IDCount || isMark {
			return &sandbox.IncapableError{
				Request: "user image", Reason: fmt.Sprintf("the image's user has the number %d, which can't be used in a container of an engine with userns-remap", n),
				Hint: "use the gvisor or the runc backend, or an engine without remapping",
			}
		}
	}
	return nil
}

func (c *engineContainer) readAccount(ctx context.Context) error {
	user := c.prep.Config.User
	files := images.AccountFiles{}
	etc, err := c.remote.statPath(ctx, c.id, "/etc")
	if err == nil && !etc.Mode.IsDir() {
		return images.CheckAccountFile(user, "/etc", etc.Mode, 0)
	}
	for name, content := range map[string]*[]byte{"/etc/passwd": &files.Passwd, "/etc/group": &files.Group} {
		if *content, err = c.remote.readFile(ctx, c.id, name, user); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			return err
		}
	}
	return c.prep.SetAccount(files, func(name string) (bool, error) {
		stat, err := c.remote.statPath(ctx, c.id, name)
		if errors.Is(err, sandbox.ErrNotFound) {
			return false, nil
		}
		return stat.Mode.IsDir(), err
	})
}

func (r *remote) statPath(ctx context.Context, id, name string) (container.PathStat, error) {
	return callWithin(ctx, r.ask, "examine image", func(ctx context.Context) (container.PathStat, error) {
		return r.engine.ContainerStatPath(ctx, id, name)
	})
}

// readFile reads an account file of a container that has never run. The engine
// does not follow a symlink at its name.
func (r *remote) readFile(ctx context.Context, id, name, user string) ([]byte, error) {
	stat, err := r.statPath(ctx, id, name)
	if err != nil {
		return nil, err
	}
	if err := images.CheckAccountFile(user, name, stat.Mode, stat.Size); err != nil {
		return nil, err
	}
	return r.copyFile(ctx, id, name, stat.Size)
}

func (r *remote) copyFile(ctx context.Context, id, name string, size int64) ([]byte, error) {
	return callWithin(ctx, r.ask, "read "+name+" of image", func(ctx context.Context) ([]byte, error) {
		archive, _, err := r.engine.CopyFromContainer(ctx, id, name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = archive.Close() }()
		files := tar.NewReader(archive)
		header, err := files.Next()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
		}
		if header.Typeflag != tar.TypeReg || header.Size != size {
			return nil, fmt.Errorf("%w: the engine sends another file than it described", sandbox.ErrUnavailable)
		}
		return io.ReadAll(files)
	})
}
